//go:build unix

package chunk

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"syscall"
)

// checkPrivate returns ErrForeign if an existing file must not be reused, because another user owns it or can write to it,
// now or through another link. own returns the owner of files that this process creates in the same file system.
func checkPrivate(info fs.FileInfo, own func() (uint32, error)) error {
	if err := checkOwner(info, own); err != nil {
		return err
	}
	switch s, ok := info.Sys().(*syscall.Stat_t); {
	case !ok:
	case info.Mode().Perm()&othersWrite != 0:
		return fmt.Errorf("%w: its mode is %v", ErrForeign, info.Mode().Perm())
	case s.Nlink > 1:
		return fmt.Errorf("%w: it has %d links", ErrForeign, s.Nlink)
	}
	return nil
}

// checkOwner returns ErrForeign if another user owns a file.
func checkOwner(info fs.FileInfo, own func() (uint32, error)) error {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(s.Uid) == os.Geteuid() {
		return nil
	}
	if uid, err := own(); err != nil || uid != s.Uid {
		return errors.Join(fmt.Errorf("%w: user %d owns it", ErrForeign, s.Uid), err)
	}
	return nil
}

// probeOwner returns the owner of files that this process creates in a directory below root. It may differ from the user
// of the process, because a file server may map users.
func probeOwner(root *os.Root, dir string) (uid uint32, err error) {
	name := path.Join(dir, fmt.Sprintf(".%016x%s", rand.Uint64(), partialSuffix))
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err == nil {
		uid = info.Sys().(*syscall.Stat_t).Uid
	}
	return uid, errors.Join(err, f.Close(), root.Remove(name))
}
