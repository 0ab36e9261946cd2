package reliable_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// apart returns the same side with a separate QP and CQ, and hence a separate engine.
func (s *side) apart(tb testing.TB) *side {
	tb.Helper()
	o := *s
	var err error
	o.cq, err = s.ctx.CreateCQ(verbs.CQConfig{Depth: 1024})
	must(tb, err)
	tb.Cleanup(func() { must(tb, o.cq.Close()) })
	o.qp = o.another(tb)
	if reliable.EngineOf(o.qp) == reliable.EngineOf(s.qp) {
		tb.Fatalf("QPs with CQs of their own are in one engine, want two")
	}
	return &o
}

// sendNothing sends n messages of no bytes, with their numbers as immediates, and waits for their completions. Any
// goroutine may call it.
func (s *side) sendNothing(n int) error {
	const depth = 32
	start := time.Now()
	for posted, done := 0, 0; done < n; {
		if posted < n && posted-done < depth {
			wr := verbs.SendWR{Opcode: verbs.OpSendWithImm, Imm: uint32(posted), Flags: verbs.SendSignaled}
			if _, err := s.qp.PostSend([]verbs.SendWR{wr}); err != nil {
				return err
			}
			posted++
		}
		var wcs [depth]verbs.WC
		k, err := s.cq.Poll(wcs[:])
		for i := range wcs[:k] {
			err = errors.Join(err, wcs[i].Err())
		}
		if err != nil {
			return err
		}
		if done += k; time.Since(start) > patience {
			return fmt.Errorf("%d completions after %v, want %d", done, patience, n)
		}
	}
	return nil
}

// TestEngineOfQP: the send CQ determines a QP's engine. A PD has at most four engines, and further QPs join
// the one with the fewest.
func TestEngineOfQP(t *testing.T) {
	s := newSide(t, softnic.NewMemoryLink(nil), reliable.Config{Paths: 1, ChunkBytes: 256}, 1)
	if reliable.EngineOf(s.another(t)) != reliable.EngineOf(s.qp) {
		t.Errorf("QPs of one CQ are in two engines, want one")
	}
	first := reliable.EngineOf(s.qp)
	engines := map[any]bool{first: true}
	var last *side
	for range 3 {
		last = s.apart(t)
		engines[reliable.EngineOf(last.qp)] = true
	}
	if len(engines) != 4 {
		t.Errorf("4 CQs have %d engines, want 4", len(engines))
	}
	more := s.apart(t)
	if e := reliable.EngineOf(more.qp); !engines[e] || e == first {
		t.Errorf("the fifth CQ has a new engine, or that with most QPs, want one of the others")
	}
	mixed, err := s.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: last.cq, RecvCQ: s.cq, MaxSendWR: 1, MaxRecvWR: 1})
	must(t, err)
	if reliable.EngineOf(mixed) != reliable.EngineOf(last.qp) {
		t.Errorf("the receive CQ decides the engine, want the send CQ to")
	}
	must(t, mixed.Close())
	idle := reliable.EngineOf(last.qp)
	if reliable.EngineOf(more.qp) == idle {
		must(t, more.qp.Close())
	}
	must(t, last.qp.Close())
	if next := s.apart(t); reliable.EngineOf(next.qp) != idle {
		t.Errorf("a new CQ does not get the engine without QPs, want that")
	}
}

// TestNoSecondEngine: if the device cannot create an SRQ for another engine, QPs share the first.
func TestNoSecondEngine(t *testing.T) {
	link := softnic.NewMemoryLink(nil)
	left := 2 // Wrap creates one to probe the device
	few := &interposer{srq: func(pd verbs.PD, cfg verbs.SRQConfig) (verbs.SRQ, error) {
		if left--; left < 0 {
			return nil, verbs.ErrLimit
		}
		return pd.CreateSRQ(cfg)
	}}
	a := newSideOver(t, link, reliable.Config{Paths: 2}, 1<<14, few.over)
	b := newSide(t, link, reliable.Config{Paths: 2}, 1<<14)
	cq, err := a.ctx.CreateCQ(verbs.CQConfig{Depth: 64})
	must(t, err)
	t.Cleanup(func() { must(t, cq.Close()) })
	a2 := *a
	a2.cq = cq
	a2.qp = a2.another(t)
	if reliable.EngineOf(a2.qp) != reliable.EngineOf(a.qp) {
		t.Fatalf("there is another engine without an SRQ, want one")
	}
	b2 := b.apart(t)
	connect(t, a, b)
	connect(t, &a2, b2)
	transfer(t, a, b, verbs.OpSend, 10_000)
	transfer(t, &a2, b2, verbs.OpSend, 10_000)
}

