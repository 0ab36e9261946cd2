package reliable

import (
	"testing"

	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestSRQHostilePeer: a peer that sends messages beyond its granted receives does not get any. Its requests
// leave receives for others.
func TestSRQHostilePeer(t *testing.T) {
	nic, err := softnic.New(softnic.NewMemoryLink(nil), NICConfig())
	fatal(t, err)
	inner, err := nic.Open()
	fatal(t, err)
	ctx, err := Wrap(inner, Config{Paths: 1, Now: func() int64 { return 1 }})
	fatal(t, err)
	pd, err := ctx.AllocPD()
	fatal(t, err)
	cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 16})
	fatal(t, err)
	v, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: 16})
	fatal(t, err)
	s := v.(*srq)
	if n, err := s.PostRecv(make([]verbs.RecvWR, 16)); n != 16 {
		t.Fatalf("PostRecv = %d, %v, want 16", n, err)
	}
	u, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, SRQ: v})
	fatal(t, err)
	ep, err := u.Endpoint()
	fatal(t, err)
	fatal(t, u.Connect(ep)) // to itself
	q := u.(*qp)
	h := wire.Header{Op: wire.OpEager, Flags: wire.FlagLast}
	for _, messages := range []uint32{0, 10_000} {
		q.step(&core.Event{Kind: core.EvRecord, Record: wire.Record{Type: wire.Solicit, Want: messages}})
		promised := min(messages, 8)
		if q.shared.granted != promised {
			t.Fatalf("%d receives are promised to a peer that asks for %d of 16, want %d", q.shared.granted, messages, promised)
		}
		for _, n := range []uint32{promised, promised + 1, 255, 256, 1 << 30} {
			h.Message = n
			if status := q.conn.check(q.flow, &h); status != core.StatusNoRecv || s.recvs.Len() != 16 {
				t.Errorf("message %d, %d are promised: status %d, %d receives are left, want no receive", n, promised, status, s.recvs.Len())
			}
		}
	}
	fatal(t, ctx.Close())
	fatal(t, nic.Close())
}
