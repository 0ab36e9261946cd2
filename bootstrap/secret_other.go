//go:build !unix

package bootstrap

import "io/fs"

// exposed returns no bits: the mode does not say who can read a file here.
func exposed(fs.FileInfo) (bits fs.FileMode, fix string) { return 0, "" }
