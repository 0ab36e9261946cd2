package chunk

import (
	"io/fs"
	"syscall"
)

// changeTime returns when the bytes of a file, or what the system knows of it, changed last, in nanoseconds. Unlike the time of the last
// write, no program can set it.
func changeTime(info fs.FileInfo) int64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ctim.Nano()
	}
	return 0
}
