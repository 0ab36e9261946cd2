package reliable

import (
	"testing"

	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestControlPacketsLeaveRoom: a peer sends far more probes on one path than its QP can answer. Staged
// responses leave space for all chunks that the core may send, each with its own header slot, and sent
// responses free their slots.
func TestControlPacketsLeaveRoom(t *testing.T) {
	now := int64(1)
	q, _ := newQP(t, softnic.NewMemoryLink(nil), NICConfig(), 0, Config{Paths: 1, Now: func() int64 { return now }})
	q.connectTo(t, q)
	c := q.conn
	for round := range 10 {
		for range 3 * pathSlots {
			c.sendRecord(&core.Action{Route: core.RoutePath, Record: wire.Record{Type: wire.Solicit}})
		}
		p := &c.paths[0]
		if n := p.posted - p.done; n != maxControls || n+pathDepth > pathSlots {
			t.Fatalf("round %d: %d control packets are staged, want %d: a path has %d sends and %d chunks", round, n, maxControls, pathSlots, pathDepth)
		}
		c.markDirty()
		for range 100 {
			if _, err := q.sendCQ.Poll(make([]verbs.WC, 1)); err != nil {
				t.Fatalf("Poll = %v, want none", err)
			}
			if now++; p.posted == p.done {
				break
			}
		}
	}
}
