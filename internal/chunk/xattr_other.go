//go:build !linux

package chunk

import (
	"errors"
	"io/fs"
	"os"
)

func readXattrs(*os.Root, string, fs.FileInfo) ([]Xattr, error) { return nil, errors.ErrUnsupported }

func setXattrs(*os.File, []Xattr) error { return errors.ErrUnsupported }

func updateXattrs(_ *os.Root, e *Entry, _ fs.FileInfo) (opened bool, err error) {
	if e.Xattrs == nil {
		return false, nil
	}
	return false, errors.ErrUnsupported
}

func listXattrs(*os.File) ([]Xattr, error) { return nil, errors.ErrUnsupported }
