package verbstest

import (
	"context"
	"errors"
	"math/rand/v2"

	"ibverbx/verbs"
)

var closeTests = []test{
	{"PDBusy", closePDBusy},
	{"Idempotent", closeIdempotent},
	{"QPMethods", closeQPMethods},
	{"PDMethods", closePDMethods},
	{"ContextDestroysAll", closeContextDestroysAll},
	{"ContextOfPeer", closeContextOfPeer},
	{"Reopen", closeReopen},
	{"QPWithOutstanding", closeQPWithOutstanding},
	{"QPDiscardsCompletions", closeQPDiscards},
	{"MRUnderSend", closeMRUnderSend},
	{"MRUnderRead", closeMRUnderRead},
	{"AnyOrder", closeAnyOrder},
	{"EveryOrder", closeEveryOrder},
	{"WakesSleepers", closeWakesSleepers},
}

// Closing a PD with objects in it returns ErrBusy (ibv_dealloc_pd(3)); the PD remains usable, and
// closes after them.
func closePDBusy(e *env) {
	for name, create := range map[string]func(e *env, s *side) closer{
		"MR": func(e *env, s *side) closer { return e.buf(s, 64).mr },
		"QP": func(e *env, s *side) closer {
			return e.newQP(s, verbs.QPConfig{Type: verbs.RC, MaxSendWR: 1, MaxRecvWR: 1})
		},
		"SRQ": func(e *env, s *side) closer { return e.newSRQ(s, verbs.SRQConfig{MaxWR: 4}) },
		"AH": func(e *env, s *side) closer {
			c := e.rc()
			c.a.side = s
			return e.ah(c.a, c.b)
		},
	} {
		e.sub(name, func(e *env) {
			s := e.otherPD(e.a)
			object := create(e, s)
			e.refused("Close of a PD with a "+name, s.pd.Close(), verbs.ErrBusy)
			e.sub("StillUsable", func(e *env) {
				cfg := verbs.QPConfig{Type: verbs.RC, MaxSendWR: 8, MaxRecvWR: 8}
				c := &conn{a: e.newQP(s, cfg), b: e.newQP(e.b, cfg)}
				e.connect(c, connConfig{})
				e.exchange(c, 100)
			})
			e.must(object.Close(), "Close of the %s", name)
			e.must(s.pd.Close(), "Close of the PD after its %s", name)
		})
	}
}

// A second Close is a successful no-op.
func closeIdempotent(e *env) {
	s := e.otherPD(e.a)
	c := e.rc()
	ah := e.ah(&end{QP: c.a.QP, side: s}, c.b)
	q := e.newQP(s, verbs.QPConfig{Type: verbs.RC, MaxSendWR: 1, MaxRecvWR: 1})
	b := e.buf(s, 64)
	objects := []closer{ah, q, q.cq, b.mr}
	if e.a.attr.Capabilities&verbs.CapSRQ != 0 {
		objects = append(objects, e.newSRQ(s, verbs.SRQConfig{MaxWR: 1}))
	}
	for _, o := range append(objects, s.pd, e.b.ctx) {
		for i := range 3 {
			if err := o.Close(); err != nil {
				e.Errorf("Close %d of a %T: %v", i+1, o, err)
			}
		}
	}
	e.must(b.mem.Free(), "Free")
	e.must(b.mem.Free(), "Free a second time")
}

// expectClosed fails the test unless err wraps ErrClosed.
func (e *env) expectClosed(what string, err error) {
	e.Helper()
	e.refused(what+" after Close", err, verbs.ErrClosed)
}

