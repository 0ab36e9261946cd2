package softnic_test

import (
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestHold: held packets arrive only when released.
func TestHold(t *testing.T) {
	w := newWorld(t, softnic.FaultConfig{Impairment: softnic.Impairment{Delay: time.Microsecond}})
	r := newRig(t, w.link)
	mem, src := memory(t, r.pa, 64)
	back, dst := memory(t, r.pb, 64)
	cq := newCQ(t, r.ca, 64)
	qa, _ := r.pair(verbs.RC, cq, newCQ(t, r.cb, 4), 32)
	mem.Bytes()[0], back.Bytes()[0] = 77, 0
	postWrites(t, qa, src, dst, 1)
	w.link.Hold(r.a, r.b) // while the packet is in flight
	w.now += int64(time.Millisecond)
	w.link.Step()
	if got := w.link.Held(r.a, r.b); got != 1 || back.Bytes()[0] != 0 {
		t.Errorf("%d packets are held and the first byte is %d, want 1 and 0", got, back.Bytes()[0])
	}
	w.link.Release(r.a, r.b)
	if back.Bytes()[0] != 77 || w.link.Held(r.a, r.b) != 0 {
		t.Errorf("after Release the first byte is %d, want 77; %d are held", back.Bytes()[0], w.link.Held(r.a, r.b))
	}
	w.settle(t)
	if wcs := poll(t, cq); len(wcs) != 1 || wcs[0].Err() != nil {
		t.Errorf("completions = %+v, want one success", wcs)
	}
}

// TestLatePacketAfterReset: packets released by a Hold after their QP was reset and another created do not
// land anywhere.
func TestLatePacketAfterReset(t *testing.T) {
	w := newWorld(t, softnic.FaultConfig{})
	r := newRig(t, w.link)
	mem, src := memory(t, r.pa, 64)
	back, dst := memory(t, r.pb, 64)
	qa, qb := r.pair(verbs.RC, newCQ(t, r.ca, 64), newCQ(t, r.cb, 4), 32)
	mem.Bytes()[0], back.Bytes()[0] = 77, 0
	w.link.Hold(r.a, r.b)
	postWrites(t, qa, src, dst, 1)
	w.link.Step()
	for _, q := range []verbs.QP{qa, qb} {
		must(t, q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
	}
	connect(t, qa, qb)
	before := r.b.Stats()
	w.link.Release(r.a, r.b)
	w.settle(t)
	if back.Bytes()[0] != 0 {
		t.Errorf("the late packet was placed: the first byte is %d, want 0", back.Bytes()[0])
	}
	if got := r.b.Stats().PacketsReceived; got != before.PacketsReceived+1 {
		t.Errorf("%d packets received, want %d", got, before.PacketsReceived+1)
	}
}

// TestNext: a link reports its next event time, without side effects.
func TestNext(t *testing.T) {
	w := newWorld(t, softnic.FaultConfig{Impairment: softnic.Impairment{Delay: 5 * time.Microsecond}})
	r := newRig(t, w.link)
	_, src := memory(t, r.pa, 64)
	_, dst := memory(t, r.pb, 64)
	cq := newCQ(t, r.ca, 64)
	qa, _ := r.pair(verbs.RC, cq, newCQ(t, r.cb, 4), 32)
	if at, pending := w.link.Next(); pending {
		t.Errorf("something is due at %d on an idle link", at)
	}
	postWrites(t, qa, src, dst, 1)
	for range 2 {
		if at, pending := w.link.Next(); !pending || at != 5000 {
			t.Errorf("Next = %d, %v; want 5000", at, pending)
		}
	}
	w.now = 5000
	if w.link.Step(); len(poll(t, cq)) != 0 {
		t.Error("the request completed before its acknowledgement came")
	}
	if at, pending := w.link.Next(); !pending || at != 10_000 {
		t.Errorf("Next = %d, %v; want 10000", at, pending)
	}
	if got := w.link.Impairment(r.a, r.b).Delay; got != 5*time.Microsecond {
		t.Errorf("Impairment.Delay = %v, want 5µs", got)
	}
}
