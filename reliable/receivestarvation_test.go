package reliable_test

import (
	"bytes"
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestStarvation: 64 senders write and send to 64 QPs of one context, whose program stalls for 10 ms in the
// middle, with the minimum of receives for 64 QPs. In virtual time, no message is dropped for lack of a
// receive, and all of them arrive.
func TestStarvation(t *testing.T) {
	for name, tt := range map[string]struct {
		refuse func(*verbs.QPConfig) bool
		depth  int
	}{"shared": {nil, 64 * 16}, "per path": {noSharedUC, 64 * 2 * 8}} {
		t.Run(name, func(t *testing.T) { starve(t, tt.refuse, tt.depth) })
	}
}

const (
	starveSenders = 64
	starveRounds  = 4
	starveBytes   = 20_000
)

func starve(t *testing.T, refuse func(*verbs.QPConfig) bool, depth int) {
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	cfg := w.config(reliable.Config{Paths: 2, ChunkBytes: 1024, Window: 64, MinProbe: 50_000, RecvBytes: depth * 1024})
	nic, inner := openWithout(t, w.link, refuse, 0)
	b := newSideOn(t, nic, inner, cfg, starveSenders*starveRounds*2*starveBytes)
	qps := []verbs.QP{b.qp}
	for len(qps) < starveSenders {
		qps = append(qps, b.another(t))
	}
	cfg.RecvBytes = 16 * 1024 // the senders do not receive data
	senders := make([]*side, starveSenders)
	for i := range senders {
		a := newSide(t, w.link, cfg, 2*starveRounds*starveBytes)
		senders[i] = a
		a.fill(byte(i))
		join(t, a.qp, qps[i])
		base := 2 * starveRounds * starveBytes * i
		for r := range starveRounds {
			off := 2 * r * starveBytes
			rw := verbs.RecvWR{}
			rw.SetSGE(b.sge(base+off+starveBytes, starveBytes))
			if n, err := qps[i].PostRecv([]verbs.RecvWR{rw}); n != 1 {
				t.Fatalf("PostRecv = %d, %v, want 1", n, err)
			}
			wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: b.mr.Addr() + uint64(base+off), RKey: b.mr.RKey()}
			wr.SetSGE(a.sge(off, starveBytes))
			a.post(t, wr)
			a.post(t, a.send(off+starveBytes, starveBytes))
		}
	}
	w.stall(t, b, senders)
	for i, a := range senders {
		base := 2 * starveRounds * starveBytes * i
		if !bytes.Equal(a.mem.Bytes(), b.mem.Bytes()[base:base+2*starveRounds*starveBytes]) {
			t.Fatalf("the bytes of sender %d differ", i)
		}
	}
	st := nic.Stats()
	if st.MessagesDropped != 0 {
		t.Fatalf("%d messages were dropped for want of a receive, want 0", st.MessagesDropped)
	}
	t.Logf("done after %d us, %d packets", w.now/1000, st.PacketsReceived)
}

// stall runs all sides until all requests have completed; b pauses at 100 us for 10 ms.
func (w *world) stall(t *testing.T, b *side, senders []*side) {
	const from, to, end = int64(100 * time.Microsecond), int64(10100 * time.Microsecond), int64(2 * time.Second)
	everyone := append([]*side{b}, senders...)
	left, taken := starveSenders*starveRounds, starveSenders*starveRounds
	var wcs [16]verbs.WC
	take := func(s *side, rest *int) {
		for {
			n, err := s.cq.Poll(wcs[:])
			must(t, err)
			for _, wc := range wcs[:n] {
				must(t, wc.Err())
			}
			if *rest -= n; n == 0 {
				return
			}
		}
	}
	for left+taken > 0 {
		switch {
		case w.now >= from && w.now < to:
			w.step(to, senders)
		case w.now < from:
			w.step(from, everyone)
		default:
			w.step(end, everyone)
		}
		for _, s := range senders {
			take(s, &left)
		}
		if w.now < from || w.now >= to {
			take(b, &taken)
		}
		if w.now >= end {
			t.Fatalf("after 2 s %d sends and %d receives have not completed", left, taken)
		}
	}
}

// TestMoreThanOneStep: when more arrives than one Step handles, Step reports immediate work instead of
// leaving the rest to the next timer.
func TestMoreThanOneStep(t *testing.T) {
	reliable.OverUC(t, "room for so many chunks")
	const senders, chunk, window = 128, 1024, 16
	s := newStar(t, softnic.Impairment{Delay: time.Microsecond},
		reliable.Config{Paths: 2, ChunkBytes: chunk, Window: window}, senders, 1e12, chunk*window)
	for i := range senders {
		s.write(t, i, chunk*window)
	}
	for range 20 { // the receiver does not look
		s.now += 1000
		s.link.Step()
	}
	steps := 0
	for {
		at, ok := s.to.ctx.(reliable.Stepper).Step()
		if steps++; !ok || at > s.now || steps > 10 {
			break
		}
	}
	if steps < 2 || steps > 4 {
		t.Fatalf("%d steps for %d chunks, want one per 1024, and perhaps one more", steps, senders*window)
	}
}