// expectQPClosed calls every method of a closed QP.
func (e *env) expectQPClosed(q verbs.QP, num uint32, remote verbs.Endpoint) {
	e.Helper()
	e.rejectsPost("PostSend on a closed QP", 0, verbs.ErrClosed)(q.PostSend([]verbs.SendWR{send(1)}))
	e.rejectsPost("PostRecv on a closed QP", 0, verbs.ErrClosed)(q.PostRecv([]verbs.RecvWR{recv(1)}))
	e.expectClosed("Modify to RESET", q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
	e.expectClosed("Query", errorOf(q.Query()))
	e.expectClosed("Endpoint", errorOf(q.Endpoint()))
	e.expectClosed("Connect", q.Connect(remote))
	if q.Num() != num || q.Type() != verbs.RC {
		e.Errorf("a closed QP is %v %#x, want RC %#x as before", q.Type(), q.Num(), num)
	}
	_ = q.State() // any value, without a panic
	e.must(q.Close(), "another Close of a QP")
}

// Methods of a closed QP return ErrClosed, whatever its state was.
func closeQPMethods(e *env) {
	c := e.rc()
	remote := e.endpoint(c.b)
	attr := e.connectAttr(c.a, remote)
	for _, s := range []verbs.QPState{verbs.StateReset, verbs.StateInit, verbs.StateRTR, verbs.StateRTS, verbs.StateErr} {
		e.sub(s.String(), func(e *env) {
			q := e.newQP(e.a, verbs.QPConfig{Type: verbs.RC, MaxSendWR: 2, MaxRecvWR: 2})
			num := q.Num()
			e.drive(q, attr, s)
			e.must(q.Close(), "Close")
			e.expectQPClosed(q.QP, num, remote)
			e.expectEmpty(q.cq)
		})
	}
}

// expectSRQClosed calls every method of a closed SRQ.
func (e *env) expectSRQClosed(srq verbs.SRQ) {
	e.Helper()
	e.rejectsPost("PostRecv on a closed SRQ", 0, verbs.ErrClosed)(srq.PostRecv([]verbs.RecvWR{recv(1)}))
	e.expectClosed("SetLimit", srq.SetLimit(1))
	_ = srq.MaxWR()
	e.must(srq.Close(), "another Close of an SRQ")
}

// expectPDClosed calls every method of a closed PD. cq belongs to its context.
func (e *env) expectPDClosed(pd verbs.PD, cq verbs.CQ, ah verbs.AHAttr) {
	e.Helper()
	mem := e.memory(64)
	e.expectClosed("RegisterMemory", errorOf(pd.RegisterMemory(mem, verbs.AccessAll)))
	e.refused("RegisterDMABuf after Close", errorOf(pd.RegisterDMABuf(-1, 0, 4096, 0, verbs.AccessAll)),
		verbs.ErrClosed, verbs.ErrNotSupported)
	cfg := verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1}
	e.expectClosed("CreateQP", errorOf(pd.CreateQP(cfg)))
	e.expectClosed("CreateSRQ", errorOf(pd.CreateSRQ(verbs.SRQConfig{MaxWR: 1})))
	e.expectClosed("CreateAH", errorOf(pd.CreateAH(ah)))
	e.must(pd.Close(), "another Close of a PD")
	e.must(mem.Free(), "Free of memory that a closed PD refused") // it was not retained
}

// Methods of a closed PD return ErrClosed.
func closePDMethods(e *env) {
	c := e.rc()
	pd := e.newPD(e.a)
	e.must(pd.Close(), "Close")
	e.expectPDClosed(pd, e.newCQ(e.a, 8, nil), e.connectAttr(c.a, e.endpoint(c.b)).AH)
}

// expectContextClosed calls every method of a closed context.
func (e *env) expectContextClosed(ctx verbs.Context, port int) {
	e.Helper()
	e.expectClosed("QueryDevice", errorOf(ctx.QueryDevice()))
	e.expectClosed("QueryPort", errorOf(ctx.QueryPort(port)))
	e.expectClosed("QueryGID", errorOf(ctx.QueryGID(port, 0)))
	e.expectClosed("AllocPD", errorOf(ctx.AllocPD()))
	e.expectClosed("CreateCQ", errorOf(ctx.CreateCQ(verbs.CQConfig{Depth: 8})))
	e.expectClosed("Events", errorOf(ctx.Events(make([]verbs.Event, 4))))
	e.expectClosed("NotifyEvents", ctx.NotifyEvents(verbs.NewWaker()))
	_ = ctx.Device() // any value, without a panic
	e.must(ctx.Close(), "another Close of a context")
}

