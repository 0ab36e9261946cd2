package ibverbx_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"ibverbx"
	"ibverbx/internal/nullnic"
	"ibverbx/internal/rig"
	"ibverbx/verbs"
)

// bench is a VirtualQP over NICs that a test plays like an instrument.
type bench struct {
	t     *rapid.T
	nics  []*nullnic.NIC
	lanes []*nullnic.QP
	cq    *ibverbx.VirtualCQ
	qp    *ibverbx.VirtualQP
	mem   *ibverbx.Region
	base  uint64 // address of the remote region

	posted []ibverbx.SendWR
	done   []ibverbx.WC
	// ended says how many bytes of each request the NICs have completed, and seen
	// how many of the requests that each lane took were looked at.
	ended  []uint64
	seen   []int
	failed bool
}

const benchMemory = 1 << 20

func newBench(t *rapid.T) *bench {
	b := &bench{t: t}
	var cfgs []ibverbx.RailConfig
	for i := range rapid.IntRange(1, 3).Draw(t, "rails") {
		nic := nullnic.New(fmt.Sprintf("null%d", i), 0x11) // the same QP numbers on each
		b.nics = append(b.nics, nic)
		cfgs = append(cfgs, ibverbx.RailConfig{Context: nic})
	}
	rails, err := ibverbx.NewRails(cfgs...)
	rig.Must(t, err)
	b.cq, err = rails.NewCQ(ibverbx.CQConfig{})
	rig.Must(t, err)
	b.qp, err = b.cq.NewQP(ibverbx.Config{
		Lanes:           rapid.IntRange(1, 9).Draw(t, "lanes"),
		Policy:          ibverbx.Policy(rapid.IntRange(0, 1).Draw(t, "policy")),
		SendDepth:       rapid.SampledFrom([]int{1, 4, 32}).Draw(t, "depth"),
		LaneDepth:       rapid.SampledFrom([]int{1, 2, 7, 64}).Draw(t, "lane depth"),
		FragmentSize:    rapid.SampledFrom([]uint32{0, 100, 1000}).Draw(t, "fragment"),
		SignalInterval:  rapid.SampledFrom([]int{1, 3, 16}).Draw(t, "interval"),
		TrackSingleLane: true,
	})
	rig.Must(t, err)
	card, err := b.qp.Card()
	rig.Must(t, err)
	rig.Must(t, b.qp.Connect(card))
	mem, err := verbs.AllocMemory(benchMemory, nil)
	rig.Must(t, err)
	b.mem, err = rails.Register(mem, verbs.AccessAll)
	rig.Must(t, err)
	b.base = b.mem.Remote().Addr
	t.Cleanup(func() { rig.Must(t, b.mem.Close()); rig.Must(t, mem.Free()) })
	for _, nic := range b.nics {
		for _, q := range nic.QPs() {
			q.Hold()
			b.lanes = append(b.lanes, q)
		}
	}
	b.seen = make([]int, len(b.lanes))
	return b
}

// remoteOf gives request i a range of its own, so that a fragment says whose it is.
func remoteOf(i int) uint64 { return uint64(i) * 4096 }

func (b *bench) post() {
	var wrs []ibverbx.SendWR
	for range rapid.IntRange(1, 5).Draw(b.t, "chain") {
		i := len(b.posted) + len(wrs)
		wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWrite, Remote: b.mem.Remote(), RemoteOffset: remoteOf(i)}
		if rapid.Bool().Draw(b.t, "read") {
			wr.Opcode = verbs.OpRDMARead
		}
		if rapid.IntRange(0, 3).Draw(b.t, "unsignaled") > 0 {
			wr.Flags |= verbs.SendSignaled
		}
		if rapid.IntRange(0, 5).Draw(b.t, "fence") == 0 {
			wr.Flags |= verbs.SendFence
		}
		first := uint32(rapid.IntRange(0, 700).Draw(b.t, "first piece"))
		second := uint32(rapid.IntRange(1, 700).Draw(b.t, "second piece"))
		wr.SetSGE(b.mem.SGE(0, first), b.mem.SGE(5000, second))
		wrs = append(wrs, wr)
	}
	n, err := b.qp.PostSend(wrs)
	if n < len(wrs) && err == nil {
		b.t.Fatalf("PostSend = %d of %d without an error", n, len(wrs))
	}
	b.posted = append(b.posted, wrs[:n]...)
	for range n {
		b.ended = append(b.ended, 0)
	}
	b.look()
}

