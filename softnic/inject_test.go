package softnic_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestRefuseSend: only the send at the given position is refused, once, whether it is in this chain or a
// later one.
func TestRefuseSend(t *testing.T) {
	broken := errors.New("the device says no")
	for _, want := range []error{verbs.ErrQueueFull, broken} {
		for after := range 9 {
			t.Run(fmt.Sprintf("%v/after=%d", want, after), func(t *testing.T) {
				r := newRig(t, softnic.NewMemoryLink(nil))
				_, src := memory(t, r.pa, 64)
				_, dst := memory(t, r.pb, 64)
				cq := newCQ(t, r.ca, 64)
				qa, _ := r.pair(verbs.RC, cq, newCQ(t, r.cb, 4), 32)
				must(t, r.a.RefuseSend(qa.Num(), after, injectable(want)))
				taken, refusals := 0, 0
				for taken < 12 && refusals < 2 {
					n, err := qa.PostSend(slices.Repeat([]verbs.SendWR{writeWR(src, dst, 8)}, 3))
					taken += n
					if err == nil {
						continue
					}
					if refusals++; !errors.Is(err, want) || taken != after || n == 3 {
						t.Fatalf("PostSend = %d of 3, %v after %d sends; want %v after %d", n, err, taken, want, after)
					}
				}
				if refusals != 1 {
					t.Errorf("%d posts were refused, want 1", refusals)
				}
				if wcs := poll(t, cq); len(wcs) != taken {
					t.Errorf("%d completions of %d sends", len(wcs), taken)
				}
			})
		}
	}
}

// injectable returns the argument that injects err: nil means back-pressure.
func injectable(err error) error {
	if errors.Is(err, verbs.ErrQueueFull) {
		return nil
	}
	return err
}

// TestRefuseRecv is TestRefuseSend for receives.
func TestRefuseRecv(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	qa, _ := r.pair(verbs.RC, newCQ(t, r.ca, 64), newCQ(t, r.cb, 4), 32)
	must(t, r.a.RefuseRecv(qa.Num(), 2, nil))
	if n, err := qa.PostRecv(make([]verbs.RecvWR, 1)); n != 1 || err != nil {
		t.Errorf("PostRecv = %d, %v; want 1", n, err)
	}
	if n, err := qa.PostRecv(make([]verbs.RecvWR, 4)); n != 1 || !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("PostRecv = %d, %v; want 1, %v", n, err, verbs.ErrQueueFull)
	}
	if n, err := qa.PostRecv(make([]verbs.RecvWR, 4)); n != 4 || err != nil {
		t.Errorf("PostRecv after the refusal = %d, %v; want 4", n, err)
	}
	if err := r.a.RefuseRecv(qa.Num(), -1, nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("RefuseRecv after -1 = %v, want %v", err, verbs.ErrInvalid)
	}
	if err := r.a.RefuseSend(1<<20, 0, nil); !errors.Is(err, verbs.ErrNotFound) {
		t.Errorf("RefuseSend on no QP = %v, want %v", err, verbs.ErrNotFound)
	}
}

// TestFailQP: a QP failed from outside flushes its requests and raises an event.
func TestFailQP(t *testing.T) {
	w := newWorld(t, softnic.FaultConfig{})
	r := newRig(t, w.link)
	_, src := memory(t, r.pa, 64)
	_, dst := memory(t, r.pb, 64)
	cq := newCQ(t, r.ca, 64)
	qa, qb := r.pair(verbs.RC, cq, newCQ(t, r.cb, 4), 32)
	w.link.Cut(r.a, r.b)
	postWrites(t, qa, src, dst, 3)
	must(t, r.a.FailQP(qa.Num()))
	if qa.State() != verbs.StateErr || qb.State() != verbs.StateRTS {
		t.Errorf("states = %v, %v; want ERR, and the peer untouched", qa.State(), qb.State())
	}
	wcs := poll(t, cq)
	if len(wcs) != 3 || slices.ContainsFunc(wcs, func(wc verbs.WC) bool { return wc.Status != verbs.StatusWRFlushErr }) {
		t.Errorf("completions = %+v, want 3 that are flushed", wcs)
	}
	if got := eventTypes(t, r.ca); !slices.Equal(got, []verbs.EventType{verbs.EventQPFatal}) {
		t.Errorf("events = %v, want EventQPFatal", got)
	}
}

// TestFailCQ: a CQ failed from outside fails its QPs, and reports the error once it is empty.
func TestFailCQ(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	_, src := memory(t, r.pa, 64)
	_, dst := memory(t, r.pb, 64)
	cq, other := newCQ(t, r.ca, 64), newCQ(t, r.cb, 4)
	qa, _ := r.pair(verbs.RC, cq, other, 32)
	postWrites(t, qa, src, dst, 2)
	must(t, r.a.FailCQ(cq))
	if qa.State() != verbs.StateErr {
		t.Errorf("the QP is in %v, want ERR", qa.State())
	}
	if n, err := cq.Poll(make([]verbs.WC, 8)); n != 2 || err != nil {
		t.Errorf("Poll = %d, %v; want the 2 that were there", n, err)
	}
	if _, err := cq.Poll(make([]verbs.WC, 1)); !errors.Is(err, verbs.ErrCQOverrun) {
		t.Errorf("Poll = %v, want %v", err, verbs.ErrCQOverrun)
	}
	if got := eventTypes(t, r.ca); !slices.Contains(got, verbs.EventCQErr) || !slices.Contains(got, verbs.EventQPFatal) {
		t.Errorf("events = %v, want EventCQErr and EventQPFatal", got)
	}
	if err := r.a.FailCQ(other); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("FailCQ of another NIC = %v, want %v", err, verbs.ErrInvalid)
	}
}
