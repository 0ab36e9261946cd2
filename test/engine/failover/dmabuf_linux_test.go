package failover_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestDMABufFailsOver: WRITEs, SENDs and READs between dma-bufs over two rails, one of which is lost midway.
// Every byte arrives.
func TestDMABufFailsOver(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		remoteTransfer(t, newDuo(t, 2, ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 4096}), dmaBuf)
	})
}

// dmaBuf returns a region of n bytes of a dma-buf, and the bytes.
func dmaBuf(t *testing.T, h *enginetest.Host, n int) (*ibverbx.Region, *verbs.Memory) {
	t.Helper()
	r, b := h.DMABufRegion(n)
	m, err := verbs.AdoptMemory(b)
	enginetest.Must(t, err)
	return r, m
}

// TestDMABufRegion: a dma-buf is registered on every rail or on none, at any offset. The CPU cannot access
// its bytes, and inline requests are refused.
func TestDMABufRegion(t *testing.T) {
	links := enginetest.MemoryLinks(2)
	for _, lanes := range []int{1, 4} {
		a, b := enginetest.NewPair(t, links, ibverbx.Config{Lanes: lanes})
		fd, file := enginetest.DMABuf(t, 10_000)
		for _, bad := range []struct {
			fd             int
			offset, length uint64
		}{{-1, 0, 100}, {fd, 0, 0}, {fd, 9_000, 1_001}, {fd, 10_001, 1}, {fd, ^uint64(0), 2}} {
			if r, err := a.Rails.RegisterDMABuf(bad.fd, bad.offset, bad.length, verbs.AccessAll); r != nil || !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("RegisterDMABuf(%d, %d, %d) = %v, %v; want %v", bad.fd, bad.offset, bad.length, r, err, verbs.ErrInvalid)
			}
		}
		region, err := a.Rails.RegisterDMABuf(fd, 1_000, 9_000, verbs.AccessAll)
		enginetest.Must(t, err)
		enginetest.Must(t, unix.Close(fd))
		if region.Bytes() != nil || region.Len() != 9_000 || len(region.Remote().RKeys) != 2 {
			t.Errorf("the region has %d bytes for the CPU, %d in all, and keys %v", len(region.Bytes()), region.Len(), region.Remote().RKeys)
		}
		to := b.Region(9_000)
		copy(file[1_100:], "from the device")
		wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled | verbs.SendInline, Remote: to.Remote()}
		wr.SetSGE(region.SGE(100, 15))
		if n, err := a.QP.PostSend([]ibverbx.SendWR{wr}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("PostSend of inline bytes of a dma-buf = %d, %v; want %v", n, err, verbs.ErrInvalid)
		}
		wr.Flags = verbs.SendSignaled
		a.PostSend(wr)
		if wc := a.Wait(1)[0]; wc.Err() != nil || string(to.Bytes()[:15]) != "from the device" {
			t.Errorf("WRITE from a dma-buf = %v with %q", wc.Err(), to.Bytes()[:15])
		}
		enginetest.Must(t, region.Close())
		enginetest.Must(t, region.Close())
		if n, err := a.QP.PostSend([]ibverbx.SendWR{wr}); n != 0 || !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("PostSend from a closed dma-buf = %d, %v; want %v", n, err, verbs.ErrClosed)
		}
	}
}

// TestDMABufRollback: if one rail refuses a dma-buf, no rail keeps it. Otherwise the rails could not be
// closed at the end of the test.
func TestDMABufRollback(t *testing.T) {
	h := enginetest.NewRailsOver(t, enginetest.MemoryLinks(2), func(rail int, inner verbs.Context) verbs.Context {
		if rail == 0 {
			return inner
		}
		return &noDMABuf{inner}
	})
	fd, _ := enginetest.DMABuf(t, 4096)
	if r, err := h.Rails.RegisterDMABuf(fd, 0, 4096, verbs.AccessAll); r != nil || !errors.Is(err, verbs.ErrNotSupported) {
		t.Fatalf("RegisterDMABuf = %v, %v; want %v", r, err, verbs.ErrNotSupported)
	}
}

// noDMABuf is a device without dma-buf support.
type noDMABuf struct{ verbs.Context }

func (x *noDMABuf) AllocPD() (verbs.PD, error) {
	pd, err := x.Context.AllocPD()
	return &noDMABufPD{pd}, err
}

type noDMABufPD struct{ verbs.PD }

func (d *noDMABufPD) RegisterDMABuf(int, uint64, uint64, uint64, verbs.Access) (verbs.MR, error) {
	return nil, verbs.ErrNotSupported
}

// TestDMABufOverReliable: the same with rails that package reliable wraps, one of two or both.
func TestDMABufOverReliable(t *testing.T) {
	wrappedTransfer(t, dmaBuf)
}
