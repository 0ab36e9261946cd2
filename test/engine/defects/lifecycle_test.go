package defects_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestDefectG22QueueDestroyedFirst: destroying the original's VirtualCQ before its VirtualQPs left them with
// a dangling pointer. Here Close fails without effect while VirtualQPs are open. After closing in the right
// order everything is released, and calls return errors instead of crashing.
func TestDefectG22QueueDestroyedFirst(t *testing.T) {
	for name, c := range map[string]struct{ lanes, shared int }{
		"both rails in use": {3, 0},
		"one rail in use":   {1, 0},
		"shared receives":   {3, 16},
	} {
		t.Run(name, func(t *testing.T) {
			h := enginetest.NewHost(t, enginetest.MemoryLinks(2), ibverbx.Config{Lanes: 2}) // its rails do not close while objects remain
			region := h.Region(64)
			cq, err := h.Rails.NewCQ(ibverbx.CQConfig{SharedReceives: c.shared})
			enginetest.Must(t, err)
			q, err := cq.NewQP(ibverbx.Config{Lanes: c.lanes})
			enginetest.Must(t, err)
			card, err := q.Card()
			enginetest.Must(t, err)
			enginetest.Must(t, q.Connect(card))
			if err := cq.Close(); !errors.Is(err, verbs.ErrBusy) {
				t.Fatalf("Close of a VirtualCQ in use = %v, want %v", err, verbs.ErrBusy)
			}
			wr := ibverbx.SendWR{WRID: 6, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: region.Remote()}
			wr.SetSGE(region.SGE(0, 64))
			if n, err := q.PostSend([]ibverbx.SendWR{wr}); n != 1 || err != nil {
				t.Fatalf("PostSend after a Close that was refused = %d, %v; want 1", n, err)
			}
			var all []ibverbx.WC
			for range 3 {
				wcs := make([]ibverbx.WC, 4)
				n, err := cq.Poll(wcs)
				enginetest.Must(t, err)
				all = append(all, wcs[:n]...)
			}
			wantIDs(t, all, 6)
			enginetest.Must(t, q.Close())
			enginetest.Must(t, cq.Close())
			wantClosed(t, cq, q, wr)
		})
	}
}

// wantClosed checks that calls on closed objects return ErrClosed.
func wantClosed(t *testing.T, cq *ibverbx.VirtualCQ, q *ibverbx.VirtualQP, wr ibverbx.SendWR) {
	t.Helper()
	if n, err := q.PostSend([]ibverbx.SendWR{wr}); n != 0 || !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("PostSend on a closed VirtualQP = %d, %v; want 0, %v", n, err, verbs.ErrClosed)
	}
	if n, err := q.PostRecv([]ibverbx.RecvWR{{}}); n != 0 || !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("PostRecv on a closed VirtualQP = %d, %v; want 0, %v", n, err, verbs.ErrClosed)
	}
	if n, err := cq.Poll(make([]ibverbx.WC, 4)); n != 0 || !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Poll of a closed VirtualCQ = %d, %v; want 0, %v", n, err, verbs.ErrClosed)
	}
	if _, err := cq.NewQP(ibverbx.Config{}); err == nil {
		t.Error("NewQP on a closed VirtualCQ succeeded")
	}
	enginetest.Must(t, q.Close())
}

