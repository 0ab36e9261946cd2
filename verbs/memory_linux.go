//go:build !heapmem

package verbs

import (
	"golang.org/x/sys/unix"

	"ibverbx/internal/shm"
)

// mapHuge maps 2 MiB pages, which requires vm.nr_hugepages. The kernel rounds the
// mapping up to a multiple of 2 MiB, and munmap(2) needs that size, so mapHuge returns
// the full mapping.
func mapHuge(size, prot, flags int) ([]byte, error) {
	const page = 2 << 20
	size = (size + page - 1) &^ (page - 1)
	return unix.Mmap(-1, 0, size, prot, flags|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB)
}

// adviseHuge requests transparent huge pages; the kernel may ignore the advice.
func adviseHuge(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }

// mapFile maps a new file. Other holders of its descriptor cannot make this process fault.
func mapFile(size int) (b []byte, fd int, err error) { return shm.Create(size, false) }

// unmapFile releases the results of mapFile.
func unmapFile(b []byte, fd int) error {
	err := unix.Munmap(b)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}
