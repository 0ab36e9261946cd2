//go:build !linux

package chunk

import (
	"errors"
	"io/fs"
	"os"
)

func readXattrs(*os.Root, string, fs.FileInfo) ([]Xattr, error) { return nil, errors.ErrUnsupported }

func setXattrs(*os.File, []Xattr) error { return errors.ErrUnsupported }

func updateXattrs(_ *os.Root, e *Entry, _ fs.FileInfo) error {
	if e.Xattrs == nil {
		return nil
	}
	return errors.ErrUnsupported
}

func listXattrs(*os.File) ([]Xattr, error) { return nil, errors.ErrUnsupported }