// TestReceivesOfSeveralEngines: two QPs in two engines share a receive CQ. Their peers send concurrently. The
// CQ has the receives of each QP in order.
func TestReceivesOfSeveralEngines(t *testing.T) {
	const messages, depth = 2000, 32
	link := softnic.NewMemoryLink(nil)
	a, b := newSide(t, link, reliable.Config{Paths: 4}, 1<<14), newSide(t, link, reliable.Config{Paths: 4}, 1<<14)
	from, to := [2]*side{a, a.apart(t)}, [2]verbs.QP{}
	for i := range to {
		own, err := b.ctx.CreateCQ(verbs.CQConfig{Depth: 64})
		must(t, err)
		t.Cleanup(func() { must(t, own.Close()) })
		to[i], err = b.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: own, RecvCQ: b.cq, MaxSendWR: 1, MaxRecvWR: depth})
		must(t, err)
		t.Cleanup(func() { must(t, to[i].Close()) })
		join(t, from[i].qp, to[i])
	}
	if reliable.EngineOf(to[0]) == reliable.EngineOf(to[1]) {
		t.Fatalf("QPs with send CQs of their own are in one engine, want two")
	}
	for _, q := range to {
		for n := range depth {
			_, err := q.PostRecv([]verbs.RecvWR{{WRID: uint64(n)}})
			must(t, err)
		}
	}
	sent := make(chan error, len(from))
	for _, s := range from {
		go func() { sent <- s.sendNothing(messages) }()
	}
	next := map[uint32]uint64{}
	for range 2 * messages {
		wc := b.wait(t, 1)[0]
		if wc.Err() != nil || wc.WRID != next[wc.QPN] || uint64(wc.Imm) != next[wc.QPN] {
			t.Fatalf("QP %d has receive %d with message %d (%v), want %d", wc.QPN, wc.WRID, wc.Imm, wc.Err(), next[wc.QPN])
		}
		next[wc.QPN]++
		q := to[0]
		if wc.QPN == to[1].Num() {
			q = to[1]
		}
		_, err := q.PostRecv([]verbs.RecvWR{{WRID: wc.WRID + depth}})
		must(t, err)
	}
	for range from {
		must(t, <-sent)
	}
}

// TestOverrunOfSeveralEngines: a CQ overruns with completions of one engine. Its QPs in both engines fail,
// and the user is notified of each.
func TestOverrunOfSeveralEngines(t *testing.T) {
	link := softnic.NewMemoryLink(nil)
	a, b := newPair(t, link, reliable.Config{Paths: 2}, 1<<14)
	small, err := a.ctx.CreateCQ(verbs.CQConfig{Depth: 4})
	must(t, err)
	t.Cleanup(func() { must(t, small.Close()) })
	var qps [2]verbs.QP
	for i, send := range []*side{a, a.apart(t)} {
		qps[i], err = a.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: send.cq, RecvCQ: small, MaxSendWR: 8, MaxRecvWR: 64})
		must(t, err)
		t.Cleanup(func() { must(t, qps[i].Close()) })
		join(t, qps[i], b.another(t))
	}
	for range 2 * small.Depth() {
		_, err := qps[0].PostRecv(make([]verbs.RecvWR, 1))
		must(t, err)
	}
	must(t, qps[0].Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState)) // flushes the receives
	fatal := map[uint32]int{}
	for start := time.Now(); len(fatal) < 2; {
		var evs [8]verbs.Event
		n, err := a.ctx.Events(evs[:])
		must(t, err)
		for _, ev := range evs[:n] {
			if ev.Type == verbs.EventQPFatal {
				fatal[ev.QP.Num()]++
			}
		}
		if time.Since(start) > patience {
			t.Fatalf("QPs %v have failed, want %d and %d", fatal, qps[0].Num(), qps[1].Num())
		}
	}
	for _, q := range qps {
		if fatal[q.Num()] != 1 || q.State() != verbs.StateErr {
			t.Errorf("QP %d is %v and has %d events, want ERR and one", q.Num(), q.State(), fatal[q.Num()])
		}
	}
	if s := a.qp.State(); s != verbs.StateRTS {
		t.Errorf("a QP of other CQs is %v, want RTS", s)
	}
}

