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

// polled runs the world until s has n completions, which must all have status want, and returns the elapsed time. The
// limit is 1 s for success and 10 s for errors.
func (w *world) polled(t *testing.T, s *side, n int, want verbs.Status, awake ...*side) time.Duration {
	t.Helper()
	start := w.now
	within := time.Second
	if want != verbs.StatusSuccess {
		within = 10 * time.Second
	}
	wcs := make([]verbs.WC, 64)
	for limit := start + int64(within); ; w.step(limit, awake) {
		k, err := s.cq.Poll(wcs[:min(n, 64)])
		must(t, err)
		for _, wc := range wcs[:k] {
			if wc.Status != want {
				t.Fatalf("completion %+v, want %v", wc, want)
			}
		}
		if n -= k; n == 0 {
			return time.Duration(w.now - start)
		}
		if w.now >= limit {
			t.Fatalf("%d completions are missing after %v", n, within)
		}
	}
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
	a.post(t, a.write(b, 0, 100))
	for w.now < int64(time.Millisecond) { // B's NIC receives the card, but B does not poll
		w.step(int64(time.Millisecond), []*side{a})
	}
	must(t, b.qp.Close())
	w.polled(t, a, 1, verbs.StatusRetryExcErr, a, b)
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
	wr := a.write(b, 0, 100)
	attr := verbs.ConnectAttr(eb, ea, 1, 1)
	attr.RNRRetry = 1
	must(t, verbs.ConnectWith(halfway{b.qp, func() {
		a.byModify(t, eb)
		a.post(t, wr)
		for limit := w.now + int64(time.Millisecond); w.now < limit; { // B gets the card of A
			w.step(limit, []*side{a, b})
		}
	}}, attr))
	w.polled(t, a, 1, verbs.StatusSuccess, a, b)
	b.post(t, b.send(0, 100))
	w.polled(t, b, 1, verbs.StatusRNRRetryExcErr, a, b)
}
