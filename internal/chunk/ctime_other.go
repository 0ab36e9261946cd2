//go:build !linux

package chunk

import "io/fs"

func changeTime(fs.FileInfo) int64 { return 0 }
