//go:build unix

package bootstrap

import (
	"io/fs"
	"os"
	"syscall"
)

// exposed returns the bits that the mode of a secret file must not have, and the argument of chmod
// that removes them. As in ssh, the group may read a file that another user owns: a service reads
// a secret of root that way.
func exposed(info fs.FileInfo) (bits fs.FileMode, fix string) {
	if s, ok := info.Sys().(*syscall.Stat_t); ok && int(s.Uid) != os.Geteuid() {
		return 0o007, "o="
	}
	return 0o077, "600"
}
