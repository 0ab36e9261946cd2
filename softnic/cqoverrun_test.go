package softnic_test

import (
	"errors"
	"slices"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// postWrites posts n signaled WRITEs of 8 bytes.
func postWrites(t *testing.T, q verbs.QP, src, dst verbs.MR, n int) {
	t.Helper()
	wrs := slices.Repeat([]verbs.SendWR{writeWR(src, dst, 8)}, n)
	if posted, err := q.PostSend(wrs); posted != n || err != nil {
		t.Fatalf("PostSend = %d, %v, want %d", posted, err, n)
	}
}

// TestOverrunCQRefusesQPs: an overrun CQ cannot be used for a new QP, neither for sends nor for receives,
// because its completions would be lost.
func TestOverrunCQRefusesQPs(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	_, src := memory(t, r.pa, 64)
	_, dst := memory(t, r.pb, 64)
	small, big := newCQ(t, r.ca, 2), newCQ(t, r.ca, 64)
	qa, _ := r.pair(verbs.RC, small, newCQ(t, r.cb, 4), 8)
	postWrites(t, qa, src, dst, 4)
	for _, cfg := range []verbs.QPConfig{
		{Type: verbs.RC, SendCQ: small, RecvCQ: big},
		{Type: verbs.UD, SendCQ: big, RecvCQ: small},
	} {
		if _, err := r.pa.CreateQP(cfg); !errors.Is(err, verbs.ErrCQOverrun) {
			t.Errorf("CreateQP on an overrun CQ = %v, want ErrCQOverrun", err)
		}
	}
	if _, err := r.pa.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: big, RecvCQ: big}); err != nil {
		t.Errorf("CreateQP on another CQ = %v", err)
	}
}

// TestSecondOverrun: an overrun CQ keeps failing the QPs it cannot report for. A QP not connected at the
// first overrun moves to the error state, with an event, when it loses a completion later.
func TestSecondOverrun(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	_, src := memory(t, r.pa, 64)
	_, dst := memory(t, r.pb, 64)
	small, cqB := newCQ(t, r.ca, 2), newCQ(t, r.cb, 4)
	late, err := r.pa.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: small, RecvCQ: small, MaxSendWR: 8})
	must(t, err)
	peer, err := r.pb.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cqB, RecvCQ: cqB})
	must(t, err)
	first, _ := r.pair(verbs.RC, small, cqB, 8)
	postWrites(t, first, src, dst, 4)
	if got := first.State(); got != verbs.StateErr {
		t.Errorf("the QP that overran is in %v, want ERR", got)
	}
	var wcs [8]verbs.WC
	if n, err := small.Poll(wcs[:]); n != 2 || err != nil {
		t.Errorf("Poll = %d, %v; want the 2 that fitted", n, err)
	}
	if n, err := small.Poll(wcs[:]); n != 0 || !errors.Is(err, verbs.ErrCQOverrun) {
		t.Errorf("Poll = %d, %v; want ErrCQOverrun", n, err)
	}
	eventTypes(t, r.ca)

	connect(t, late, peer)
	postWrites(t, late, src, dst, 4)
	if got := late.State(); got != verbs.StateErr {
		t.Errorf("the QP of the second overrun is in %v, want ERR", got)
	}
	if got := eventTypes(t, r.ca); !slices.Contains(got, verbs.EventQPFatal) || slices.Contains(got, verbs.EventCQErr) {
		t.Errorf("events of the second overrun = %v, want EventQPFatal, and EventCQErr only once", got)
	}
}

// TestOverrunGivesBackSRQSlots: receives whose completions were lost in an overrun release their SRQ slots.
func TestOverrunGivesBackSRQSlots(t *testing.T) {
	const slots = 8
	r := newRig(t, softnic.NewMemoryLink(nil))
	small := newCQ(t, r.cb, 1)
	srq, err := r.pb.CreateSRQ(verbs.SRQConfig{MaxWR: slots})
	must(t, err)
	cqA := newCQ(t, r.ca, 64)
	qa, err := r.pa.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cqA, RecvCQ: cqA, MaxSendWR: 8})
	must(t, err)
	qb, err := r.pb.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: newCQ(t, r.cb, 4), RecvCQ: small, SRQ: srq})
	must(t, err)
	connect(t, qa, qb)
	if n, err := srq.PostRecv(make([]verbs.RecvWR, slots)); n != slots || err != nil {
		t.Fatalf("PostRecv = %d, %v", n, err)
	}
	if _, err := qa.PostSend(slices.Repeat([]verbs.SendWR{{Opcode: verbs.OpSend}}, 4)); err != nil {
		t.Fatal(err)
	}
	if got := qb.State(); got != verbs.StateErr {
		t.Fatalf("the QP whose receive CQ overran is in %v, want ERR", got)
	}
	must(t, qb.Close())
	// Exactly as many as the sends consumed can be posted again.
	taken := 4
	n, err := srq.PostRecv(make([]verbs.RecvWR, slots))
	if n != taken || !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("PostRecv after the overrun = %d, %v; want %d and ErrQueueFull", n, err, taken)
	}
}
