package softnic_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

const (
	tortureSlots = 16
	slotBytes    = 64
	// allSlots is the size of the memory for all slots.
	allSlots = tortureSlots * slotBytes
)

// TestTorture runs QPs on one link concurrently while their gates keep opening and shutting. Every QP has a
// goroutine that posts, and every CQ one that polls and checks. Two QPs share their CQs, two their SRQ.
// Meanwhile memory is registered, QPs are created, connected and closed, and counters are read. Messages must
// arrive exactly once and in order, queue slots must not leak, and the race detector must stay silent.
func TestTorture(t *testing.T) {
	link := softnic.NewMemoryLink(nil)
	softnic.SetLoose(link, 0)
	r := newRig(t, link)
	rounds := 4000
	if testing.Short() {
		rounds = 400
	}
	srq, err := r.pb.CreateSRQ(verbs.SRQConfig{MaxWR: 2 * tortureSlots, MaxSGE: 1})
	must(t, err)
	in, inMR := memory(t, r.pb, 4*allSlots)
	halls := []*hall{newHall(r), newHall(r), newHall(r)}
	ends := []*end{
		newEnd(r, halls[0], nil, in, inMR, 0), newEnd(r, halls[0], srq, in, inMR, 1),
		newEnd(r, halls[1], srq, in, inMR, 2), newEnd(r, halls[2], nil, in, inMR, 3),
	}
	var working, beside sync.WaitGroup
	for _, e := range ends {
		working.Go(func() { e.post(rounds) })
	}
	for _, h := range halls {
		working.Go(func() { h.pollSends(rounds) })
		working.Go(h.pollRecvs)
	}
	var done atomic.Bool
	readCounters := func(r *rig) {
		r.a.Stats()
		ends[0].qa.State()
		if _, err := ends[0].qb.Query(); err != nil {
			t.Error(err)
		}
	}
	for _, f := range []func(*rig){registerMemory, readCounters, makeQPs} {
		beside.Go(func() {
			for !done.Load() {
				f(r)
				runtime.Gosched()
			}
		})
	}
	working.Wait()
	done.Store(true)
	beside.Wait()
	if got, want := r.a.Stats().PacketsSent, uint64(4*(rounds+1)); got < want {
		t.Errorf("%d packets sent, want at least %d: one per request", got, want)
	}
}

// hall holds the CQs of both sides, and the ends that complete on them by QP number.
type hall struct {
	tb       testing.TB
	cqA, cqB verbs.CQ
	senders  map[uint32]*end
	recvers  map[uint32]*end
}

func newHall(r *rig) *hall {
	cfg := verbs.CQConfig{Depth: 8 * tortureSlots, Waker: verbs.NewWaker()}
	cqA, err := r.ca.CreateCQ(cfg)
	must(r.tb, err)
	cqB, err := r.cb.CreateCQ(cfg)
	must(r.tb, err)
	return &hall{tb: r.tb, cqA: cqA, cqB: cqB, senders: map[uint32]*end{}, recvers: map[uint32]*end{}}
}

// end is a pair of QPs. A request uses one slot's memory, which is free again when it has completed.
type end struct {
	tb     testing.TB
	rnd    *rand.Rand
	qa, qb verbs.QP
	// recvTo accepts receives: the QP or an SRQ.
	recvTo interface {
		PostRecv(wrs []verbs.RecvWR) (int, error)
	}
	// tokens are the free slots.
	tokens chan int
	// src is the source and local receives responses. dst and remote are the peer's.
	src                       *verbs.Memory
	srcMR, local, dst, remote verbs.MR
	in                        *verbs.Memory
	inMR                      verbs.MR
	completed, arrived        uint64
}

func newEnd(r *rig, h *hall, srq verbs.SRQ, in *verbs.Memory, inMR verbs.MR, i int) *end {
	e := &end{tb: r.tb, rnd: rand.New(rand.NewPCG(uint64(i), 7)), tokens: make(chan int, tortureSlots), in: in, inMR: inMR}
	e.src, e.srcMR = memory(r.tb, r.pa, allSlots)
	_, e.local = memory(r.tb, r.pa, allSlots)
	_, e.dst = memory(r.tb, r.pb, allSlots)
	_, e.remote = memory(r.tb, r.pb, allSlots)
	cfg := verbs.QPConfig{Type: verbs.RC, SendCQ: h.cqA, RecvCQ: h.cqA, MaxSendWR: tortureSlots}
	var err error
	e.qa, err = r.pa.CreateQP(cfg)
	must(r.tb, err)
	cfg.SendCQ, cfg.RecvCQ, cfg.MaxRecvWR = h.cqB, h.cqB, tortureSlots
	if srq != nil {
		cfg.MaxRecvWR, cfg.SRQ = 0, srq
	}
	e.qb, err = r.pb.CreateQP(cfg)
	must(r.tb, err)
	connect(r.tb, e.qa, e.qb)
	if e.recvTo = e.qb; srq != nil {
		e.recvTo = srq
	}
	h.senders[e.qa.Num()], h.recvers[e.qb.Num()] = e, e
	for k := range tortureSlots {
		e.tokens <- k
		e.give(uint64((i*tortureSlots + k) * slotBytes))
	}
	return e
}