// TestRegionsOfSeveralEngines: every engine knows all open regions, whether they were registered before or
// after its creation.
func TestRegionsOfSeveralEngines(t *testing.T) {
	a, b := newPair(t, softnic.NewMemoryLink(nil), reliable.Config{Paths: 2}, 1<<14)
	old := b.shelf(t, 100, 1)
	a2, b2 := a.apart(t), b.apart(t)
	connect(t, a2, b2)
	later := b.shelf(t, 100, 2)
	read := func(s *side, mr verbs.MR, want verbs.Status) {
		t.Helper()
		wr := verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, RemoteAddr: mr.Addr(), RKey: mr.RKey()}
		wr.SetSGE(s.sge(0, 100))
		s.post(t, wr)
		if wc := s.wait(t, 1)[0]; wc.Status != want {
			t.Fatalf("a READ ends with %v, want %v", wc.Status, want)
		}
	}
	for _, s := range []*side{a, a2} {
		read(s, old.mr, verbs.StatusSuccess)
		read(s, later.mr, verbs.StatusSuccess)
	}
	must(t, later.mr.Close())
	for _, s := range []*side{a, a2} {
		read(s, old.mr, verbs.StatusSuccess)
		read(s, later.mr, verbs.StatusRemAccessErr)
	}
}

// TestFlowsOfSeveralEngines connects QPs of two engines of one end to QPs of two engines of the other, in every
// combination. Flows share a connection if they have both engines in common.
func TestFlowsOfSeveralEngines(t *testing.T) {
	reliable.OverUC(t, "QPs of its own to count")
	for name, connect := range map[string]func(*testing.T, verbs.QP, verbs.QP){
		"Connect": func(t *testing.T, a, b verbs.QP) { join(t, a, b) }, "Modify": joinByModify,
	} {
		t.Run(name, func(t *testing.T) {
			const flows = 16
			link := softnic.NewMemoryLink(nil)
			cfg := reliable.Config{Paths: 2, ChunkBytes: 2048, Flows: flows, GiveUp: int64(patience)}
			a, b := newSide(t, link, cfg, 1<<14), newSide(t, link, cfg, 1<<14)
			ends := [2][2]*side{{a, a.apart(t)}, {b, b.apart(t)}}
			paths := map[uint32]bool{}
			for range 3 {
				for _, x := range ends[0] {
					for _, y := range ends[1] {
						qx, qy := x.another(t), y.another(t)
						connect(t, qx, qy)
						exchange(t, x, y, qx, qy)
						paths[pathOf(qx)] = true
					}
				}
			}
			if len(paths) != 4 {
				t.Errorf("12 flows between two engines and two have %d connections, want 4", len(paths))
			}
		})
	}
}

// TestCloseWithSeveralEngines closes a context while goroutines post to its engines and poll. All of them end
// with an error, and no goroutine stays.
func TestCloseWithSeveralEngines(t *testing.T) {
	link := softnic.NewMemoryLink(nil)
	a, b := newSide(t, link, reliable.Config{Paths: 2}, 1<<14), newSide(t, link, reliable.Config{Paths: 2}, 1<<14)
	ends := [2][2]*side{{a, a.apart(t)}, {b, b.apart(t)}}
	var busy, stopped sync.WaitGroup
	for i := range ends[0] {
		x, y := ends[0][i], ends[1][i]
		connect(t, x, y)
		busy.Add(1)
		stopped.Go(func() {
			begun := sync.OnceFunc(busy.Done)
			defer begun()
			for {
				wr := x.write(y, 0, 10_000)
				if _, err := x.qp.PostSend([]verbs.SendWR{wr}); err != nil && !errors.Is(err, verbs.ErrQueueFull) {
					if !errors.Is(err, verbs.ErrClosed) {
						t.Errorf("PostSend = %v, want ErrClosed", err)
					}
					return
				}
				var wcs [8]verbs.WC
				n, err := x.cq.Poll(wcs[:])
				if err != nil && !errors.Is(err, verbs.ErrClosed) {
					t.Errorf("Poll = %v, want ErrClosed", err)
					return
				}
				if n > 0 {
					begun()
				}
			}
		})
	}
	busy.Wait()
	must(t, a.ctx.Close())
	stopped.Wait()
}

