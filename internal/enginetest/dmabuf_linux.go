package enginetest

import (
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx"
	"ibverbx/verbs"
)

// DMABuf returns a file descriptor for n bytes that a software NIC accepts as a dma-buf, and the
// bytes.
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

// DMABufRegion registers n bytes of a dma-buf on all rails, and returns the region and the bytes.
func (h *Host) DMABufRegion(n int) (*ibverbx.Region, []byte) {
	h.tb.Helper()
	fd, b := DMABuf(h.tb, n)
	r, err := h.Rails.RegisterDMABuf(fd, 0, uint64(n), verbs.AccessAll)
	Must(h.tb, err)
	h.tb.Cleanup(func() { Must(h.tb, r.Close()) })
	return r, b
}
