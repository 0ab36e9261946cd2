//go:build !unix

package chunk

import "io/fs"

func (*Target) distrust(fs.FileInfo) (foreign bool, err error) { return false, nil }