// TestResetWithSeveralEngines fails a NIC with QPs in two engines. Their QPs fail, and new QPs in both
// engines work: their requests complete before a probe is due, so the control QPs of both have recovered.
func TestResetWithSeveralEngines(t *testing.T) {
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	cfg := w.config(reliable.Config{Paths: 2})
	a, b := newPair(t, w.link, cfg, 4096)
	reliable.SplitEngines(a.ctx)
	reliable.SplitEngines(b.ctx)
	ends := [2][2]*side{{a, a.apart(t)}, {b, b.apart(t)}}
	connect(t, ends[0][1], ends[1][1])
	for i := range ends[0] {
		w.write(t, ends[0][i], ends[1][i])
	}
	b.nic.Fail()
	w.pass(time.Millisecond, a, b)
	b.nic.Recover()
	w.pass(2*time.Millisecond, a, b)
	for i := range ends[0] {
		x, y := *ends[0][i], *ends[1][i]
		if s := y.qp.State(); s != verbs.StateErr {
			t.Fatalf("QP %d is %v after its NIC has failed, want %v", i, s, verbs.StateErr)
		}
		old := reliable.EngineOf(y.qp)
		x.qp, y.qp = x.another(t), y.another(t)
		if reliable.EngineOf(y.qp) != old {
			t.Fatalf("a new QP of the CQ is in another engine, want the same")
		}
		connect(t, &x, &y)
		for range 300 { // more than a control QP has receives
			w.write(t, &x, &y)
			w.write(t, &y, &x)
		}
	}
}

// TestCreditsOfSeveralEngines: four hosts send to one whose QPs are in two engines, which share the port's
// window. Together they saturate the link, each gets a fair share, and the port's queue stays short.
func TestCreditsOfSeveralEngines(t *testing.T) {
	const size, rate, idle = 8 << 20, 12.5e9, 128 << 10
	w := newWorld(t, softnic.Impairment{Delay: 5 * time.Microsecond, Rate: rate})
	cfg := w.config(reliable.Config{Paths: 4, MinProbe: 50_000})
	to := newSide(t, w.link, cfg, size)
	must(t, w.link.Bottleneck(to.nic, rate, 1<<30))
	nic := to.nic
	reliable.SplitEngines(to.ctx)
	awake := []*side{to}
	for i := range 4 {
		from, at := newSide(t, w.link, cfg, size), *to
		switch i {
		case 0:
			at.qp = to.another(t)
		case 1: // three of them are in the second engine
			at = *to.apart(t)
			to = &at
		default:
			at.qp = to.another(t)
		}
		connect(t, from, &at)
		awake = append(awake, from)
	}
	w.pass(100*time.Microsecond, awake...) // the handshake of new connections
	for _, from := range awake[1:] {
		from.post(t, from.write(to, 0, size))
	}
	start, total := w.now, 4*size*1e9/rate // in nanoseconds
	for _, s := range awake[1:] {
		for done := false; !done && float64(w.now-start) < 2*total; w.step(w.now+10_000, awake) {
			var wc [1]verbs.WC
			n, err := s.cq.Poll(wc[:])
			must(t, err)
			if done = n == 1; done {
				must(t, wc[0].Err())
			}
		}
		if d := float64(w.now - start); d < 0.9*total || d > 1.1*total {
			t.Errorf("a host has sent its part after %v, want %v, when all have", time.Duration(d), time.Duration(total))
		}
	}
	if queue := w.link.LongestQueue(nic); queue > 2*4*idle {
		t.Errorf("a queue of %d bytes, want at most twice the %d of 4 idle senders", queue, idle)
	}
}