// busy returns a connection with outstanding requests in both directions that cannot complete:
// neither side posts receives, and the last requests wait behind the first.
func (e *env) busy(cfg connConfig, local, remote *buf) *conn {
	e.Helper()
	c, n := e.conn(cfg), local.mem.Len()
	e.post(c.a, send(1, local.sge(0, n)), write(2, remote, 0, local.sge(0, n)), read(3, remote, 0, local.sge(0, n)))
	e.post(c.b, send(4, remote.sge(0, n)), write(5, local, 0, remote.sge(0, n)))
	return c
}

// Closing a context destroys everything open in it, as the kernel does when a process exits, even
// under traffic. Afterwards all objects are closed, and memory can be freed.
func closeContextDestroysAll(e *env) {
	w := verbs.NewWaker()
	cq := e.newCQ(e.a, 200, w)
	local, remote := e.buf(e.a, 1<<16), e.buf(e.b, 1<<16)
	c := e.busy(connConfig{cqA: cq}, local, remote)
	num, ep := c.a.Num(), e.endpoint(c.b)
	ahAttr := e.connectAttr(c.a, ep).AH
	ah := e.ah(c.a, c.b)
	var srq verbs.SRQ
	if e.a.attr.Capabilities&verbs.CapSRQ != 0 {
		srq = e.newSRQ(e.a, verbs.SRQConfig{MaxWR: 4})
		e.postRecv(srq, recv(1, local.sge(0, 8)))
	}
	e.must(e.a.ctx.NotifyEvents(w), "NotifyEvents")
	e.arm(cq, false)
	e.must(e.a.ctx.Close(), "Close of a context with everything open")
	e.must(local.mem.Free(), "Free of memory whose region went with the context")
	e.expectContextClosed(e.a.ctx, int(e.a.port))
	e.expectQPClosed(c.a.QP, num, ep)
	e.expectPDClosed(e.a.pd, cq, ahAttr)
	if srq != nil {
		e.expectSRQClosed(srq)
	}
	e.expectClosed("Poll", errorOf(cq.Poll(make([]verbs.WC, 8))))
	e.expectClosed("Arm", cq.Arm(false))
	for _, o := range []closer{cq, ah, local.mr} {
		e.must(o.Close(), "another Close of a %T", o)
	}
}

// A peer whose context is closed stops responding; the local context remains usable.
func closeContextOfPeer(e *env) {
	local, remote := e.filled(e.a, 1, 4096), e.buf(e.b, 4096)
	c := e.conn(connConfig{tweak: shortRetries})
	own := e.loop()
	e.must(e.b.ctx.Close(), "Close of the peer's context")
	e.must(remote.mem.Free(), "Free of the peer's memory")
	e.post(c.a, write(1, remote, 0, local.sge(0, 4096)), send(2))
	e.breaks(c.a, []verbs.Status{verbs.StatusRetryExcErr}, 1, 2)
	e.exchange(own, 1000)
}

// A device can be opened again after one of its contexts was closed.
func closeReopen(e *env) {
	device := e.a.ctx.Device()
	e.busy(connConfig{}, e.buf(e.a, 64), e.buf(e.b, 64))
	e.must(e.a.ctx.Close(), "Close")
	ctx, err := device.Open()
	e.must(err, "Open of a device whose context was closed")
	e.closeLater("context", ctx)
	e.a = e.side("A again", ctx, e.a.port, e.a.gid)
	e.exchange(e.rc(), 5000)
}

