//go:build !unix

package chunk

import (
	"errors"
	"io/fs"
	"os"
)

func identity(fs.FileInfo) Identity { return Identity{} }

func ownerOf(fs.FileInfo) *Owner { return nil }

func chown(_ *os.Root, e *Entry, _ fs.FileInfo) error {
	if e.Owner == nil {
		return nil
	}
	return errors.ErrUnsupported
}