// request returns the index of the request that a physical one belongs to.
func (b *bench) request(wr *verbs.SendWR) int { return int((wr.RemoteAddr - b.base) / 4096) }

// look checks what the lanes took since the last look: a fenced request begins only when
// everything before it has ended.
func (b *bench) look() {
	for i, l := range b.lanes {
		for ; b.seen[i] < len(l.Taken); b.seen[i]++ {
			if marker(&l.Taken[b.seen[i]]) {
				continue
			}
			k := b.request(&l.Taken[b.seen[i]])
			if b.posted[k].Flags&verbs.SendFence == 0 {
				continue
			}
			for j := range k {
				if b.ended[j] != b.posted[j].Length() {
					b.t.Fatalf("fenced request %d began while request %d had %d of %d bytes complete", k, j, b.ended[j], b.posted[j].Length())
				}
			}
		}
	}
}

// complete ends some requests of a lane.
func (b *bench) complete() {
	l := b.lanes[rapid.IntRange(0, len(b.lanes)-1).Draw(b.t, "lane")]
	if len(l.Posted()) == 0 {
		return
	}
	n := rapid.IntRange(1, len(l.Posted())).Draw(b.t, "count")
	for i := range l.Posted()[:n] {
		b.end(&l.Posted()[i])
	}
	l.Complete(n)
}

// end counts the bytes of a fragment that a NIC has completed.
func (b *bench) end(wr *verbs.SendWR) {
	if !marker(wr) {
		b.ended[b.request(wr)] += wr.Length()
	}
}

// marker reports whether wr is not a fragment but marks a place (lane.mark).
func marker(wr *verbs.SendWR) bool { return wr.Opcode == verbs.OpSend }

// fail ends a lane's oldest request with an error, once.
func (b *bench) fail() {
	l := b.lanes[rapid.IntRange(0, len(b.lanes)-1).Draw(b.t, "lane")]
	if len(l.Posted()) > 0 && !b.failed {
		b.failed = true
		l.Fail(verbs.StatusRemAccessErr)
	}
}

func (b *bench) refuse() {
	l := b.lanes[rapid.IntRange(0, len(b.lanes)-1).Draw(b.t, "lane")]
	l.RefuseAt(rapid.IntRange(0, 4).Draw(b.t, "position"), verbs.ErrQueueFull)
}

func (b *bench) poll() {
	dst := make([]ibverbx.WC, rapid.IntRange(0, 6).Draw(b.t, "room"))
	n, err := b.cq.Poll(dst)
	if err != nil {
		b.t.Fatalf("Poll: %v", err)
	}
	for _, wc := range dst[:n] {
		if wc.Status == verbs.StatusSuccess && b.ended[wc.WRID] != b.posted[wc.WRID].Length() {
			b.t.Fatalf("request %d reported with %d of %d bytes complete", wc.WRID, b.ended[wc.WRID], b.posted[wc.WRID].Length())
		}
	}
	b.done = append(b.done, dst[:n]...)
	b.look()
}

// drain completes and polls until nothing moves any more.
func (b *bench) drain() {
	idle := 0
	for range 10_000 {
		busy := false
		for _, l := range b.lanes {
			l.RefuseAt(1<<20, nil)
			for i := range l.Posted() {
				b.end(&l.Posted()[i])
			}
			l.Complete(len(l.Posted()))
		}
		dst := make([]ibverbx.WC, 8)
		n, err := b.cq.Poll(dst)
		if err != nil {
			b.t.Fatalf("Poll: %v", err)
		}
		b.done = append(b.done, dst[:n]...)
		b.look()
		for _, l := range b.lanes {
			busy = busy || len(l.Posted()) > 0
		}
		// A failure on one rail makes completions on another that was polled before.
		if n > 0 || busy {
			idle = 0
		} else if idle++; idle == 3 {
			return
		}
	}
	b.t.Fatal("does not come to rest")
}

