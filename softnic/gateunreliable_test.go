package softnic

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"ibverbx/verbs"
)

// dispatch returns an 8-byte datagram for q.
func (s *nicRig) dispatch(peer *nicRig, q *qp) verbs.SendWR {
	s.t.Helper()
	ah, err := s.pd.CreateAH(verbs.AHAttr{DGID: peer.nic.gids[1].GID, SGIDIndex: 1})
	check(s.t, err)
	wr := verbs.SendWR{Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: 7, AH: ah.Handle(), RemoteQPN: q.num, RemoteQKey: q.attr.QKey}
	wr.SetSGE(s.sge(0, 8))
	return wr
}

// ready connects a QP of each rig; UD QPs become ready for datagrams.
func ready(t *testing.T, typ verbs.QPType, a, b *nicRig, n int) (qa, qb *qp) {
	t.Helper()
	qa, qb = a.qp(typ, n), b.qp(typ, n)
	join(t, qa, qb)
	return qa, qb
}

// receives posts n receives of 64 bytes each, from off on.
func (s *nicRig) receives(q *qp, off uint64, n int) {
	s.t.Helper()
	for i := range uint64(n) {
		wr := verbs.RecvWR{WRID: off + 64*i}
		wr.SetSGE(s.sge(wr.WRID, 64))
		if k, err := q.PostRecv([]verbs.RecvWR{wr}); k != 1 {
			s.t.Fatalf("PostRecv = %d, %v, want 1", k, err)
		}
	}
}

// TestGatesOfUC: pairs of UC QPs also have gates. A message dropped for a missing receive or a wrong
// key shuts them, and is counted as on any link.
func TestGatesOfUC(t *testing.T) {
	link := NewMemoryLink(nil)
	SetLoose(link, 0)
	a, b := pairOn(t, link, 256)
	qa, qb := ready(t, verbs.UC, a, b, 16)
	open := func() bool { p := qa.pair.Load(); return p != nil && p.open.Load() }
	write := func(op verbs.Opcode) {
		t.Helper()
		post(t, qa, a.to(b, op))
		if got := a.poll(); len(got) != 1 || got[0].Status != verbs.StatusSuccess {
			t.Fatalf("%s completes with %v, want one success", op, got)
		}
	}
	b.receives(qb, 0, 2)
	write(verbs.OpRDMAWrite)
	write(verbs.OpRDMAWriteWithImm)
	write(verbs.OpSend)
	if got := b.poll(); len(got) != 2 || got[0].Opcode != verbs.WCRecvRDMAWithImm || got[1].Opcode != verbs.WCRecv {
		t.Fatalf("the peer gets %v, want a notification and a message", got)
	}
	if !open() {
		t.Fatal("the gate of the pair is shut after plain requests")
	}
	write(verbs.OpSend)
	if got := b.nic.Stats(); open() || got.MessagesDropped != 1 || got.PacketsReceived != 4 {
		t.Errorf("open = %v after a message without a receive, %+v; want a shut gate, one dropped message, 4 packets", open(), got)
	}
	if n, err := qa.PostSend([]verbs.SendWR{a.to(b, verbs.OpRDMARead)}); n != 0 || err == nil {
		t.Errorf("a READ on UC: PostSend = %d, %v, want an error", n, err)
	}
	bad := a.to(b, verbs.OpRDMAWrite)
	bad.RKey++
	b.mem.Bytes()[0], a.mem.Bytes()[0] = 1, 2
	for range maxKeyGuesses {
		post(t, qa, bad)
		a.poll()
	}
	post(t, qa, a.to(b, verbs.OpRDMAWrite))
	if got := b.nic.Stats(); b.mem.Bytes()[0] != 1 || got.WrongKeys != maxKeyGuesses || got.WritesBlocked != 1 {
		t.Errorf("after %d wrong keys a WRITE gives %d, %+v; want it blocked", maxKeyGuesses, b.mem.Bytes()[0], got)
	}
}

