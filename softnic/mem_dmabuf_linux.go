package softnic

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// dmaBufs is the dma-buf registration capability.
const dmaBufs = verbs.CapDMABuf

// mapDMABuf maps length bytes at offset of a dma-buf or of another mappable file, such as a memfd.
func mapDMABuf(fd int, offset, length uint64, write bool) (b []byte, unmap func(), err error) {
	size, err := fileSize(fd)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: fd %d is no dma-buf: %w", verbs.ErrInvalid, fd, err)
	}
	if offset > size || length > size-offset {
		return nil, nil, verbs.Invalidf("%d bytes at %d of a dma-buf of %d", length, offset, size)
	}
	skew := offset % uint64(os.Getpagesize())
	if length > math.MaxInt-skew {
		return nil, nil, verbs.Invalidf("%d bytes are more than can be mapped", length)
	}
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	whole, err := unix.Mmap(fd, int64(offset-skew), int(skew+length), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: the CPU cannot map the dma-buf of fd %d: %w", verbs.ErrInvalid, fd, err)
	}
	return whole[skew:], func() { _ = unix.Munmap(whole) }, nil // unmap needs the whole slice as returned by Mmap
}

// fileSize returns the size of a file. It seeks to the end of a dma-buf, which does not change its file
// position. Regular files report their size through fstat instead, because a seek would move their
// position.
func fileSize(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		return uint64(st.Size), nil
	}
	n, err := unix.Seek(fd, 0, unix.SEEK_END)
	return uint64(max(n, 0)), err
}