// TestEngineModel plays random posts, completions, refusals and at most one failure, and
// holds the contract: one completion for each signaled request or failed one, in posting
// order; every byte handed to a NIC exactly once; nothing reported before it has ended;
// after an error all that follows is flushed.
func TestEngineModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(rt)
		withFailure := rapid.IntRange(0, 3).Draw(rt, "with failure") == 0
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0, 1, 2:
				b.post()
			case 3, 4, 5:
				b.complete()
			case 6:
				b.refuse()
			case 7:
				if withFailure {
					b.fail()
				}
			default:
				b.poll()
			}
		}
		b.drain()
		b.verify()
	})
}

// verify compares the whole run with what it must have been.
func (b *bench) verify() {
	k := 0
	for i := range b.posted {
		reported := k < len(b.done) && b.done[k].WRID == uint64(i)
		if !reported {
			if b.posted[i].Flags&verbs.SendSignaled != 0 || b.ended[i] != b.posted[i].Length() {
				b.t.Fatalf("request %d was not reported (%d of %d bytes complete)", i, b.ended[i], b.posted[i].Length())
			}
			continue
		}
		wc := &b.done[k]
		k++
		if wc.QP != b.qp {
			b.t.Fatalf("completion of request %d names another QP", i)
		}
		if wc.Status == verbs.StatusSuccess && wc.ByteLen != uint32(b.posted[i].Length()) {
			b.t.Fatalf("request %d: %d bytes reported, want %d", i, wc.ByteLen, b.posted[i].Length())
		}
		if !b.failed && wc.Status != verbs.StatusSuccess {
			b.t.Fatalf("request %d: %v without a failure", i, wc.Err())
		}
	}
	if k != len(b.done) {
		b.t.Fatalf("%d completions too many, the first of request %d", len(b.done)-k, b.done[k].WRID)
	}
	if b.failed != (b.qp.Err() != nil) {
		b.t.Fatalf("Err = %v with a failure: %v", b.qp.Err(), b.failed)
	}
	b.verifyBytes()
}

// verifyBytes checks that the fragments of each request cover it exactly once, from the
// right local bytes.
func (b *bench) verifyBytes() {
	covered := make(map[uint64]bool)
	for _, l := range b.lanes {
		for i := range l.Taken {
			wr := &l.Taken[i]
			if marker(wr) {
				continue
			}
			at := wr.RemoteAddr
			for _, e := range wr.SGE[:wr.NumSGE] {
				for n := range uint64(e.Length) {
					if covered[at] {
						b.t.Fatalf("byte %d of request %d was handed over twice", at-b.base-remoteOf(b.request(wr)), b.request(wr))
					}
					covered[at] = true
					off := at - b.base - remoteOf(b.request(wr))
					want := b.localByte(&b.posted[b.request(wr)], off)
					if got := e.Addr + n - b.base; got != want {
						b.t.Fatalf("byte %d of request %d comes from %d, want %d", off, b.request(wr), got, want)
					}
					at++
				}
			}
		}
	}
	if b.failed {
		return
	}
	for i := range b.posted {
		for off := range b.posted[i].Length() {
			if !covered[b.base+remoteOf(i)+off] {
				b.t.Fatalf("byte %d of request %d was never handed over", off, i)
			}
		}
	}
}

// localByte is the place in the region that byte off of a request comes from.
func (b *bench) localByte(wr *ibverbx.SendWR, off uint64) uint64 {
	for _, e := range wr.SGE[:wr.NumSGE] {
		if off < uint64(e.Length) {
			return e.Offset + off
		}
		off -= uint64(e.Length)
	}
	return 1 << 62
}
