package reliable

import (
	"slices"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestControlSlotsAfterRevival revives a control QP while a completion of one of its packets waits to be
// dispatched. The slot must not become free twice: the second packet would overwrite the first.
func TestControlSlotsAfterRevival(t *testing.T) {
	nic, err := softnic.New(softnic.NewMemoryLink(nil), softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	inner, err := nic.Open()
	if err != nil {
		t.Fatal(err)
	}
	wrapped, err := Wrap(inner, Config{Now: func() int64 { return 1 }})
	if err != nil {
		t.Fatal(err)
	}
	ctx := wrapped.(*pathContext)
	v, err := ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	p := v.(*pd)
	if err := p.prepare(&verbs.QPConfig{}); err != nil {
		t.Fatal(err)
	}
	for i := range p.control {
		c := &p.control[i]
		for slot := range uint32(3) {
			ctx.inbox.stash = append(ctx.inbox.stash,
				verbs.WC{WRID: tagControlSend.with(p.id, i, slot), QPN: c.qp.Num(), Status: verbs.StatusSuccess})
		}
		c.fail()
	}
	ctx.revive()
	ctx.drive()
	for i := range p.control {
		c := &p.control[i]
		if c.failed || len(c.free) != controlSends || len(slices.Compact(slices.Sorted(slices.Values(c.free)))) != controlSends {
			t.Errorf("control QP %d: failed is %v and the free slots are %v, want each of %d once", i, c.failed, c.free, controlSends)
		}
	}
	if err := ctx.Close(); err != nil {
		t.Fatal(err)
	}
	if err := nic.Close(); err != nil {
		t.Fatal(err)
	}
}
