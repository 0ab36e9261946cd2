package reliable_test

import (
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// world is wrapped contexts and their network on a clock of the test.
type world struct {
	now  int64
	link *softnic.FaultLink
}

func newWorld(tb testing.TB, i softnic.Impairment) *world {
	tb.Helper()
	w := &world{now: 1}
	var err error
	w.link, err = softnic.NewFaultLink(&softnic.FaultConfig{Seed: 3, Now: func() int64 { return w.now }, Impairment: i})
	must(tb, err)
	return w
}

// config returns cfg with the clock of the world.
func (w *world) config(cfg reliable.Config) reliable.Config {
	cfg.Now = func() int64 { return w.now }
	return cfg
}

// step runs the due events of the network and of the awake sides, and advances to the next event, at most to
// limit.
func (w *world) step(limit int64, awake []*side) {
	next := limit
	if at, ok := w.link.Step(); ok {
		next = min(next, at)
	}
	for _, s := range awake {
		if at, ok := s.ctx.(reliable.Stepper).Step(); ok {
			next = min(next, at)
		}
	}
	if at, ok := w.link.Next(); ok {
		next = min(next, at)
	}
	w.now = max(w.now, next)
}

// byModify connects s's QP to peer's with Modify only.
func (s *side) byModify(tb testing.TB, peer verbs.Endpoint) {
	tb.Helper()
	own, err := s.qp.Endpoint()
	must(tb, err)
	attr := verbs.ConnectAttr(own, peer, 1, 1)
	attr.Timeout, attr.RetryCount = 8, 1 // 1 ms
	must(tb, verbs.ConnectWith(s.qp, attr))
}

// TestPeerLeavesUnanswered: a QP is closed after its NIC received the peer's card, but before responding. The
// peer's request must fail, as on RC, instead of waiting forever.
func TestPeerLeavesUnanswered(t *testing.T) {
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	a := newSide(t, w.link, w.config(reliable.Config{Paths: 2}), 4096)
	b := newSide(t, w.link, w.config(reliable.Config{Paths: 2}), 4096)
	ea, err := a.qp.Endpoint()
	must(t, err)
	eb, err := b.qp.Endpoint()
	must(t, err)
	a.byModify(t, eb)
	b.byModify(t, ea)
	wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	wr.SetSGE(a.sge(0, 100))
	a.post(t, wr)
	for w.now < int64(time.Millisecond) { // B's NIC receives the card, but B does not poll
		w.step(int64(time.Millisecond), []*side{a})
	}
	must(t, b.qp.Close())
	for w.now < int64(10*time.Second) {
		var wc [1]verbs.WC
		if n, err := a.cq.Poll(wc[:]); n == 1 {
			if wc[0].Status != verbs.StatusRetryExcErr {
				t.Fatalf("the request ended with %v, want RETRY_EXC", wc[0].Status)
			}
			return
		} else if err != nil {
			t.Fatalf("Poll = %v, want none", err)
		}
		w.step(int64(10*time.Second), []*side{a, b})
	}
	t.Fatalf("the request of a QP whose peer has gone has not ended after 10 s, want RETRY_EXC")
}

// halfway is a QP that calls pause before it moves to RTS.
type halfway struct {
	verbs.QP
	pause func()
}

func (h halfway) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	if mask&verbs.AttrState != 0 && attr.State == verbs.StateRTS {
		h.pause()
	}
	return h.QP.Modify(attr, mask)
}

// TestPatienceOfRTS: a QP learns its peer's paths while in RTR. The attributes set by the later Modify to RTS
// still apply: a SEND without a receive fails according to RNRRetry.
func TestPatienceOfRTS(t *testing.T) {
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	a := newSide(t, w.link, w.config(reliable.Config{Paths: 2}), 4096)
	b := newSide(t, w.link, w.config(reliable.Config{Paths: 2}), 4096)
	ea, err := a.qp.Endpoint()
	must(t, err)
	eb, err := b.qp.Endpoint()
	must(t, err)
	poll := func(s *side, want verbs.Status) {
		t.Helper()
		for limit := w.now + int64(10*time.Second); w.now < limit; w.step(limit, []*side{a, b}) {
			var wc [1]verbs.WC
			if n, err := s.cq.Poll(wc[:]); n == 1 {
				if wc[0].Status != want {
					t.Fatalf("the request ended with %v, want %v", wc[0].Status, want)
				}
				return
			} else if err != nil {
				t.Fatalf("Poll = %v, want none", err)
			}
		}
		t.Fatalf("the request has not ended after 10 s, want %v", want)
	}
	wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	wr.SetSGE(a.sge(0, 100))
	attr := verbs.ConnectAttr(eb, ea, 1, 1)
	attr.RNRRetry = 1
	must(t, verbs.ConnectWith(halfway{b.qp, func() {
		a.byModify(t, eb)
		a.post(t, wr)
		for limit := w.now + int64(time.Millisecond); w.now < limit; { // B gets the card of A
			w.step(limit, []*side{a, b})
		}
	}}, attr))
	poll(a, verbs.StatusSuccess)
	send := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	send.SetSGE(b.sge(0, 100))
	b.post(t, send)
	poll(b, verbs.StatusRNRRetryExcErr)
}