// give posts a receive for the memory at off.
func (e *end) give(off uint64) {
	wr := verbs.RecvWR{WRID: off}
	wr.SetSGE(verbs.SGE{Addr: e.inMR.Addr() + off, Length: slotBytes, LKey: e.inMR.LKey()})
	if n, err := e.recvTo.PostRecv([]verbs.RecvWR{wr}); n != 1 {
		e.tb.Errorf("PostRecv = %d, %v, want 1: a slot is lost", n, err)
	}
}

// post posts rounds requests in chains, followed by an empty message.
func (e *end) post(rounds int) {
	for seq := 0; seq <= rounds && !e.tb.Failed(); {
		var chain []verbs.SendWR
		for range min(1+e.rnd.IntN(6), rounds+1-seq) {
			slot, ok := e.slot()
			if !ok {
				return
			}
			chain = append(chain, e.request(seq, slot))
			seq++
		}
		if seq > rounds {
			last := &chain[len(chain)-1]
			last.Opcode, last.NumSGE = verbs.OpSend, 0
		}
		if n, err := e.qa.PostSend(chain); n != len(chain) {
			e.tb.Errorf("PostSend = %d, %v, want %d: a slot is lost", n, err, len(chain))
		}
	}
}

// slot waits for a free slot. It reports false if the test has failed meanwhile.
func (e *end) slot() (slot int, ok bool) {
	for !e.tb.Failed() {
		select {
		case slot = <-e.tokens:
			return slot, true
		default:
			runtime.Gosched()
		}
	}
	return 0, false
}

// request returns a random request. Its sequence number is its payload, or its immediate.
func (e *end) request(seq, slot int) verbs.SendWR {
	at := uint64(slot) * slotBytes
	binary.LittleEndian.PutUint64(e.src.Bytes()[at:], uint64(seq))
	wr := verbs.SendWR{
		WRID: uint64(seq)<<8 | uint64(slot), Opcode: verbs.Opcode(e.rnd.IntN(5)), Flags: verbs.SendSignaled,
		Imm: uint32(seq), RemoteAddr: e.dst.Addr() + at, RKey: e.dst.RKey(),
	}
	wr.SetSGE(verbs.SGE{Addr: e.srcMR.Addr() + at, Length: slotBytes, LKey: e.srcMR.LKey()})
	if e.rnd.IntN(64) == 0 {
		wr.Opcode = verbs.OpAtomicFetchAndAdd
	}
	if wr.Opcode >= verbs.OpRDMARead {
		wr.RemoteAddr, wr.RKey = e.remote.Addr()+at, e.remote.RKey()
		wr.SetSGE(verbs.SGE{Addr: e.local.Addr() + at, Length: 8, LKey: e.local.LKey()})
	}
	return wr
}

// pollSends polls until every sender has its completions, and checks their order.
func (h *hall) pollSends(rounds int) {
	for left := (rounds + 1) * len(h.senders); left > 0 && !h.tb.Failed(); {
		left -= h.poll(h.cqA, func(wc *verbs.WC) {
			e := h.senders[wc.QPN]
			if wc.WRID>>8 != e.completed {
				h.tb.Errorf("request %d completes, want %d", wc.WRID>>8, e.completed)
			}
			e.completed++
			e.tokens <- int(wc.WRID & 0xff)
		})
	}
}

// pollRecvs polls until every sender's empty message has arrived. It checks the message order and reposts the
// receives.
func (h *hall) pollRecvs() {
	for left := len(h.recvers); left > 0 && !h.tb.Failed(); {
		h.poll(h.cqB, func(wc *verbs.WC) {
			e := h.recvers[wc.QPN]
			seq := uint64(wc.Imm)
			if wc.ByteLen == 0 {
				left--
				seq = e.arrived
			} else if wc.Opcode == verbs.WCRecv {
				seq = binary.LittleEndian.Uint64(e.in.Bytes()[wc.WRID:])
			}
			if seq < e.arrived || (wc.Flags&verbs.WCWithImm != 0 && seq != uint64(wc.Imm)) {
				h.tb.Errorf("message %d with the immediate %d, want at least %d", seq, wc.Imm, e.arrived)
			}
			e.arrived = seq + 1
			e.give(wc.WRID)
		})
	}
}

// poll passes available completions to f and returns their number. It occasionally arms the CQ.
func (h *hall) poll(cq verbs.CQ, f func(*verbs.WC)) int {
	var wcs [4]verbs.WC
	n, err := cq.Poll(wcs[:])
	if err != nil {
		h.tb.Error(err)
	}
	for i := range wcs[:n] {
		if wcs[i].Status != verbs.StatusSuccess {
			h.tb.Error(wcs[i].Err())
			return n
		}
		f(&wcs[i])
	}
	if n == 0 {
		if err := cq.Arm(false); err != nil {
			h.tb.Error(err)
		}
		runtime.Gosched()
	}
	return n
}

