//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx"
	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// memfd returns a file of n bytes, which the stand-in accepts as a dma-buf.
func memfd(t *testing.T, n int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("dma-buf", unix.MFD_CLOEXEC)
	ok(t, err, "MemfdCreate")
	t.Cleanup(func() { _ = unix.Close(fd) }) // the test may have closed it
	ok(t, unix.Ftruncate(fd, n), "Ftruncate")
	return fd
}

// openDMABufs opens a stand-in that accepts dma-bufs.
func openDMABufs(t *testing.T) (verbs.Context, *standin) {
	t.Helper()
	lib, s := loadStandin(t, rdmacore.Config{})
	s.failWith(verbDMABuf, 0)
	return openFirst(t, lib), s
}

// A dma-buf reaches the driver with its offset, iova and access, and refusals name the invalid
// argument.
func TestRegisterDMABuf(t *testing.T) {
	ctx, s := openDMABufs(t)
	attr, err := ctx.QueryDevice()
	ok(t, err, "QueryDevice")
	if attr.Capabilities&verbs.CapDMABuf == 0 {
		t.Fatalf("capabilities = %#x, want dma-bufs", attr.Capabilities)
	}
	pd, err := ctx.AllocPD()
	ok(t, err, "AllocPD")
	fd, closed := memfd(t, 1<<20), memfd(t, 1<<20)
	ok(t, unix.Close(closed), "Close of the fd")
	live := s.live
	for _, tt := range []struct {
		name                 string
		fd                   int
		offset, length, iova uint64
		access               verbs.Access
		want                 error
		word                 string
	}{
		{"a negative fd", -1, 0, 4096, 0, verbs.AccessAll, syscall.EBADF, "fd -1 is not open"},
		{"a closed fd", closed, 0, 4096, 0, verbs.AccessAll, verbs.ErrInvalid, "is not open"},
		{"no bytes", fd, 0, 0, 0, verbs.AccessAll, verbs.ErrInvalid, "no bytes"},
		{"a length beyond the end", fd, 4096, 1 << 20, 4096, verbs.AccessAll, verbs.ErrInvalid, "1048576 bytes at 4096"},
		{"an iova with another place in a page", fd, 0, 4096, 8, verbs.AccessAll, verbs.ErrInvalid, "the iova 0x8"},
		{"remote writes without local ones", fd, 0, 4096, 0, verbs.AccessRemoteWrite, verbs.ErrInvalid, "local write"},
	} {
		_, err := pd.RegisterDMABuf(tt.fd, tt.offset, tt.length, tt.iova, tt.access)
		wants(t, "RegisterDMABuf of "+tt.name, err, tt.want, tt.word)
	}
	s.failWith(verbMR, syscall.ENOMEM)
	_, err = pd.RegisterDMABuf(fd, 0, 4096, 0, verbs.AccessAll)
	wants(t, "RegisterDMABuf without memory", err, verbs.ErrLimit, "RLIMIT_MEMLOCK")
	s.failWith(verbMR, 0)
	if s.live != live {
		t.Errorf("objects alive after refusals = %v, want %v", s.live, live)
	}
	mr, err := pd.RegisterDMABuf(fd, 8192, 4096, 1<<40, verbs.AccessAll)
	ok(t, err, "RegisterDMABuf")
	ok(t, unix.Close(fd), "Close of the fd")
	if want := [4]uint64{8192, 4096, 1 << 40, uint64(fd)}; s.dmaBuf != want || s.access != uint64(verbs.AccessAll) {
		t.Errorf("the driver got %v and access %#x, want %v and %#x", s.dmaBuf, s.access, want, verbs.AccessAll)
	}
	if mr.Addr() != 1<<40 || mr.Len() != 4096 || mr.LKey() == 0 || mr.RKey() == mr.LKey() {
		t.Errorf("the region is %d bytes at %#x with keys %#x and %#x", mr.Len(), mr.Addr(), mr.LKey(), mr.RKey())
	}
	ok(t, mr.Close(), "Close")
	ok(t, mr.Close(), "a second Close")
	ok(t, pd.Close(), "Close of the PD")
	_, err = pd.RegisterDMABuf(memfd(t, 4096), 0, 4096, 0, verbs.AccessAll)
	wants(t, "RegisterDMABuf on a closed PD", err, verbs.ErrClosed)
}

// A device without dma-bufs returns ErrNotSupported.
func TestNoDMABuf(t *testing.T) {
	ctx, _ := openStandin(t, rdmacore.Config{})
	pd, err := ctx.AllocPD()
	ok(t, err, "AllocPD")
	_, err = pd.RegisterDMABuf(memfd(t, 4096), 0, 4096, 0, verbs.AccessAll)
	wants(t, "RegisterDMABuf", err, verbs.ErrNotSupported)
}

// A VirtualQP reads and writes a dma-buf by keys and offsets.
func TestEngineDMABuf(t *testing.T) {
	ctx, s := openDMABufs(t)
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: ctx})
	ok(t, err, "NewRails")
	cq, err := rails.NewCQ(ibverbx.CQConfig{Depth: 1024})
	ok(t, err, "NewCQ")
	qp, err := cq.NewQP(ibverbx.Config{Lanes: 2})
	ok(t, err, "NewQP")
	card, err := qp.Card()
	ok(t, err, "Card")
	ok(t, qp.Connect(card), "Connect")
	fd := memfd(t, 1<<20)
	region, err := rails.RegisterDMABuf(fd, 4096, 1<<16, verbs.AccessAll)
	ok(t, err, "RegisterDMABuf")
	remote := region.Remote()
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		s.record = 1
		wr := ibverbx.SendWR{Opcode: op, Flags: verbs.SendSignaled, Remote: remote, RemoteOffset: 64}
		wr.SetSGE(region.SGE(128, 1000))
		n, err := qp.PostSend([]ibverbx.SendWR{wr})
		if n != 1 || err != nil {
			t.Fatalf("PostSend = %d, %v", n, err)
		}
		got := s.seen[(s.posted-1)%8]
		if got.sge[0].Addr != 4096+128 || got.sge[0].LKey == 0 || got.sge[0].Length != 1000 || got.remoteAddr != 4096+64 || got.rkey != remote.RKeys[0] {
			t.Errorf("the driver got %+v, want the offsets in the dma-buf and its keys", got)
		}
	}
	ok(t, qp.Close(), "Close of the VirtualQP")
	ok(t, cq.Close(), "Close of the VirtualCQ")
	ok(t, region.Close(), "Close of the region")
	ok(t, rails.Close(), "Close of the rails")
}
