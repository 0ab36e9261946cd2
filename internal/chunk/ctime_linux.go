package chunk

import (
	"io/fs"
	"syscall"
)

// changeTime returns the time of the last change of content or metadata (ctime), in nanoseconds.
// Unlike the modification time, programs cannot set it.
func changeTime(info fs.FileInfo) int64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ctim.Nano()
	}
	return 0
}