// Closing a QP discards its outstanding requests: they never complete, and neither the peer nor
// other QPs on the same CQ are affected (ibv_destroy_qp(3)).
func closeQPWithOutstanding(e *env) {
	cqA, cqB := e.newCQ(e.a, 300, nil), e.newCQ(e.b, 300, nil)
	local, remote := e.buf(e.a, 1<<14), e.buf(e.b, 1<<14)
	other := e.conn(connConfig{cqA: cqA, cqB: cqB})
	for range 5 {
		c := e.busy(connConfig{cqA: cqA, cqB: cqB, tweakB: shortRetries}, local, remote)
		e.postRecv(c.a, recv(11, local.sge(0, 1<<14)), recv(12)) // B's requests may complete now
		e.must(c.a.Close(), "Close of a QP with requests outstanding")
		// B's requests complete in order, successfully or without a response.
		status := verbs.StatusRetryExcErr
		for _, id := range []uint64{4, 5} {
			wc := e.waitOne(cqB)
			if wc.Status != verbs.StatusSuccess {
				e.failed(wc, c.b, id, status)
				status = verbs.StatusWRFlushErr
			} else if status != verbs.StatusRetryExcErr || wc.WRID != id {
				e.Fatalf("wr_id %d of the peer succeeded when it was the turn of %d, expected to be %q at worst", wc.WRID, id, status)
			}
		}
		e.exchange(other, 1000)
		e.expectEmpty(cqA)
		e.must(c.b.Close(), "Close of the peer")
	}
	e.expectEmpty(cqB)
}

// Closing a QP discards its unpolled completions; completions of other QPs stay, in order.
func closeQPDiscards(e *env) {
	cq := e.newCQ(e.a, 200, nil)
	gone, stays := e.conn(connConfig{cqA: cq}), e.conn(connConfig{cqA: cq})
	for id := range uint64(10) {
		for _, c := range []*conn{gone, stays} {
			e.postRecv(c.b, recv(id))
			e.post(c.a, send(id))
		}
	}
	e.wait(gone.b.cq, 10)
	e.wait(stays.b.cq, 10)
	e.must(gone.a.Close(), "Close of a QP with completions in its CQ")
	for id, wc := range e.wait(cq, 10) {
		e.ok(wc, stays.a, uint64(id), verbs.WCSend)
	}
	e.fence(stays)
	e.expectEmpty(cq)
}

// A region may be closed while a send that uses it is queued: the send fails with a protection
// error, or its data was read before.
func closeMRUnderSend(e *env) {
	const size = 10000
	c, other := e.rc(), e.rc()
	src, dst := e.filled(e.a, 1, size), e.buf(e.b, size)
	e.post(c.a, send(1, src.sge(0, size)))
	e.fence(other)
	e.must(src.mr.Close(), "Close of a region in use")
	e.must(src.mem.Free(), "Free of its memory")
	e.postRecv(c.b, recv(2, dst.sge(0, size)))
	wc := e.waitOne(c.a.cq)
	if wc.Status == verbs.StatusSuccess {
		e.ok(wc, c.a, 1, verbs.WCSend)
		e.gets(c.b, 2, size)
		e.same(dst.bytes(), payload(1, size))
	} else {
		e.failed(wc, c.a, 1, verbs.StatusLocProtErr)
		e.inState(c.a, verbs.StateErr)
	}
	e.fence(other)
}

// The target of a READ is not touched after its region is closed.
func closeMRUnderRead(e *env) {
	c := e.rc()
	local, remote := e.buf(e.a, 4096), e.filled(e.b, 1, 4096)
	e.post(c.a, send(1), read(2, remote, 0, local.sge(0, 4096)))
	e.must(local.mr.Close(), "Close of a region in use") // the READ waits behind the SEND
	local.paint()
	e.postRecv(c.b, recv(3))
	e.done(c.a, 1, verbs.WCSend)
	e.fails(c.a, 2, verbs.StatusLocProtErr)
	e.inState(c.a, verbs.StateErr)
	e.untouched(local)
}

