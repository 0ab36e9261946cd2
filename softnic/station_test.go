package softnic

import (
	"testing"

	"ibverbx/verbs"
)

// station is a NIC with one of everything, for tests that look inside.
type station struct {
	t   *testing.T
	nic *NIC
	ctx verbs.Context
	pd  verbs.PD
	cq  verbs.CQ
	mem *verbs.Memory
	mr  verbs.MR
}

// newStation plugs a NIC into link; it is closed when the test ends.
func newStation(t *testing.T, link Link, depth int, cfg Config) *station {
	t.Helper()
	s := &station{t: t}
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

// qp makes a QP with n slots each way.
func (s *station) qp(typ verbs.QPType, n int) *qp {
	s.t.Helper()
	q, err := s.pd.CreateQP(verbs.QPConfig{Type: typ, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: n, MaxRecvWR: n})
	check(s.t, err)
	return q.(*qp)
}

// sge names n bytes at off of the station's memory.
func (s *station) sge(off uint64, n uint32) verbs.SGE {
	return verbs.SGE{Addr: s.mr.Addr() + off, Length: n, LKey: s.mr.LKey()}
}

// to makes a signaled request of 8 bytes from the station's memory to that of peer.
func (s *station) to(peer *station, op verbs.Opcode) verbs.SendWR {
	wr := verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: peer.mr.Addr(), RKey: peer.mr.RKey()}
	wr.SetSGE(s.sge(0, 8))
	return wr
}

// poll takes what the station's CQ has.
func (s *station) poll() []verbs.WC {
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

// post posts requests, all of which must be taken.
func post(t *testing.T, q *qp, wrs ...verbs.SendWR) {
	t.Helper()
	if n, err := q.PostSend(wrs); n != len(wrs) || err != nil {
		t.Fatalf("PostSend = %d, %v, want %d", n, err, len(wrs))
	}
}

// settleLink runs a link on virtual time until nothing is due any more.
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
