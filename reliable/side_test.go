package reliable_test

import (
	"errors"
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// watched is a context whose RC QPs, the side QPs, count how often their state is asked for, and
// say that they are in the error state if early is set.
type watched struct {
	verbs.Context
	asked int
	early bool
}

type watchedPD struct {
	verbs.PD
	ctx *watched
}

type watchedQP struct {
	verbs.QP
	ctx *watched
}

func (c *watched) AllocPD() (verbs.PD, error) {
	pd, err := c.Context.AllocPD()
	return watchedPD{pd, c}, err
}

func (p watchedPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	q, err := p.PD.CreateQP(cfg)
	if err != nil || cfg.Type != verbs.RC {
		return q, err
	}
	return watchedQP{q, p.ctx}, nil
}

func (q watchedQP) State() verbs.QPState {
	q.ctx.asked++
	if q.ctx.early {
		return verbs.StateErr
	}
	return q.QP.State()
}

// TestSideStateBeforeCompletion: a READ fails, and the state of the side QP is there before the
// completion that says why. It ends with that, and not as one that was flushed.
func TestSideStateBeforeCompletion(t *testing.T) {
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	c := &watched{}
	a := newSideOver(t, w.link, w.config(reliable.Config{Paths: 2}), 4096, func(inner verbs.Context) verbs.Context { c.Context = inner; return c })
	b := newSide(t, w.link, w.config(reliable.Config{Paths: 2}), 4096)
	connect(t, a, b)
	wr := verbs.SendWR{Opcode: verbs.OpRDMARead, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey() ^ 0x5500}
	wr.SetSGE(a.sge(0, 100))
	c.early = true
	a.post(t, wr)
	for w.now < int64(time.Second) {
		var wc [1]verbs.WC
		if n, err := a.cq.Poll(wc[:]); n == 1 {
			if wc[0].Status != verbs.StatusRemAccessErr {
				t.Fatalf("a READ with a wrong key ended with %v, want %v", wc[0].Status, verbs.StatusRemAccessErr)
			}
			return
		} else if err != nil {
			t.Fatalf("Poll = %v, want none", err)
		}
		w.step(int64(time.Second), []*side{a, b})
	}
	t.Fatalf("the READ has not ended after a second, want %v", verbs.StatusRemAccessErr)
}

// TestSideDown: the QP of a peer whose READ was wrong fails, though nothing else happens.
func TestSideDown(t *testing.T) {
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	c := &watched{}
	a := newSideOver(t, w.link, w.config(reliable.Config{Paths: 2}), 4096, func(inner verbs.Context) verbs.Context { c.Context = inner; return c })
	b := newSide(t, w.link, w.config(reliable.Config{Paths: 2}), 4096)
	connect(t, a, b)
	c.early = true
	for w.now < int64(10*time.Millisecond) {
		w.step(int64(10*time.Millisecond), []*side{a, b})
	}
	if s := a.qp.State(); s != verbs.StateErr {
		t.Fatalf("the QP is %v 10 ms after its side QP went down, want %v", s, verbs.StateErr)
	}
}

// TestFailedQPNeedsNoTimer: a QP that has failed with its side QP has nothing left to do, so no step is
// due, however long it stays open.
func TestFailedQPNeedsNoTimer(t *testing.T) {
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	a, b := newPair(t, w.link, w.config(reliable.Config{Paths: 2}), 4096)
	a.nic.Reset()
	w.pass(10*time.Millisecond, a, b)
	if s := a.qp.State(); s != verbs.StateErr {
		t.Fatalf("the QP is %v 10 ms after its NIC was reset, want %v", s, verbs.StateErr)
	}
	if at, pending := a.ctx.(reliable.Stepper).Step(); pending {
		t.Fatalf("Step wants to be called again in %v, want never", time.Duration(at-w.now))
	}
}

// TestSideStateIsRarelyAsked: polling asks the device for no state, which is a system call, but
// once in a while.
func TestSideStateIsRarelyAsked(t *testing.T) {
	w := newWorld(t, softnic.Impairment{})
	c := &watched{}
	a := newSideOver(t, w.link, w.config(reliable.Config{Paths: 2}), 4096, func(inner verbs.Context) verbs.Context { c.Context = inner; return c })
	b := newSide(t, w.link, w.config(reliable.Config{Paths: 2}), 4096)
	connect(t, a, b)
	c.asked = 0
	const polls, ms = 10_000, 5
	for range polls {
		w.now += ms * int64(time.Millisecond) / polls
		if n, err := a.cq.Poll(make([]verbs.WC, 1)); n != 0 || err != nil {
			t.Fatalf("Poll = %d, %v, want nothing", n, err)
		}
	}
	if c.asked > ms+1 {
		t.Fatalf("%d polls in %d ms asked for the state %d times, want once a millisecond", polls, ms, c.asked)
	}
}

// TestSideRefusesPost: a READ that the side QP refuses ends as a NIC would end it, whose QP has
// failed, or is posted again if the queue was full.
func TestSideRefusesPost(t *testing.T) {
	for _, tt := range []struct {
		name   string
		refuse func(a *side) error
		want   verbs.Status
	}{
		{"full queue", func(a *side) error { return a.nic.RefuseSend(a.qp.Num(), 0, nil) }, verbs.StatusSuccess},
		{"broken QP", func(a *side) error { return a.nic.RefuseSend(a.qp.Num(), 0, errors.New("broken")) }, verbs.StatusWRFlushErr},
		{"wrong request", func(a *side) error { return a.nic.RefuseSend(a.qp.Num(), 0, verbs.ErrInvalid) }, verbs.StatusLocQPOpErr},
		{"failed device", func(a *side) error { a.nic.Fail(); return nil }, verbs.StatusWRFlushErr},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := newPair(t, softnic.NewMemoryLink(nil), reliable.Config{Paths: 2}, 4096)
			wr := verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
			wr.SetSGE(a.sge(0, 100))
			a.post(t, wr) // the first post is the card
			must(t, a.wait(t, 1)[0].Err())
			must(t, tt.refuse(a))
			for i := range 3 {
				wr.WRID = uint64(i)
				a.post(t, wr)
			}
			a.nic.Recover()
			for i, wc := range a.wait(t, 3) {
				want := tt.want
				if i > 0 && want != verbs.StatusSuccess {
					want = verbs.StatusWRFlushErr
				}
				if wc.WRID != uint64(i) || wc.Status != want {
					t.Errorf("completion %d is of %d: %v, want %v", i, wc.WRID, wc.Status, want)
				}
			}
		})
	}
}