// Connections can be closed in any order, from either side, without affecting the others.
func closeAnyOrder(e *env) {
	const count = 12
	cqA, cqB := e.newCQ(e.a, 300, nil), e.newCQ(e.b, 300, nil)
	conns := make([]*conn, count)
	for i := range conns {
		conns[i] = e.conn(connConfig{cqA: cqA, cqB: cqB, sends: 8, recvs: 8})
	}
	turn := func(k int) *conn { return conns[5*k%count] } // each once, not in creation order
	for k := range count {
		first, second := turn(k).a, turn(k).b
		if k%2 == 1 {
			first, second = second, first
		}
		e.must(first.Close(), "Close of one side")
		for rest := k + 1; rest < count; rest++ {
			e.exchange(turn(rest), 100)
		}
		e.must(second.Close(), "Close of the other side")
	}
	e.expectEmpty(cqA, cqB)
}

// dependent is an object with the names of its dependents.
type dependent struct {
	name  string
	obj   closer
	under []string
}

// everything creates one object of each kind on s, which the test closes itself.
func (e *env) everything(s *side) []dependent {
	e.Helper()
	s = e.otherPD(s)
	cq := e.newCQ(s, 8, verbs.NewWaker())
	cfg := verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxRecvWR: 4}
	parts := []dependent{{"pd", s.pd, []string{"mr", "qp", "srq", "ah"}}, {"cq", cq, []string{"qp"}}, {"mr", e.buf(s, 4096).mr, nil}}
	if s.attr.Capabilities&verbs.CapSRQ != 0 {
		cfg.SRQ, cfg.MaxRecvWR = e.newSRQ(s, verbs.SRQConfig{MaxWR: 4}), 0
		parts = append(parts, dependent{"srq", cfg.SRQ, []string{"qp"}})
	}
	qp := e.newQP(s, cfg)
	if s.attr.Capabilities&verbs.CapUD != 0 {
		parts = append(parts, dependent{"ah", e.ah(qp, qp), nil})
	}
	return append(parts, dependent{"qp", qp, nil})
}

// Objects may be closed in any order: closing one that others depend on returns ErrBusy, and
// succeeds after they are closed.
func closeEveryOrder(e *env) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range e.rounds(60) {
		parts := e.everything(e.a)
		rng.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		open := map[string]bool{}
		for _, p := range parts {
			open[p.name] = true
		}
		for pass := 0; len(open) > 0; pass++ {
			if pass > 3 {
				e.Fatalf("after %d passes %v are still open", pass, open)
			}
			for _, p := range parts {
				busy := false
				for _, u := range p.under {
					busy = busy || open[u]
				}
				err := p.obj.Close()
				if busy != errors.Is(err, verbs.ErrBusy) || (!busy && err != nil) {
					e.Fatalf("Close of %s = %v with %v open, want ErrBusy: %v", p.name, err, open, busy)
				}
				if !busy {
					delete(open, p.name)
				}
			}
		}
	}
}

// Closing a CQ or its context wakes a goroutine sleeping in Wait, which returns ErrClosed.
func closeWakesSleepers(e *env) {
	for _, what := range []string{"CQ", "Context"} {
		e.sub(what, func(e *env) {
			w := verbs.NewWaker()
			cq := e.newCQ(e.a, 8, w)
			ended := make(chan error, 1)
			ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
			defer cancel()
			go func() {
				_, err := verbs.Wait(ctx, cq, w, make([]verbs.WC, 1))
				ended <- err
			}()
			if what == "CQ" {
				e.must(cq.Close(), "Close")
			} else {
				e.must(e.a.ctx.Close(), "Close")
			}
			e.refused("Wait on a CQ that was closed", <-ended, verbs.ErrClosed)
		})
	}
}
