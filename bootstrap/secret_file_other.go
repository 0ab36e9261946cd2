//go:build !unix

package bootstrap

import "io/fs"

// forbiddenBits returns 0: the mode does not reveal who can read a file here.
func forbiddenBits(fs.FileInfo) (bits fs.FileMode, fix string) { return 0, "" }

// inode returns 0: the inode is unknown here.
func inode(fs.FileInfo) uint64 { return 0 }
