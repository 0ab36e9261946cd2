package failover_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx"
	"ibverbx/internal/rig"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestDMABufFailsOver: WRITEs, SENDs and READs from one dma-buf to another, over two rails of which one is
// lost on the way. Every byte arrives.
func TestDMABufFailsOver(t *testing.T) {
	rig.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		dmaBufTransfer(t, newDuo(t, 2, ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 4096}))
	})
}

// dmaBufTransfer writes and sends from host 0 to host 1, reads back, and loses rail 1 on the way.
func dmaBufTransfer(t *testing.T, d *duo) {
	t.Helper()
	const messages, size, half = 8, 40_000, 8 * 40_000
	local, sent := d.hosts[0].DMABufRegion(2 * half)
	remote, arrived := d.hosts[1].DMABufRegion(2 * half)
	rig.Fill(sent, 4)
	for i := range messages {
		at := uint64(i * size)
		wr := ibverbx.SendWR{WRID: uint64(2 * i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote(), RemoteOffset: at}
		wr.SetSGE(local.SGE(at, size))
		d.hosts[1].PostRecv(ibverbx.RecvWR{WRID: uint64(2 * i)})
		d.hosts[0].PostSend(wr)
		recv := ibverbx.RecvWR{WRID: uint64(2*i + 1)}
		recv.SetSGE(remote.SGE(half+at, size/2), remote.SGE(half+at+size/2, size/2))
		d.hosts[1].PostRecv(recv)
		wr = ibverbx.SendWR{WRID: uint64(2*i + 1), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		wr.SetSGE(local.SGE(half+at, size))
		d.hosts[0].PostSend(wr)
		if d.step(); i == messages/2 {
			d.links[1].Cut(d.hosts[0].NICs[1], d.hosts[1].NICs[1])
			d.links[1].Cut(d.hosts[1].NICs[1], d.hosts[0].NICs[1])
		}
	}
	d.until("all have arrived", func() bool { return len(d.got[0]) == 2*messages && len(d.got[1]) == 2*messages })
	for i, side := range d.got {
		for k, wc := range side {
			if wc.Err() != nil || wc.WRID != uint64(k) {
				t.Fatalf("completion %d of host %d is of %d: %v", k, i, wc.WRID, wc.Err())
			}
		}
	}
	if !bytes.Equal(sent, arrived) {
		t.Fatalf("WRITEs and SENDs differ at %d of %d", rig.FirstDifference(sent, arrived), len(sent))
	}
	rig.Fill(arrived, 5)
	read := ibverbx.SendWR{WRID: 2 * messages, Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, Remote: remote.Remote()}
	read.SetSGE(local.SGE(0, 2*half))
	d.hosts[0].PostSend(read)
	d.until("the READ has ended", func() bool { return len(d.got[0]) > 2*messages })
	if wc := d.got[0][2*messages]; wc.Err() != nil || !bytes.Equal(sent, arrived) {
		t.Errorf("READ = %v, and the bytes differ at %d", wc.Err(), rig.FirstDifference(sent, arrived))
	}
	d.links[1].Restore(d.hosts[0].NICs[1], d.hosts[1].NICs[1])
	d.links[1].Restore(d.hosts[1].NICs[1], d.hosts[0].NICs[1])
	d.until("all lanes are back", d.up)
}

// TestDMABufRegion: a dma-buf is registered on every rail or on none, from any offset. The CPU gets no bytes of
// it, and inline requests are refused.
func TestDMABufRegion(t *testing.T) {
	links := rig.MemoryLinks(2)
	for _, lanes := range []int{1, 4} {
		a, b := rig.NewPair(t, links, ibverbx.Config{Lanes: lanes})
		fd, file := rig.DMABuf(t, 10_000)
		for _, bad := range []struct {
			fd             int
			offset, length uint64
		}{{-1, 0, 100}, {fd, 0, 0}, {fd, 9_000, 1_001}, {fd, 10_001, 1}, {fd, ^uint64(0), 2}} {
			if r, err := a.Rails.RegisterDMABuf(bad.fd, bad.offset, bad.length, verbs.AccessAll); r != nil || !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("RegisterDMABuf(%d, %d, %d) = %v, %v; want %v", bad.fd, bad.offset, bad.length, r, err, verbs.ErrInvalid)
			}
		}
		region, err := a.Rails.RegisterDMABuf(fd, 1_000, 9_000, verbs.AccessAll)
		rig.Must(t, err)
		rig.Must(t, unix.Close(fd))
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
		rig.Must(t, region.Close())
		rig.Must(t, region.Close())
		if n, err := a.QP.PostSend([]ibverbx.SendWR{wr}); n != 0 || !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("PostSend from a closed dma-buf = %d, %v; want %v", n, err, verbs.ErrClosed)
		}
	}
}

// TestDMABufRollback: if one rail refuses a dma-buf, no rail keeps it. Otherwise the rails could not be closed
// when the test ends.
func TestDMABufRollback(t *testing.T) {
	h := rig.NewRailsOver(t, rig.MemoryLinks(2), func(rail int, inner verbs.Context) verbs.Context {
		if rail == 0 {
			return inner
		}
		return &noDMABuf{inner}
	})
	fd, _ := rig.DMABuf(t, 4096)
	if r, err := h.Rails.RegisterDMABuf(fd, 0, 4096, verbs.AccessAll); r != nil || !errors.Is(err, verbs.ErrNotSupported) {
		t.Fatalf("RegisterDMABuf = %v, %v; want %v", r, err, verbs.ErrNotSupported)
	}
}

// noDMABuf is a device that takes no dma-bufs.
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
	wrap := &reliable.Config{Paths: 4, ChunkBytes: 4096, GiveUp: int64(100 * time.Millisecond)}
	for name, wraps := range map[string][]*reliable.Config{"both": {wrap, wrap}, "one": {nil, wrap}} {
		t.Run(name, func(t *testing.T) {
			d, _ := newDuoOver(t, wraps, ibverbx.Config{Lanes: 4, FragmentSize: 16384}, ibverbx.CQConfig{Waker: verbs.NewWaker()})
			for i, l := range d.links { // 1 % of all packets between the hosts
				for k := range 2 {
					rig.Must(t, l.Impair(d.hosts[k].NICs[i], d.hosts[1-k].NICs[i], softnic.Impairment{Delay: 30 * time.Microsecond, Loss: 0.01}))
				}
			}
			dmaBufTransfer(t, d)
		})
	}
}