// TestDefectG23BadReceiveUnknown: the original could not report which receive of a chain the NIC had refused.
// PostRecv returns the number of accepted receives, and the rest can be posted later.
func TestDefectG23BadReceiveUnknown(t *testing.T) {
	const receives = 100
	for _, lanes := range []int{1, 2} {
		for _, after := range []int{0, 1, 31, 32, 33, 99} {
			t.Run(fmt.Sprintf("lanes=%d/after=%d", lanes, after), func(t *testing.T) {
				x := newFaulty(t, ibverbx.Config{Lanes: lanes}, newFaultNIC())
				wrs := make([]ibverbx.RecvWR, receives)
				for i := range wrs {
					wrs[i].WRID = uint64(i)
					wrs[i].SetSGE(x.Region.SGE(uint64(i*8), 8))
				}
				cause := errors.New("no memory for a receive")
				x.fault.refuseReceives(after, cause)
				n, err := x.QP.PostRecv(wrs)
				if n != after || !errors.Is(err, cause) {
					t.Fatalf("PostRecv = %d, %v; want %d, %v", n, err, after, cause)
				}
				x.fault.refuseReceives(1<<30, nil)
				if n, err := x.QP.PostRecv(wrs[n:]); n != receives-after || err != nil {
					t.Fatalf("PostRecv of the rest = %d, %v; want %d", n, err, receives-after)
				}
				message := x.NIC.QPs()[0]
				if lanes > 1 {
					message = x.NIC.QPs()[lanes]
				}
				for i := range receives {
					if at := message.Waiting()[0].SGE[0].Addr; at != x.Region.Remote().Addr+uint64(i*8) {
						t.Fatalf("receive %d has another buffer", i)
					}
					message.Receive(verbs.WC{Opcode: verbs.WCRecv, ByteLen: 8})
				}
				wantIDs(t, x.Settle(), upTo(receives)...)
			})
		}
	}
}

// TestDefectG30QueueTooSmall: the original did not check that its CQ could hold its QPs' completions, and
// lost some. Here a CQ that is too small is refused; the smallest accepted one holds everything, with both
// sides full and without polling.
func TestDefectG30QueueTooSmall(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		cfg := ibverbx.Config{Lanes: 3, Scheme: scheme, LaneDepth: 5, NotifyDepth: 6, RecvDepth: 7, SendDepth: 64, SignalInterval: 1}
		links := enginetest.MemoryLinks(1)
		a, b := enginetest.NewHost(t, links, ibverbx.Config{Lanes: 1}), enginetest.NewHost(t, links, ibverbx.Config{Lanes: 1})
		var qps [2]*ibverbx.VirtualQP
		var cards [2]*ibverbx.Card
		for i, h := range []*enginetest.Host{a, b} {
			h.CQ, qps[i] = smallest(t, h.Rails, cfg)
			var err error
			cards[i], err = qps[i].Card()
			enginetest.Must(t, err)
		}
		enginetest.Must(t, qps[0].Connect(cards[1]))
		enginetest.Must(t, qps[1].Connect(cards[0]))
		for _, q := range qps {
			if n, err := q.PostRecv(make([]ibverbx.RecvWR, 7)); n != 7 || err != nil {
				t.Fatalf("PostRecv = %d, %v; want 7", n, err)
			}
			for i := range 64 {
				if n, err := q.PostSend([]ibverbx.SendWR{{WRID: uint64(i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled}}); n != 1 || err != nil {
					t.Fatalf("PostSend %d = %d, %v; want 1", i, n, err)
				}
			}
		}
		delivered, later := 0, 0
		for turns := 0; later < 2000 && turns < 10_000_000; turns++ { // retries after RNR take time; later polls must find no more
			if delivered >= 2*7 {
				later++
			}
			for _, h := range []*enginetest.Host{a, b} {
				for _, wc := range h.Poll() {
					if err := wc.Err(); err != nil {
						t.Fatalf("completion of %d: %v", wc.WRID, err)
					}
					if wc.Opcode == verbs.WCRecvRDMAWithImm {
						delivered++
					}
				}
			}
		}
		if delivered != 2*7 {
			t.Errorf("%d receives ended, want 7 on each side", delivered)
		}
		for i, q := range qps {
			if q.Err() != nil {
				t.Errorf("side %d: Err = %v, want none", i, q.Err())
			}
		}
	})
}

