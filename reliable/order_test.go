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
	nic, err := softnic.New(softnic.NewMemoryLink(nil), NICConfig())
	fatal(t, err)
	inner, err := nic.Open()
	fatal(t, err)
	now := int64(1)
	ctx, err := Wrap(inner, Config{Paths: 1, Now: func() int64 { return now }})
	fatal(t, err)
	pd, err := ctx.AllocPD()
	fatal(t, err)
	cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 16})
	fatal(t, err)
	q, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
	fatal(t, err)
	ep, err := q.Endpoint()
	fatal(t, err)
	fatal(t, q.Connect(ep)) // to itself
	c := q.(*qp).conn
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
			if _, err := cq.Poll(make([]verbs.WC, 1)); err != nil {
				t.Fatalf("Poll = %v, want none", err)
			}
			if now++; p.posted == p.done {
				break
			}
		}
	}
	fatal(t, ctx.Close())
	fatal(t, nic.Close())
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("error %v, want none", err)
	}
}