// registerMemory registers memory and deregisters it.
func registerMemory(r *rig) {
	m, err := verbs.AllocMemory(slotBytes, nil)
	if err == nil {
		var mr verbs.MR
		if mr, err = r.pb.RegisterMemory(m, verbs.AccessAll); err == nil {
			err = mr.Close()
		}
		err = errors.Join(err, m.Free())
	}
	if err != nil {
		r.tb.Error(err)
	}
}

// makeQPs creates two QPs, connects them, uses them and closes them.
func makeQPs(r *rig) {
	cqA, cqB := newCQ(r.tb, r.ca, 4), newCQ(r.tb, r.cb, 4)
	qa, qb := r.pair(verbs.RC, cqA, cqB, 4)
	for range 8 {
		wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
		if n, err := qa.PostSend([]verbs.SendWR{wr}); n != 1 {
			r.tb.Error(err)
		}
		if n, err := cqA.Poll(make([]verbs.WC, 1)); n != 1 {
			r.tb.Errorf("Poll = %d, %v, want 1", n, err)
		}
	}
	if err := errors.Join(qa.Close(), qb.Close(), cqA.Close(), cqB.Close()); err != nil {
		r.tb.Error(err)
	}
}

// TestFaultsBesideGates fails QPs, NICs and CQs in every way while a goroutine posts and polls inside gates.
// Every posted request must complete, successfully or not, unless its QP was closed.
func TestFaultsBesideGates(t *testing.T) {
	for name, end := range map[string]func(r *rig, qa, qb verbs.QP, cq verbs.CQ){
		"port":      func(r *rig, _, _ verbs.QP, _ verbs.CQ) { r.b.SetPort(false); r.b.SetPort(true) },
		"fail":      func(r *rig, _, _ verbs.QP, _ verbs.CQ) { r.a.Fail(); r.a.Recover() },
		"fail peer": func(r *rig, _, _ verbs.QP, _ verbs.CQ) { r.b.Reset() },
		"fail QP":   func(r *rig, qa, _ verbs.QP, _ verbs.CQ) { must(r.tb, r.a.FailQP(qa.Num())) },
		"fail CQ":   func(r *rig, _, _ verbs.QP, cq verbs.CQ) { must(r.tb, r.a.FailCQ(cq)) },
		"error": func(r *rig, qa, _ verbs.QP, _ verbs.CQ) {
			must(r.tb, qa.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState))
		},
		"reset": func(r *rig, qa, _ verbs.QP, _ verbs.CQ) {
			must(r.tb, qa.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
		},
		"close":      func(r *rig, qa, _ verbs.QP, _ verbs.CQ) { must(r.tb, qa.Close()) },
		"close peer": func(r *rig, _, qb verbs.QP, _ verbs.CQ) { must(r.tb, qb.Close()) },
		"close NIC":  func(r *rig, _, _ verbs.QP, _ verbs.CQ) { must(r.tb, r.a.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 10 {
				faultBesideGates(t, end, name == "port")
			}
		})
	}
}

func faultBesideGates(t *testing.T, end func(r *rig, qa, qb verbs.QP, cq verbs.CQ), survives bool) {
	link := softnic.NewMemoryLink(nil)
	softnic.SetLoose(link, 0)
	r := newRig(t, link)
	_, src := memory(t, r.pa, slotBytes)
	_, dst := memory(t, r.pb, slotBytes)
	cqA := newCQ(t, r.ca, 64)
	qa, qb := r.pair(verbs.RC, cqA, newCQ(t, r.cb, 64), 16)
	if !survives { // it fails soon
		sqd := verbs.QPAttr{State: verbs.StateSQD, Timeout: 8, RetryCount: 1}
		must(t, qa.Modify(sqd, verbs.AttrState))
		must(t, qa.Modify(sqd, verbs.AttrTimeout|verbs.AttrRetryCount))
		must(t, qa.Modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.AttrState))
	}
	wrs := []verbs.SendWR{writeWR(src, dst, 8), writeWR(src, dst, 8)}
	var posted, polled atomic.Int64
	var posting, polling sync.WaitGroup
	var done atomic.Bool
	posting.Go(func() {
		for !done.Load() {
			n, err := qa.PostSend(wrs)
			posted.Add(int64(n))
			if err != nil && !errors.Is(err, verbs.ErrQueueFull) {
				return
			}
			runtime.Gosched()
		}
	})
	started := make(chan struct{})
	polling.Go(func() {
		var wcs [8]verbs.WC
		begun := started
		for !done.Load() || posted.Load() > polled.Load() {
			n, err := cqA.Poll(wcs[:])
			if polled.Add(int64(n)) > 100 && begun != nil {
				close(begun)
				begun = nil
			}
			if err != nil || (done.Load() && qa.State() == verbs.StateReset) {
				return
			}
			runtime.Gosched()
		}
	})
	<-started
	end(r, qa, qb, cqA)
	if survives {
		for want := polled.Load() + 100; polled.Load() < want; {
			runtime.Gosched()
		}
	}
	done.Store(true)
	posting.Wait()
	polling.Wait()
	if posted.Load() < polled.Load() {
		t.Errorf("%d requests posted, %d completed", posted.Load(), polled.Load())
	}
}
