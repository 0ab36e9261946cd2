package rig

import (
	"testing"

	"golang.org/x/sys/unix"
)

// DMABuf returns the file descriptor of n bytes that a software NIC takes for a dma-buf, and the bytes.
func DMABuf(tb testing.TB, n int) (fd int, b []byte) {
	tb.Helper()
	fd, err := unix.MemfdCreate("dma-buf", unix.MFD_CLOEXEC)
	Must(tb, err)
	tb.Cleanup(func() { _ = unix.Close(fd) }) // a test may have closed it
	Must(tb, unix.Ftruncate(fd, int64(n)))
	b, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	Must(tb, err)
	tb.Cleanup(func() { Must(tb, unix.Munmap(b)) })
	return fd, b
}
