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

// TestSRQGrantFailsQP: a grant to one QP of a shared connection is the first step of the connection after another QP has failed, and
// fails a third one that waits for receives as well. The remaining receives stay free.
func TestSRQGrantFailsQP(t *testing.T) {
	const n = 3
	link, cfg := softnic.NewMemoryLink(nil), Config{Paths: 2, Flows: 4}
	first, p := newQP(t, link, NICConfig(), 0, cfg)
	v, err := p.CreateSRQ(verbs.SRQConfig{MaxWR: 16})
	fatal(t, err)
	_, far := newQP(t, link, NICConfig(), 0, cfg)
	var qps [n]*qp
	for i := range qps {
		of := first.cfg
		of.MaxRecvWR, of.SRQ = 0, v
		u, err := p.CreateQP(of)
		fatal(t, err)
		of = first.cfg
		of.SendCQ = far.engines[0].cqs[0]
		of.RecvCQ = of.SendCQ
		w, err := far.CreateQP(of)
		fatal(t, err)
		qps[i] = u.(*qp)
		qps[i].connectTo(t, w.(*qp))
		w.(*qp).connectTo(t, qps[i])
		qps[i].handshake.sendFirstCard()
		w.(*qp).handshake.sendFirstCard()
	}
	for range 100 {
		p.ctx.Step()
		far.ctx.Step()
	}
	c := qps[0].conn
	for i, q := range qps {
		if !q.ready || q.conn != c {
			t.Fatalf("QP %d is ready: %v, want all of them on one connection", i, q.ready)
		}
	}
	for _, q := range qps[:2] {
		q.step(&core.Event{Kind: core.EvRecord, Record: wire.Record{Type: wire.Solicit, Flow: q.flow, Want: 1}})
	}
	qps[1].step(&core.Event{Kind: core.EvClose, Status: uint8(verbs.StatusRetryExcErr)}) // as after GiveUp for a response
	_, err = qps[2].PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
	fatal(t, err)
	fatal(t, qps[2].Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState))
	if s := v.(*srq); s.waiting.Len() != 2 || qps[1].state != verbs.StateRTS {
		t.Fatalf("%d QPs wait for receives, one of them is %v, want 2 in RTS", s.waiting.Len(), qps[1].state)
	}
	if k, err := v.PostRecv(make([]verbs.RecvWR, 4)); k != 4 {
		t.Fatalf("PostRecv = %d, %v, want 4", k, err)
	}
	if s := v.(*srq); s.waiting.Len() != 0 || s.ungranted() != 3 {
		t.Errorf("%d QPs wait and %d receives are free, want none and 3", s.waiting.Len(), s.ungranted())
	}
}

// oneReceive is a PD whose SRQs accept one receive.
type oneReceive struct{ verbs.PD }

func (p oneReceive) CreateSRQ(cfg verbs.SRQConfig) (verbs.SRQ, error) {
	cfg.MaxWR = 1
	return p.PD.CreateSRQ(cfg)
}

// TestSRQKeepsReceives: a UD QP is to use an SRQ whose receives the device does not accept. The SRQ keeps all of them.
func TestSRQKeepsReceives(t *testing.T) {
	q, p := newQP(t, softnic.NewMemoryLink(nil), NICConfig(), 0, Config{Paths: 2})
	v, err := p.CreateSRQ(verbs.SRQConfig{MaxWR: 16})
	fatal(t, err)
	if n, err := v.PostRecv(make([]verbs.RecvWR, 16)); n != 16 {
		t.Fatalf("PostRecv = %d, %v, want 16", n, err)
	}
	p.inner = oneReceive{p.inner}
	if _, err := p.CreateQP(verbs.QPConfig{Type: verbs.UD, SendCQ: q.sendCQ, RecvCQ: q.recvCQ, SRQ: v}); err == nil {
		t.Fatal("CreateQP = nil, want the error of the device")
	}
	if s := v.(*srq); s.recvs.Len() != 16 || s.inner != nil {
		t.Errorf("the SRQ has %d receives after an error, want 16", s.recvs.Len())
	}
}
