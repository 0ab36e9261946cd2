package reliable_test

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// patience is the test timeout. Only a failing test reaches it, and it allows for a busy machine.
const patience = time.Minute

// side is one wrapped context with a connected QP and memory.
type side struct {
	nic *softnic.NIC
	ctx verbs.Context
	pd  verbs.PD
	cq  verbs.CQ
	qp  verbs.QP
	mem *verbs.Memory
	mr  verbs.MR
	// away is memory that the peer has read. The peer may retry a READ, so the memory must not change before
	// the NIC is closed.
	away *[]shelf
}

// shelf is memory that a peer reads.
type shelf struct {
	mem *verbs.Memory
	mr  verbs.MR
}

// shelf returns n bytes of new memory for the peer to read, closed with the side.
func (s *side) shelf(tb testing.TB, n int, seed byte) shelf {
	tb.Helper()
	mem, err := verbs.AllocMemory(max(n, 1), nil)
	must(tb, err)
	pattern(mem.Bytes(), seed)
	mr, err := s.pd.RegisterMemory(mem, verbs.AccessAll)
	must(tb, err)
	*s.away = append(*s.away, shelf{mem, mr})
	return shelf{mem, mr}
}

// must fails the test on error.
var must = enginetest.Must

// newSide opens a wrapped context on a new NIC of the link, closed at the end of the test.
func newSide(tb testing.TB, link softnic.Link, cfg reliable.Config, size int) *side {
	tb.Helper()
	return newSideOver(tb, link, cfg, size, func(inner verbs.Context) verbs.Context { return inner })
}

// newSideOver is newSide with a layer between the NIC and its wrapper.
func newSideOver(tb testing.TB, link softnic.Link, cfg reliable.Config, size int, between func(verbs.Context) verbs.Context) *side {
	tb.Helper()
	if cfg.GiveUp == 0 && cfg.Now == nil {
		cfg.GiveUp = int64(patience)
	}
	nic, err := softnic.New(link, reliable.NICConfig())
	must(tb, err)
	tb.Cleanup(func() { must(tb, nic.Close()) })
	inner, err := nic.Open()
	must(tb, err)
	return newSideOn(tb, nic, between(inner), cfg, size)
}

// newSideOn wraps an open context of a NIC.
func newSideOn(tb testing.TB, nic *softnic.NIC, inner verbs.Context, cfg reliable.Config, size int) *side {
	tb.Helper()
	return newSealedSide(tb, nic, inner, cfg, size, nil)
}

// newSealedSide is newSideOn with a Seal, which may be nil.
func newSealedSide(tb testing.TB, nic *softnic.NIC, inner verbs.Context, cfg reliable.Config, size int, seal verbs.Seal) *side {
	tb.Helper()
	var err error
	s := &side{nic: nic, away: new([]shelf)}
	s.ctx, err = reliable.Wrap(inner, cfg)
	must(tb, err)
	s.pd, err = s.ctx.AllocPD()
	must(tb, err)
	s.cq, err = s.ctx.CreateCQ(verbs.CQConfig{Depth: 1024})
	must(tb, err)
	s.qp, err = s.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64, Path: verbs.PathConfig{Seal: seal}})
	must(tb, err)
	s.mem, err = verbs.AllocMemory(size, nil)
	must(tb, err)
	s.mr, err = s.pd.RegisterMemory(s.mem, verbs.AccessAll)
	must(tb, err)
	tb.Cleanup(func() {
		must(tb, s.qp.Close())
		must(tb, s.cq.Close())
		for _, f := range append(*s.away, shelf{s.mem, s.mr}) {
			must(tb, f.mr.Close())
		}
		must(tb, s.pd.Close())
		must(tb, s.ctx.Close())
		for _, f := range append(*s.away, shelf{s.mem, s.mr}) {
			must(tb, f.mem.Free())
		}
	})
	return s
}

// newPair returns two connected sides.
func newPair(tb testing.TB, link softnic.Link, cfg reliable.Config, size int) (a, b *side) {
	tb.Helper()
	a, b = newSide(tb, link, cfg, size), newSide(tb, link, cfg, size)
	connect(tb, a, b)
	return a, b
}

func connect(tb testing.TB, a, b *side) {
	tb.Helper()
	join(tb, a.qp, b.qp)
}

// join connects two QPs to each other.
func join(tb testing.TB, a, b verbs.QP) {
	tb.Helper()
	ea, err := a.Endpoint()
	must(tb, err)
	eb, err := b.Endpoint()
	must(tb, err)
	must(tb, a.Connect(eb))
	must(tb, b.Connect(ea))
}

// another creates one more QP like s's, closed at the end of the test.
func (s *side) another(tb testing.TB) verbs.QP {
	tb.Helper()
	q, err := s.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64})
	must(tb, err)
	tb.Cleanup(func() { must(tb, q.Close()) })
	return q
}

func (s *side) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: s.mr.Addr() + uint64(off), Length: uint32(n), LKey: s.mr.LKey()}
}

// write returns a signaled WRITE of n bytes at off to the same bytes of a peer.
func (s *side) write(to *side, off, n int) verbs.SendWR {
	wr := verbs.SendWR{WRID: uint64(off), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: to.mr.Addr() + uint64(off), RKey: to.mr.RKey()}
	wr.SetSGE(s.sge(off, n))
	return wr
}

// read returns a signaled READ of n bytes at off from the same bytes of a peer.
func (s *side) read(to *side, off, n int) verbs.SendWR {
	wr := s.write(to, off, n)
	wr.Opcode = verbs.OpRDMARead
	return wr
}

// send returns a signaled SEND of n bytes at off.
func (s *side) send(off, n int) verbs.SendWR {
	wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	wr.SetSGE(s.sge(off, n))
	return wr
}

func (s *side) post(tb testing.TB, wr verbs.SendWR) {
	tb.Helper()
	if n, err := s.qp.PostSend([]verbs.SendWR{wr}); n != 1 {
		tb.Fatalf("PostSend = %d, %v, want 1", n, err)
	}
}

func (s *side) recv(tb testing.TB, id uint64, off, n int) {
	tb.Helper()
	wr := verbs.RecvWR{WRID: id}
	wr.SetSGE(s.sge(off, n))
	if n, err := s.qp.PostRecv([]verbs.RecvWR{wr}); n != 1 {
		tb.Fatalf("PostRecv = %d, %v, want 1", n, err)
	}
}

// wait polls for n completions.
func (s *side) wait(tb testing.TB, n int) []verbs.WC {
	tb.Helper()
	var got []verbs.WC
	wcs := make([]verbs.WC, 16)
	for start := time.Now(); len(got) < n; {
		k, err := s.cq.Poll(wcs[:min(16, n-len(got))])
		if err != nil && !errors.Is(err, verbs.ErrCQOverrun) {
			tb.Fatalf("Poll = %v, want none", err)
		}
		got = append(got, wcs[:k]...)
		if k > 0 {
			continue
		}
		if runtime.Gosched(); time.Since(start) > patience {
			tb.Fatalf("%d completions after %v, want %d: %+v", len(got), patience, n, got)
		}
	}
	return got
}

func (s *side) fill(seed byte) { pattern(s.mem.Bytes(), seed) }

// pattern fills b such that adjacent bytes and pages differ.
func pattern(b []byte, seed byte) {
	const period = 1 << 16
	for i := range min(len(b), period) {
		b[i] = byte(i>>8)*7 + byte(i)*13 + seed
	}
	for done := period; done < len(b); done *= 2 {
		copy(b[done:], b[:done])
	}
}