// smallest returns a VirtualQP on the smallest VirtualCQ that is large enough for it. One
// must be too small.
func smallest(t *testing.T, rails *ibverbx.Rails, cfg ibverbx.Config) (*ibverbx.VirtualCQ, *ibverbx.VirtualQP) {
	t.Helper()
	for depth := 1; depth < 1000; depth++ {
		cq, err := rails.NewCQ(ibverbx.CQConfig{Depth: depth})
		enginetest.Must(t, err)
		t.Cleanup(func() { enginetest.Must(t, cq.Close()) })
		q, err := cq.NewQP(cfg)
		if err == nil && depth == 1 {
			t.Error("a VirtualCQ for one completion is large enough for a VirtualQP")
		}
		if err == nil {
			t.Cleanup(func() { enginetest.Must(t, q.Close()) })
			return cq, q
		}
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Fatalf("NewQP on a VirtualCQ for %d = %v, want %v", depth, err, verbs.ErrInvalid)
		}
	}
	t.Fatal("no VirtualCQ is large enough")
	return nil, nil
}

// TestDefectG31OneDeviceOnly: the original created all QPs on the first device, and others had to be wired by
// hand. Here lanes are spread evenly over the rails, and each uses its own keys.
func TestDefectG31OneDeviceOnly(t *testing.T) {
	const rails, lanes, fragment = 3, 6, 100
	a, b := enginetest.NewPair(t, enginetest.MemoryLinks(rails), ibverbx.Config{Lanes: lanes, FragmentSize: fragment})
	a.Region(16) // so that the keys of the two sides are not the same by chance
	local, remote := a.Region(lanes*fragment), b.Region(lanes*fragment)
	wr := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
	wr.SetSGE(local.SGE(0, lanes*fragment))
	if len(wr.Remote.RKeys) != rails {
		t.Fatalf("the region has %d keys, want %d", len(wr.Remote.RKeys), rails)
	}
	a.PostSend(wr)
	wcs := a.Wait(1)
	if err := wcs[0].Err(); err != nil {
		t.Fatalf("the request ended with %v, want success", err)
	}
	perRail := make([]int, rails)
	for _, l := range a.QP.Stats().Lanes {
		if l.Role == "data" {
			perRail[l.Rail]++
		}
	}
	for i, s := range a.QP.Stats().Rails {
		if perRail[i] != lanes/rails || s.Bytes != lanes/rails*fragment || a.NICs[i].Stats().PacketsSent == 0 {
			t.Errorf("rail %d has %d lanes that carried %d bytes in %d packets; want %d lanes and %d bytes",
				i, perRail[i], s.Bytes, a.NICs[i].Stats().PacketsSent, lanes/rails, lanes/rails*fragment)
		}
	}
}

// TestDefectG32IDsTruncated: the original kept IDs in 32 bits. Here sends and both kinds of receives return
// all 64 bits.
func TestDefectG32IDsTruncated(t *testing.T) {
	const id = 0xfedcba9876543210
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		for _, lanes := range []int{1, 3} {
			a, b := enginetest.NewPair(t, enginetest.MemoryLinks(1), ibverbx.Config{Lanes: lanes, Scheme: scheme})
			local, remote := a.Region(64), b.Region(64)
			data := ibverbx.RecvWR{WRID: id + 1}
			data.SetSGE(remote.SGE(0, 64))
			b.PostRecv(ibverbx.RecvWR{WRID: id}, data)
			write := ibverbx.SendWR{WRID: id + 2, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote()}
			write.SetSGE(local.SGE(0, 64))
			send := ibverbx.SendWR{WRID: id + 3, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
			send.SetSGE(local.SGE(0, 64))
			a.PostSend(write, send)
			wantIDs(t, a.Wait(2), id+2, id+3)
			delivered := b.Wait(2) // in any order: they are two queues
			slices.SortFunc(delivered, func(x, y ibverbx.WC) int { return cmp.Compare(x.WRID, y.WRID) })
			wantIDs(t, delivered, id, id+1)
		}
	})
}
