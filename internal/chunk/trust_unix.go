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

// distrust returns why an existing file must not be continued or reused, nil if it may: another user owns it or can write to it, now or by
// another link. foreign is set if another user owns it, so that this process must not remove it either.
func (t *Target) distrust(info fs.FileInfo) (foreign bool, err error) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false, nil
	}
	if int(s.Uid) != os.Geteuid() {
		own, err := t.probeOwner()
		if err != nil || own != s.Uid {
			return true, errors.Join(fmt.Errorf("%w: user %d owns it", ErrForeign, s.Uid), err)
		}
	}
	switch {
	case info.Mode().Perm()&0o022 != 0:
		return false, fmt.Errorf("%w: its mode is %v", ErrForeign, info.Mode().Perm())
	case s.Nlink > 1:
		return false, fmt.Errorf("%w: it has %d links", ErrForeign, s.Nlink)
	}
	return false, nil
}

// probeOwner returns the owner of files that this process creates beside the partial file. A file server may map users, so that it differs from
// the user of the process.
func (t *Target) probeOwner() (uid uint32, err error) {
	name := path.Join(path.Dir(t.name), fmt.Sprintf(".%016x%s", rand.Uint64(), partialSuffix))
	f, err := t.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err == nil {
		uid = info.Sys().(*syscall.Stat_t).Uid
	}
	return uid, errors.Join(err, f.Close(), t.root.Remove(name))
}
