package reliable

import (
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestControlSlotsAfterRevival revives a control QP with completions pending from before, and stages as many
// packets as there are slots. A stale completion must not free a slot: the next packet would overwrite an
// unsent one.
func TestControlSlotsAfterRevival(t *testing.T) {
	q, _ := newQP(t, softnic.NewMemoryLink(nil), NICConfig(), 0, Config{})
	e := q.engine
	h := &e.resources
	for i := range h.control {
		c := &h.control[i]
		for slot := range uint32(3) {
			e.inbox.stash = append(e.inbox.stash,
				verbs.WC{WRID: tagControlSend.with(h.id, i, slot), QPN: c.qp.Num(), Status: verbs.StatusSuccess})
		}
		c.fail()
	}
	h.revive()
	gid, err := q.ctx.QueryGID(1, 0)
	fatal(t, err)
	ah, err := h.pd.CreateAH(verbs.AHAttr{DGID: gid.GID, Port: 1})
	fatal(t, err)
	for i := range h.control {
		c := &h.control[i]
		for range controlSends + 1 {
			c.stage([]byte{1}, ah, 1, h.qkey)
		}
		if c.failed || len(c.chain) != controlSends {
			t.Errorf("control QP %d: failed is %v, and it has staged %d packets, want %d", i, c.failed, len(c.chain), controlSends)
		}
		c.chain = c.chain[:0] // they never leave
	}
	e.drive()
	for i := range h.control {
		if c := &h.control[i]; c.done != 0 {
			t.Errorf("control QP %d: %d packets have left their slots, want 0", i, c.done)
		}
	}
}
