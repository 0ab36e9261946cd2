//go:build !heapmem

package verbs

import "golang.org/x/sys/unix"

// mapHuge maps 2 MiB pages, which requires vm.nr_hugepages. The kernel rounds the
// mapping up to a multiple of 2 MiB, and munmap(2) needs that size, so mapHuge returns
// the full mapping.
func mapHuge(size, prot, flags int) ([]byte, error) {
	const page = 2 << 20
	size = (size + page - 1) &^ (page - 1)
	return unix.Mmap(-1, 0, size, prot, flags|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB)
}

// adviseHuge asks for transparent huge pages; the advice may be ignored.
func adviseHuge(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }
