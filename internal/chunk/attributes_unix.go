//go:build unix

package chunk

import (
	"io/fs"
	"os"
	"syscall"
)

// identity returns the identity of a file with several hard links.
func identity(info fs.FileInfo) Identity {
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Nlink > 1 {
		return Identity{uint64(s.Dev), s.Ino} //nolint:unconvert // an int32 on Darwin
	}
	return Identity{}
}

// ownerOf returns the owner of a file, nil if unknown.
func ownerOf(info fs.FileInfo) *Owner {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return &Owner{s.Uid, s.Gid}
	}
	return nil
}

// chown sets the owner of an existing file or link if it differs.
func chown(root *os.Root, e *Entry, info fs.FileInfo) error {
	if o := ownerOf(info); e.Owner == nil || o != nil && *o == *e.Owner {
		return nil
	}
	return root.Lchown(e.Name, int(e.Owner.UID), int(e.Owner.GID))
}
