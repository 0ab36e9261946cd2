//go:build !heapmem

package verbs

import "golang.org/x/sys/unix"

// mapHuge maps 2 MiB pages, which needs vm.nr_hugepages to be set. A size that is not
// a multiple is rounded up by the kernel for the mapping, but munmap(2) wants the
// multiple back, so the full size is mapped and returned.
func mapHuge(size, prot, flags int) ([]byte, error) {
	const page = 2 << 20
	size = (size + page - 1) &^ (page - 1)
	return unix.Mmap(-1, 0, size, prot, flags|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB)
}

// adviseHuge asks for transparent huge pages; the advice may be ignored.
func adviseHuge(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }
