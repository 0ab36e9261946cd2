package transfer

import (
	"context"
	"testing"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// raw is a VirtualQP between two hosts without a Node, as a baseline for the benchmarks.
type raw struct {
	here, there *peer.Session
	local       *ibverbx.Region
	remote      *ibverbx.RemoteRegion
	wcs         [64]ibverbx.WC
}

const benchSize = 64 << 20

func newRaw(b *testing.B, n *network) *raw {
	b.Helper()
	r := &raw{}
	side := func() peer.Config {
		h := &host{t: b, net: n, rig: &nodetest.Host{Links: n.links, Wrap: n.wrapper()}}
		return peer.Config{
			Auth: bootstrap.Config{InsecurePlaintextOnLoopback: true}, Open: h.open,
			Fabric:  peer.Fabric{Unsealed: true, PeerNetworks: nullNetworks}, // of no meaning to others
			Regions: []peer.RegionConfig{{Name: "raw", Size: benchSize}},
			Schemes: []ibverbx.Scheme{ibverbx.Tally}, QP: ibverbx.Config{Lanes: 2, SendDepth: 64, RecvDepth: 128, LaneDepth: 32},
		}
	}
	l, err := peer.Listen(soon(b), "127.0.0.1:0", side())
	wantOK(b, "Listen", err)
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		var err error
		r.there, err = l.Accept(soon(b))
		done <- err
	}()
	r.here, err = peer.Dial(soon(b), l.Addr().String(), side())
	wantOK(b, "Dial", err)
	wantOK(b, "Accept", <-done)
	b.Cleanup(func() {
		wantOK(b, "Close", r.here.Close())
		wantOK(b, "Close", r.there.Close())
	})
	r.local, r.remote = r.here.Local("raw"), r.here.Remote("raw")
	return r
}

// write writes count blocks, at most depth outstanding.
func (r *raw) write(b *testing.B, count, depth int, size int64) {
	ended := 0
	for posted := 0; ended < count; {
		for posted < count && posted-ended < depth {
			off := uint64(int64(posted) * size % benchSize)
			wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: r.remote, RemoteOffset: off}
			wr.SetSGE(r.local.SGE(off, uint32(size)))
			if _, err := r.here.QP.PostSend([]ibverbx.SendWR{wr}); err != nil {
				b.Fatalf("PostSend: got %v, want no error", err)
			}
			posted++
		}
		n, err := r.here.CQ.Poll(r.wcs[:])
		if err != nil {
			b.Fatalf("Poll: got %v, want no error", err)
		}
		ended += n
	}
}

// puts writes count blocks with Put, at most len(window) outstanding.
func (p *pair) puts(b *testing.B, window []*Transfer, count int, size int64) {
	ctx := context.Background()
	for i := range count + len(window) {
		slot := &window[i%len(window)]
		if *slot != nil {
			if err := (*slot).Wait(ctx); err != nil {
				b.Fatalf("Put: got %v, want no error", err)
			}
			*slot = nil
		}
		if i < count {
			off := int64(i) * size % benchSize
			*slot = p.peer.Put(ctx, p.remote.At(off), p.local.Slice(off, size))
		}
	}
}

func benchLinks(b *testing.B, f func(b *testing.B, n *network)) {
	b.Run("link=memory", func(b *testing.B) { f(b, memoryNetwork(1)) })
	b.Run("link=udp", func(b *testing.B) { f(b, &network{}) })
}

// BenchmarkPut compares Put with the VirtualQP below, in turns of 64 MiB.
func BenchmarkPut(b *testing.B) {
	b.Run("size=1MiB", func(b *testing.B) {
		benchLinks(b, func(b *testing.B, n *network) {
			const size, depth = 1 << 20, 8
			r, p := newRaw(b, n), newPair(b, n, benchSize)
			window := make([]*Transfer, depth)
			enginetest.Alternate(b, benchSize, func() { r.write(b, benchSize/size, depth, size) }, func() { p.puts(b, window, benchSize/size, size) })
		})
	})
}

// BenchmarkPutBatch compares batches of 64 blocks of 64 KiB.
func BenchmarkPutBatch(b *testing.B) {
	benchLinks(b, func(b *testing.B, n *network) {
		const size, blocks = 64 << 10, 64
		r, p := newRaw(b, n), newPair(b, n, benchSize)
		batch := p.peer.Batch()
		batches := func() {
			var last *Transfer
			for i := range int64(benchSize / size / blocks) {
				for k := range int64(blocks) {
					off := (i*blocks + k) * size
					batch.Put(p.remote.At(off), p.local.Slice(off, size))
				}
				t := batch.Submit(context.Background())
				if last != nil {
					wantOK(b, "Put", last.Wait(context.Background()))
				}
				last = t
			}
			wantOK(b, "Put", last.Wait(context.Background()))
		}
		enginetest.Alternate(b, benchSize, func() { r.write(b, benchSize/size, blocks, size) }, batches)
	})
}
