package softnic_test

import (
	"errors"
	"slices"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestReset: resetting a NIC moves its QPs to the error state and raises an event. Once reconnected, they
// carry traffic again, with the existing regions.
func TestReset(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	mem, src := memory(t, r.pa, 64)
	back, dst := memory(t, r.pb, 64)
	cq := newCQ(t, r.ca, 64)
	qa, qb := r.pair(verbs.RC, cq, newCQ(t, r.cb, 4), 32)
	r.a.Fail()
	if _, err := r.ca.AllocPD(); !errors.Is(err, verbs.ErrDeviceFatal) {
		t.Errorf("AllocPD on a NIC that failed = %v, want %v", err, verbs.ErrDeviceFatal)
	}
	r.a.Recover()
	if got := eventTypes(t, r.ca); !slices.Equal(got, []verbs.EventType{verbs.EventDeviceFatal, verbs.EventPortActive}) {
		t.Errorf("events = %v, want EventDeviceFatal, EventPortActive", got)
	}
	if qa.State() != verbs.StateErr {
		t.Errorf("the QP is in %v, want ERR", qa.State())
	}
	for _, q := range []verbs.QP{qa, qb} {
		must(t, q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
	}
	connect(t, qa, qb)
	mem.Bytes()[0], back.Bytes()[0] = 77, 0
	postWrites(t, qa, src, dst, 1)
	if wcs := poll(t, cq); len(wcs) != 1 || wcs[0].Err() != nil || back.Bytes()[0] != 77 {
		t.Errorf("completions = %+v and the first byte is %d, want one success and 77", wcs, back.Bytes()[0])
	}
	pd, err := r.ca.AllocPD()
	must(t, err)
	must(t, pd.Close())
	r.a.Reset()
	if qa.State() != verbs.StateErr {
		t.Errorf("the QP is in %v after Reset, want ERR", qa.State())
	}
	if n, err := r.ca.Events(make([]verbs.Event, 8)); n != 2 || err != nil {
		t.Errorf("Events after Reset = %d, %v; want 2", n, err)
	}
}
