//go:build unix

package transfer

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps a file read-only.
func mapFile(path string) (b []byte, unmap func() error, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a named pipe would block until it has a writer
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if size := info.Size(); !info.Mode().IsRegular() || size == 0 || size > math.MaxInt {
		return nil, nil, fmt.Errorf("%s: want a regular file with at least one byte", path)
	}
	b, err = unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("map %s: %w", path, err)
	}
	return b, func() error { return unix.Munmap(b) }, nil
}
