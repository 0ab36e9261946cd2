package chunk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// isHole reports whether the n bytes at off are a hole. It returns false if unknown.
func isHole(f *os.File, off, n int64) bool {
	at, err := control(f, func(fd int) (int64, error) { return unix.Seek(fd, off, unix.SEEK_DATA) })
	if errors.Is(err, unix.ENXIO) {
		return true // no data after off
	}
	return err == nil && at >= off+n
}

// punch punches a hole of n bytes at off.
func punch(f *os.File, off, n int64) error {
	_, err := control(f, func(fd int) (int64, error) {
		return 0, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
	return err
}

func control(f *os.File, do func(fd int) (int64, error)) (n int64, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	if outer := raw.Control(func(fd uintptr) { n, err = do(int(fd)) }); outer != nil {
		return 0, outer
	}
	return n, err
}
