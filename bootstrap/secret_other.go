//go:build !unix

package bootstrap

import "io/fs"

// exposed returns 0: the mode does not reveal who can read a file here.
func exposed(fs.FileInfo) (bits fs.FileMode, fix string) { return 0, "" }
