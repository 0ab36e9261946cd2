package reliable_test

import (
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestControlQPsReturn fails the NIC of a PD whose first QP stays open, in error, so that the control QPs
// stay too. Another QP of the PD must work like one of a new PD: its requests complete before a probe is due,
// so the control QPs carried the acknowledgements.
func TestControlQPsReturn(t *testing.T) {
	for _, tt := range []struct {
		name  string
		early bool          // the second QP's endpoint is read before the NIC fails
		down  time.Duration // outage of the NIC
	}{
		{"QP made after a reset", false, 0},
		{"endpoint given out before a reset", true, 0},
		{"QP made after an outage", false, 50 * time.Millisecond},
		{"endpoint given out before an outage", true, 50 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
			a, b := newPair(t, w.link, w.config(reliable.Config{Paths: 2}), 4096)
			w.write(t, a, b)
			later := *b
			later.qp = b.another(t)
			ep, err := later.qp.Endpoint()
			must(t, err)
			if !tt.early {
				must(t, later.qp.Close())
			}
			b.nic.Fail()
			w.pass(tt.down, a, b)
			b.nic.Recover()
			w.pass(2*time.Millisecond, a, b)
			if s := b.qp.State(); s != verbs.StateErr {
				t.Fatalf("the first QP is %v after its NIC has failed, want %v", s, verbs.StateErr)
			}
			if !tt.early {
				later.qp = b.another(t)
				ep, err = later.qp.Endpoint()
				must(t, err)
			}
			peer := newSide(t, w.link, w.config(reliable.Config{Paths: 2}), 4096)
			own, err := peer.qp.Endpoint()
			must(t, err)
			must(t, peer.qp.Connect(ep))
			must(t, later.qp.Connect(own))
			for range 300 { // more than a control QP has receives
				w.write(t, peer, &later)
				w.write(t, &later, peer)
			}
		})
	}
}

// write posts a WRITE from a to b, which must complete before a probe is due.
func (w *world) write(t *testing.T, a, b *side) {
	t.Helper()
	a.post(t, a.write(b, 0, 100))
	if took := w.polled(t, a, 1, verbs.StatusSuccess, a, b); took > 500*time.Microsecond {
		t.Fatalf("the WRITE took %v, want less than 500 us", took)
	}
}

// pass advances time by d.
func (w *world) pass(d time.Duration, awake ...*side) {
	for limit := w.now + int64(d); w.now < limit; {
		w.step(limit, awake)
	}
}

// TestFailedQPNeedsNoTimer: a QP that failed with its NIC is idle and does not arm a timer, however long it
// stays open.
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
