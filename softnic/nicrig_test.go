package softnic

import (
	"testing"

	"ibverbx/verbs"
)

// nicRig is a NIC with one object of each kind, for white-box tests.
type nicRig struct {
	t   testing.TB
	nic *NIC
	ctx verbs.Context
	pd  verbs.PD
	cq  verbs.CQ
	mem *verbs.Memory
	mr  verbs.MR
}

// newNICRig plugs a NIC into link, closed at the end of the test.
func newNICRig(t testing.TB, link Link, depth int, cfg Config) *nicRig {
	t.Helper()
	s := &nicRig{t: t}
	var err error
	s.mem, err = verbs.AllocMemory(64<<10, nil)
	check(t, err)
	t.Cleanup(func() { check(t, s.mem.Free()) })
	s.nic, err = New(link, cfg)
	check(t, err)
	t.Cleanup(func() { check(t, s.nic.Close()) })
	s.ctx, err = s.nic.Open()
	check(t, err)
	s.pd, err = s.ctx.AllocPD()
	check(t, err)
	s.cq, err = s.ctx.CreateCQ(verbs.CQConfig{Depth: depth})
	check(t, err)
	s.mr, err = s.pd.RegisterMemory(s.mem, verbs.AccessAll)
	check(t, err)
	return s
}

// qp creates a QP with n slots in each direction.
func (s *nicRig) qp(typ verbs.QPType, n int) *qp {
	s.t.Helper()
	q, err := s.pd.CreateQP(verbs.QPConfig{Type: typ, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: n, MaxRecvWR: n})
	check(s.t, err)
	return q.(*qp)
}

// sge names n bytes at off of the rig's memory.
func (s *nicRig) sge(off uint64, n uint32) verbs.SGE {
	return verbs.SGE{Addr: s.mr.Addr() + off, Length: n, LKey: s.mr.LKey()}
}

// to returns a signaled 8-byte request from the rig's memory to peer's.
func (s *nicRig) to(peer *nicRig, op verbs.Opcode) verbs.SendWR {
	wr := verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: peer.mr.Addr(), RKey: peer.mr.RKey()}
	wr.SetSGE(s.sge(0, 8))
	return wr
}

// poll returns the completions in the rig's CQ.
func (s *nicRig) poll() []verbs.WC {
	s.t.Helper()
	wcs := make([]verbs.WC, 64)
	n, err := s.cq.Poll(wcs)
	check(s.t, err)
	return wcs[:n]
}

// join connects two QPs, or one with itself.
func join(t *testing.T, a, b *qp) {
	t.Helper()
	ea, err := a.Endpoint()
	check(t, err)
	eb, err := b.Endpoint()
	check(t, err)
	check(t, a.Connect(eb))
	if a != b {
		check(t, b.Connect(ea))
	}
}

// post posts requests and fails the test unless all are accepted.
func post(t *testing.T, q *qp, wrs ...verbs.SendWR) {
	t.Helper()
	if n, err := q.PostSend(wrs); n != len(wrs) || err != nil {
		t.Fatalf("PostSend = %d, %v, want %d", n, err, len(wrs))
	}
}

// settleLink runs a link in virtual time until no event is due.
func settleLink(t *testing.T, link Link, now *int64) {
	t.Helper()
	for range 1_000_000 {
		next, pending := link.Step()
		if !pending {
			return
		}
		*now = max(*now, next)
	}
	t.Fatal("the link does not come to rest")
}