// TestDatagramsLeaveGatesOpen: datagrams between QPs on a link lock the core's mutex but leave the
// gates of pairs open. Their GRH, immediates and counters equal those of packets.
func TestDatagramsLeaveGatesOpen(t *testing.T) {
	link := NewMemoryLink(nil)
	SetLoose(link, 0)
	a, b := pairOn(t, link, 256)
	qa, _ := ready(t, verbs.RC, a, b, 16)
	ua, ub := ready(t, verbs.UD, a, b, 4)
	b.receives(ub, 1024, 2)
	post(t, qa, a.to(b, verbs.OpRDMAWrite))
	a.poll()
	binary.LittleEndian.PutUint64(a.mem.Bytes(), 42)
	for range 2 {
		post(t, ua, a.dispatch(b, ub))
	}
	if p := qa.pair.Load(); p == nil || !p.open.Load() {
		t.Error("a datagram has shut the gate of a pair")
	}
	if got := a.poll(); len(got) != 2 || got[1].Status != verbs.StatusSuccess || got[1].Opcode != verbs.WCSend {
		t.Errorf("the sender gets %v, want two successes", got)
	}
	got := b.poll()
	if len(got) != 2 {
		t.Fatalf("the receiver gets %v, want two datagrams", got)
	}
	for _, wc := range got {
		if wc.Flags != verbs.WCGRH|verbs.WCWithImm || wc.Imm != 7 || wc.SrcQPN != ua.num || wc.ByteLen != verbs.GRHLen+8 ||
			binary.LittleEndian.Uint64(b.mem.Bytes()[wc.WRID+verbs.GRHLen:]) != 42 {
			t.Errorf("the receiver gets %+v", wc)
		}
	}
	post(t, ua, a.dispatch(b, ub)) // no receive
	wrong := a.dispatch(b, ub)
	wrong.RemoteQKey++
	post(t, ua, wrong)
	if got := b.nic.Stats(); got.MessagesDropped != 1 || got.BadQKey != 1 || got.PacketsReceived != 5 {
		t.Errorf("%+v, want a dropped message and one with a bad Q_Key, of 5 packets", got)
	}
	wrs := make([]verbs.SendWR, 5)
	for i := range wrs {
		wrs[i] = a.dispatch(b, ub)
	}
	a.poll()
	b.receives(ub, 1024, 4)
	if n, err := ua.PostSend(wrs); n != 4 || err != verbs.ErrQueueFull { //nolint:errorlint // it is unwrapped
		t.Errorf("PostSend of 5 to a queue of 4 = %d, %v, want 4 and ErrQueueFull", n, err)
	}
}

// TestFullCQSendsOnce: a UC or UD request whose completion does not fit is sent only once. The CQ overruns.
func TestFullCQSendsOnce(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.UC, verbs.UD} {
		link := NewMemoryLink(nil)
		SetLoose(link, 0)
		a, b := newNICRig(t, link, 2, Config{Name: "a"}), newNICRig(t, link, 64, Config{Name: "b"})
		qa, qb := ready(t, typ, a, b, 8)
		b.receives(qb, 1024, 8)
		wr := a.to(b, verbs.OpSendWithImm)
		if typ == verbs.UD {
			wr = a.dispatch(b, qb)
		}
		post(t, qa, wr, wr, wr, wr)
		if got := b.poll(); len(got) != 4 {
			t.Errorf("%s: the peer gets %d messages, want 4", typ, len(got))
		}
		if got := a.poll(); len(got) != 2 || !a.cq.(*cq).overrun || qa.State() != verbs.StateErr {
			t.Errorf("%s: %d completions, state %s; want 2, an overrun and ERR", typ, len(got), qa.State())
		}
	}
}

// TestUnreliableTorture: goroutines with a pair of UC QPs and a pair of UD QPs each use the same NICs, while gates open and
// shut. Every message must arrive once, in order, with its bytes, and the race detector must be content.
func TestUnreliableTorture(t *testing.T) {
	link := NewMemoryLink(nil)
	SetLoose(link, 0)
	const rounds, talkers = 2000, 3
	var working, beside sync.WaitGroup
	var done atomic.Bool
	a, b := pairOn(t, link, 256)
	for range talkers {
		// Rigs share NICs but have separate CQs and memory.
		x, y := a.mate(64), b.mate(64)
		uca, ucb := ready(t, verbs.UC, x, y, 4)
		uda, udb := ready(t, verbs.UD, x, y, 4)
		datagram := x.dispatch(y, udb)
		working.Go(func() {
			for i := range uint64(rounds) {
				binary.LittleEndian.PutUint64(x.mem.Bytes(), i)
				y.receives(ucb, 1024, 1)
				y.receives(udb, 2048, 1)
				post(t, uca, x.to(y, verbs.OpSendWithImm))
				post(t, uda, datagram)
				if got := x.poll(); len(got) != 2 {
					t.Errorf("round %d: %d completions, want 2", i, len(got))
				}
				got := y.poll()
				if len(got) != 2 || binary.LittleEndian.Uint64(y.mem.Bytes()[1024:]) != i ||
					binary.LittleEndian.Uint64(y.mem.Bytes()[2048+verbs.GRHLen:]) != i {
					t.Errorf("round %d: the peer has %v, or other bytes", i, got)
					return
				}
			}
		})
	}
	beside.Go(func() {
		for !done.Load() {
			check(t, b.qp(verbs.UC, 1).Close())
			a.nic.Stats()
			runtime.Gosched()
		}
	})
	working.Wait()
	done.Store(true)
	beside.Wait()
}

// mate returns another rig on s's NIC, with its own CQ and memory.
func (s *nicRig) mate(depth int) *nicRig {
	s.t.Helper()
	m := *s
	var err error
	m.mem, err = verbs.AllocMemory(4096, nil)
	check(s.t, err)
	m.mr, err = s.pd.RegisterMemory(m.mem, verbs.AccessAll)
	check(s.t, err)
	m.cq, err = s.ctx.CreateCQ(verbs.CQConfig{Depth: depth})
	check(s.t, err)
	s.t.Cleanup(func() {
		check(s.t, m.mr.Close())
		check(s.t, m.mem.Free())
	})
	return &m
}
