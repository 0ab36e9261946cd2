//go:build unix

package bootstrap

import (
	"io/fs"
	"os"
	"syscall"
)

// inode returns the inode number of a file.
func inode(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return 0
}

// forbiddenBits returns the mode bits that a secret file must not have, and the argument of chmod that removes them. As in ssh, the group may
// read a file owned by another user: services read root's secrets that way.
func forbiddenBits(info fs.FileInfo) (bits fs.FileMode, fix string) {
	if s, ok := info.Sys().(*syscall.Stat_t); ok && int(s.Uid) != os.Geteuid() {
		return 0o007, "o="
	}
	return 0o077, "600"
}
