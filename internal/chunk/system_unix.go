//go:build unix

package chunk

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// openNoWait prevents opening a named pipe from blocking.
const openNoWait = syscall.O_NONBLOCK

var errLocked = errors.New("locked")

// lock locks a file exclusively until f is closed, or returns errLocked.
func lock(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	locked := error(nil)
	if err := raw.Control(func(fd uintptr) { locked = syscall.Flock(int(fd), syscall.LOCK_EX|syscall.LOCK_NB) }); err != nil {
		return err
	}
	if errors.Is(locked, syscall.EWOULDBLOCK) {
		return errLocked
	}
	return locked
}

// isSparse reports whether a file uses less disk space than its length.
func isSparse(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && s.Blocks*512 < info.Size()
}

// tryLock locks a file, and reports false if another process has locked it or locking fails.
func tryLock(f *os.File) bool { return lock(f) == nil }
