package chunk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// readXattrs returns the extended attributes of a file or directory, never nil. For symbolic links the result is empty.
func readXattrs(root *os.Root, name string, info fs.FileInfo) ([]Xattr, error) {
	if !info.IsDir() && !info.Mode().IsRegular() {
		return []Xattr{}, nil
	}
	f, err := root.OpenFile(name, os.O_RDONLY|openNoWait, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	if now, err := f.Stat(); err != nil || !os.SameFile(now, info) {
		return nil, errors.Join(fmt.Errorf("%s: %w: another file has its name", name, ErrChanged), err)
	}
	return listXattrs(f)
}

// listXattrs returns the extended attributes of an open file, never nil.
func listXattrs(f *os.File) ([]Xattr, error) {
	b := make([]byte, MaxXattrs)
	n, err := control(f, func(fd int) (int64, error) {
		n, err := unix.Flistxattr(fd, b)
		return int64(n), err
	})
	switch {
	case errors.Is(err, unix.ENOTSUP):
		return []Xattr{}, nil
	case errors.Is(err, unix.ERANGE):
		return nil, errXattrs(f)
	case err != nil:
		return nil, &fs.PathError{Op: "listxattr", Path: f.Name(), Err: err}
	}
	all, size := []Xattr{}, 0
	for name := range strings.SplitSeq(string(b[:n]), "\x00") {
		if !strings.HasPrefix(name, XattrPrefix) {
			continue
		}
		n, err := control(f, func(fd int) (int64, error) {
			n, err := unix.Fgetxattr(fd, name, b)
			return int64(n), err
		})
		if errors.Is(err, unix.ENODATA) {
			continue // removed since
		}
		if size += len(name) + int(n); errors.Is(err, unix.ERANGE) || size > MaxXattrs {
			return nil, errXattrs(f)
		}
		if err != nil {
			return nil, &fs.PathError{Op: "getxattr", Path: f.Name(), Err: err}
		}
		all = append(all, Xattr{name, string(b[:n])})
	}
	slices.SortFunc(all, func(a, b Xattr) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func errXattrs(f *os.File) error {
	return fmt.Errorf("%s: %w of extended attributes: more than %d bytes", f.Name(), ErrTooMany, MaxXattrs)
}

// setXattrs gives an open file exactly these extended attributes.
func setXattrs(f *os.File, want []Xattr) error {
	have, err := listXattrs(f)
	if err != nil {
		return err
	}
	for _, x := range have {
		if !slices.ContainsFunc(want, func(w Xattr) bool { return w.Name == x.Name }) {
			if _, err := control(f, func(fd int) (int64, error) { return 0, unix.Fremovexattr(fd, x.Name) }); err != nil {
				return &fs.PathError{Op: "removexattr", Path: f.Name(), Err: err}
			}
		}
	}
	for _, x := range want {
		if slices.Contains(have, x) {
			continue
		}
		if _, err := control(f, func(fd int) (int64, error) { return 0, unix.Fsetxattr(fd, x.Name, []byte(x.Value), 0) }); err != nil {
			return &fs.PathError{Op: "setxattr", Path: f.Name(), Err: err}
		}
	}
	return nil
}

// updateXattrs updates the extended attributes of an existing file if they differ. opened is set if it added write
// permission for that: the caller then restores the mode.
func updateXattrs(root *os.Root, e *Entry, info fs.FileInfo) (opened bool, err error) {
	if e.Xattrs == nil {
		return false, nil
	}
	have, err := readXattrs(root, e.Name, info)
	if err != nil || slices.Equal(have, e.Xattrs) {
		return false, err
	}
	if perm := info.Mode().Perm(); perm&0o200 == 0 {
		if err := root.Chmod(e.Name, perm|0o200); err != nil {
			return false, err
		}
		opened = true
	}
	f, err := root.OpenFile(e.Name, os.O_RDONLY|openNoWait, 0)
	if err != nil {
		return opened, err
	}
	return opened, errors.Join(setXattrs(f, e.Xattrs), f.Close())
}
