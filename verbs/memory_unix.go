//go:build unix && !heapmem

package verbs

import "golang.org/x/sys/unix"

func mapMemory(size int, huge bool) ([]byte, bool, error) {
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_ANON | unix.MAP_PRIVATE
	if huge {
		if b, err := mapHuge(size, prot, flags); err == nil {
			return b, true, nil
		}
	}
	b, err := unix.Mmap(-1, 0, size, prot, flags)
	if err != nil {
		return nil, false, err
	}
	if huge {
		adviseHuge(b)
	}
	return b, false, nil
}

func unmapMemory(b []byte) error { return unix.Munmap(b) }
