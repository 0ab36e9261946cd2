package chunk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// readXattrs returns the extended attributes of a file or directory, never nil. For symbolic links the result is empty.
func readXattrs(root *os.Root, name string, info fs.FileInfo) ([]Xattr, error) {
	if !info.IsDir() && !info.Mode().IsRegular() {
		return []Xattr{}, nil
	}
	f, _, err := openSame(root, name, info)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	return listXattrs(f)
}

// openSame opens a file whose FileInfo is known, and returns its present one. If the name now belongs to another file, the error
// wraps ErrChanged.
func openSame(root *os.Root, name string, info fs.FileInfo) (f *os.File, now fs.FileInfo, err error) {
	if f, err = root.OpenFile(name, os.O_RDONLY|openNoWait, 0); err != nil {
		return nil, nil, err
	}
	if now, err = f.Stat(); err != nil || !os.SameFile(now, info) {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w: another file has its name", name, ErrChanged), err, f.Close())
	}
	return f, now, nil
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

// errXattrs does not name the directory, which the peer must not know.
func errXattrs(f *os.File) error {
	return fmt.Errorf("%s: %w of extended attributes: more than %d bytes", filepath.Base(f.Name()), ErrTooMany, MaxXattrs)
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

// updateXattrs updates the extended attributes of an existing file if they differ. If the owner must not write to the file, it
// adds that permission until it returns.
func updateXattrs(root *os.Root, e *Entry, info fs.FileInfo) (err error) {
	if e.Xattrs == nil {
		return nil
	}
	have, err := readXattrs(root, e.Name, info)
	if err != nil || slices.Equal(have, e.Xattrs) {
		return err
	}
	f, now, err := openSame(root, e.Name, info)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if mode := now.Mode(); mode.Perm()&0o200 == 0 {
		if err := f.Chmod(mode | 0o200); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Chmod(mode)) }()
	}
	return setXattrs(f, e.Xattrs)
}
