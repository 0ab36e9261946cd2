package verbstest

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"ibverbx/verbs"
)

var cqTests = []test{
	{"Empty", cqEmpty},
	{"SharedByQPs", cqShared},
	{"SmallPolls", cqSmallPolls},
	{"SeparateSendAndReceive", cqSeparate},
	{"Depth", cqDepth},
	{"Fits", cqFits},
	{"BadDepth", cqBadDepth},
	{"OverrunByReceives", cqOverrunByReceives},
	{"OverrunBySends", cqOverrunBySends},
	{"Timestamp", cqTimestamp},
	{"BadCQs", cqBadCQs},
	{"BusyWithQP", cqBusy},
	{"Closed", cqClosed},
}

// A new queue is empty, and polling it is not an error (ibv_poll_cq(3) returns 0).
func cqEmpty(e *env) {
	cq := e.newCQ(e.a, 8, nil)
	e.expectEmpty(cq)
	c := e.conn(connConfig{cqA: cq})
	e.fence(c)
	e.expectEmpty(cq)
}

// pollInterleaved polls the completions of several QPs from their common queue. Each QP's
// requests are numbered from 0 and must complete in that order. The QP number identifies
// the QP of a completion.
func (e *env) pollInterleaved(ends []*end, each int, check func(wc verbs.WC, i int, id uint64)) {
	e.Helper()
	index, next := map[uint32]int{}, make([]uint64, len(ends))
	for i, q := range ends {
		index[q.Num()] = i
	}
	for _, wc := range e.wait(ends[0].cq, len(ends)*each) {
		i, ok := index[wc.QPN]
		if !ok || next[i] == uint64(each) {
			e.Fatalf("completion of wr_id %d is of QP %#x, which has none due", wc.WRID, wc.QPN)
		}
		check(wc, i, next[i])
		next[i]++
	}
}

// A CQ can serve several QPs: completions of each are in order and carry its QP number (IBTA
// 11.4.2.1).
func cqShared(e *env) {
	const qps, each = 5, 12
	cfg := connConfig{cqA: e.newCQ(e.a, qps*each, nil), cqB: e.newCQ(e.b, qps*each, nil)}
	as, bs := make([]*end, qps), make([]*end, qps)
	for i := range qps {
		c := e.conn(cfg)
		as[i], bs[i] = c.a, c.b
	}
	imm := func(i int, id uint64) uint32 { return uint32(i)<<16 | uint32(id) }
	for id := range uint64(each) {
		for i := range qps {
			e.postRecv(bs[i], recv(id))
			e.post(as[i], sendImm(id, imm(i, id)))
		}
	}
	e.pollInterleaved(as, each, func(wc verbs.WC, i int, id uint64) {
		e.ok(wc, as[i], id, verbs.WCSend)
	})
	e.pollInterleaved(bs, each, func(wc verbs.WC, i int, id uint64) {
		e.receivedImm(wc, bs[i], id, verbs.WCRecv, 0, imm(i, id))
	})
	e.expectEmpty(cfg.cqA, cfg.cqB)
}

// A poll removes the oldest completions and leaves the others, in order; a poll into an empty slice
// removes none (ibv_poll_cq(3)).
func cqSmallPolls(e *env) {
	const count = 20
	c, other := e.rc(), e.rc()
	for id := range uint64(count) {
		e.postRecv(c.b, recv(id))
		e.post(c.a, sendImm(100+id, uint32(id)))
	}
	e.doneFrom(c.a, 100, count, verbs.WCSend)
	e.fence(other)
	next := uint64(0)
	for _, size := range []int{1, 3, 0, 1, 7, 2, 0, 6} {
		if n, err := c.b.cq.Poll(make([]verbs.WC, 0, size)); n != 0 || err != nil {
			e.Fatalf("Poll without room = %d, %v, want 0, nil", n, err)
		}
		if n, err := c.b.cq.Poll(nil); n != 0 || err != nil {
			e.Fatalf("Poll(nil) = %d, %v, want 0, nil", n, err)
		}
		for _, wc := range e.wait(c.b.cq, size) {
			e.receivedImm(wc, c.b, next, verbs.WCRecv, 0, uint32(next))
			next++
		}
	}
	if next != count {
		e.Fatalf("the polls had room for %d completions, want %d", next, count)
	}
	e.expectEmpty(c.b.cq)
}

// Sends complete in the send CQ, receives in the receive CQ.
func cqSeparate(e *env) {
	const count = 10
	c := e.conn(connConfig{sendA: e.newCQ(e.a, 32, nil)})
	for id := range uint64(count) {
		e.postRecv(c.a, recv(id))
		e.postRecv(c.b, recv(id))
		e.post(c.a, send(100+id))
		e.post(c.b, send(200+id))
	}
	e.doneFrom(c.a, 100, count, verbs.WCSend)
	for i, wc := range e.wait(c.a.cq, count) {
		e.received(wc, c.a, uint64(i), 0)
	}
	e.expectEmpty(c.a.sendCQ, c.a.cq)
	sends, recvs := uint64(200), uint64(0)
	for _, wc := range e.wait(c.b.cq, 2*count) {
		if wc.Opcode == verbs.WCSend {
			e.ok(wc, c.b, sends, verbs.WCSend)
			sends++
		} else {
			e.received(wc, c.b, recvs, 0)
			recvs++
		}
	}
}

// depths returns requested queue sizes: powers of two and their neighbors.
func (e *env) depths(s *side) []int {
	all := []int{1, 2, 3, 15, 16, 17, 100, 1000}
	return slices.DeleteFunc(all, func(n int) bool { return n > s.attr.MaxCQE })
}

// A queue is at least as deep as requested, up to the device limit (ibv_create_cq(3)).
func cqDepth(e *env) {
	for _, n := range append(e.depths(e.a), min(e.a.attr.MaxCQE, 1<<16)) {
		cq := e.newCQ(e.a, n, nil)
		if got := cq.Depth(); got < n || got > max(e.a.attr.MaxCQE, n) {
			e.Errorf("Depth of a CQ made for %d = %d, want %d to %d", n, got, n, e.a.attr.MaxCQE)
		}
		e.must(cq.Close(), "Close")
	}
}

// A queue holds its full depth of completions without an overrun.
func cqFits(e *env) {
	for _, depth := range e.depths(e.b) {
		if depth > min(e.a.attr.MaxQPWR, e.b.attr.MaxQPWR) {
			continue
		}
		e.sub(fmt.Sprintf("depth=%d", depth), func(e *env) {
			c := e.conn(connConfig{cqB: e.newCQ(e.b, depth, nil), sends: depth, recvs: depth})
			for round := range uint64(3) { // slots are reused
				for i := range uint64(depth) {
					e.postRecv(c.b, recv(round<<32|i))
					e.post(c.a, send(i))
				}
				e.doneFrom(c.a, 0, depth, verbs.WCSend)
				for i, wc := range e.wait(c.b.cq, depth) {
					e.received(wc, c.b, round<<32|uint64(i), 0)
				}
			}
			e.expectEmpty(c.b.cq)
			e.inState(c.b, verbs.StateRTS)
			if e.takeEvent(e.b, verbs.EventCQErr, c.b.cq) {
				e.Error("a CQ that was just full reported an error")
			}
		})
	}
}

// A depth below 1 or above the device limit is refused.
func cqBadDepth(e *env) {
	for _, n := range []int{0, -1, math.MinInt32, e.a.attr.MaxCQE + 1, math.MaxInt32} {
		if n > 0 && n <= e.a.attr.MaxCQE {
			continue
		}
		want := []error{verbs.ErrInvalid}
		if n > 0 {
			want = append(want, verbs.ErrLimit)
		}
		e.rejectsCreate(fmt.Sprintf("CreateCQ with Depth %d", n), want...)(e.a.ctx.CreateCQ(verbs.CQConfig{Depth: n}))
	}
}

// overrun checks the effects of too many completions in a queue (IBTA 11.6.3.1 and 10.2.4.4):
// an event about the queue, q in the error state, and failures of its other QPs. The completions
// that fit can be polled; then Poll reports the loss.
func (e *env) overrun(q, other *end, posted int, check func(wc verbs.WC, id uint64)) {
	e.Helper()
	e.event(q.side, verbs.EventCQErr, q.cq)
	e.inState(q, verbs.StateErr)
	e.post(other, send(1))
	e.inState(other, verbs.StateErr)
	good, failed := 0, 0
	wcs := make([]verbs.WC, 16)
	for d := newDeadline(); ; {
		n, err := q.cq.Poll(wcs)
		for _, wc := range wcs[:max(n, 0)] {
			switch {
			case wc.Status != verbs.StatusSuccess:
				failed++ // flushed into a slot freed by a poll
			case failed > 0:
				e.Fatalf("wr_id %d succeeded after another failed", wc.WRID)
			default:
				check(wc, uint64(good))
				good++
			}
		}
		if errors.Is(err, verbs.ErrCQOverrun) {
			break
		}
		e.must(err, "Poll of a CQ that overran")
		if n == 0 && !d.wait() {
			e.Fatalf("Poll of a CQ that overran = 0, nil after %d completions, want ErrCQOverrun", good)
		}
	}
	if good != q.cq.Depth() {
		e.Errorf("%d of %d completions could be polled from a CQ of depth %d that overran", good, posted, q.cq.Depth())
	}
	n, err := q.cq.Poll(wcs)
	e.refused(fmt.Sprintf("another Poll = %d", n), err, verbs.ErrCQOverrun)
	if n != 0 {
		e.Errorf("another Poll of a CQ that overran = %d completions, want none", n)
	}
}

// flood returns a number of completions that overruns cq even if its capacity exceeds Depth.
func (e *env) flood(cq verbs.CQ) int {
	e.Helper()
	n := 2*cq.Depth() + 16
	if n > min(e.a.attr.MaxQPWR, e.b.attr.MaxQPWR) {
		e.Skipf("the smallest CQ holds %d completions, more than a QP can have outstanding", cq.Depth())
	}
	return n
}

// A CQ overruns if completed receives are not polled: it raises an event, Poll returns the stored
// completions and then ErrCQOverrun, and its QPs enter the error state (ibv_get_async_event(3),
// IBV_EVENT_CQ_ERR).
func cqOverrunByReceives(e *env) {
	cq := e.newCQ(e.b, 4, nil)
	n := e.flood(cq)
	c, other := e.conn(connConfig{cqB: cq, sends: n, recvs: n}), e.conn(connConfig{cqB: cq})
	e.postRecv(other.a, recv(1))
	e.stock(c.b, n)
	for id := range uint64(n) {
		e.post(c.a, silent(sendImm(id, uint32(id))))
	}
	e.overrun(c.b, other.b, n, func(wc verbs.WC, id uint64) {
		e.receivedImm(wc, c.b, id, verbs.WCRecv, 0, uint32(id))
	})
}

// A CQ overruns in the same way if completed sends are not polled.
func cqOverrunBySends(e *env) {
	cq := e.newCQ(e.a, 4, nil)
	n := e.flood(cq)
	c, other := e.conn(connConfig{cqA: cq, sends: n, recvs: n}), e.conn(connConfig{cqA: cq})
	e.postRecv(other.b, recv(1))
	src, dst := e.buf(e.a, 8), e.buf(e.b, 8)
	for id := range uint64(n) {
		// The last sends may be posted in the error state, where they are accepted too.
		e.post(c.a, write(id, dst, 0, src.sge(0, 8)))
	}
	e.overrun(c.a, other.a, n, func(wc verbs.WC, id uint64) {
		e.ok(wc, c.a, id, verbs.WCRDMAWrite)
	})
}

// Completions have increasing timestamps from a readable clock if the device supports them;
// otherwise a CQ with timestamps is refused.
func cqTimestamp(e *env) {
	cq, err := e.a.ctx.CreateCQ(verbs.CQConfig{Depth: 64, Timestamp: true})
	if e.a.attr.Capabilities&verbs.CapTimestamp == 0 {
		e.rejectsCreate("CreateCQ with Timestamp without CapTimestamp", verbs.ErrNotSupported)(cq, err)
		return
	}
	e.must(err, "CreateCQ with Timestamp")
	e.closeLater("CQ", cq)
	c := e.conn(connConfig{cqA: cq})
	e.postRecv(c.b, recv(1), recv(2))
	e.post(c.a, send(1), send(2))
	wcs := e.wait(cq, 2)
	if wcs[0].Timestamp == 0 || wcs[1].Timestamp < wcs[0].Timestamp {
		e.Errorf("timestamps of two completions = %d, %d, want them to rise from above 0", wcs[0].Timestamp, wcs[1].Timestamp)
	}
	if clock, ok := e.a.ctx.(verbs.ClockReader); !ok {
		e.Errorf("the context has CapTimestamp and does not implement ClockReader, want both")
	} else if now, hz, err := clock.ReadClock(); err != nil || hz == 0 || now < wcs[1].Timestamp {
		e.Errorf("ReadClock = %d, %d, %v after a completion at %d, want a later time and a frequency", now, hz, err, wcs[1].Timestamp)
	}
}

// A QP needs two open CQs of its own context.
func cqBadCQs(e *env) {
	own, closed := e.newCQ(e.a, 8, nil), e.newCQ(e.a, 8, nil)
	foreign, second := e.newCQ(e.b, 8, nil), e.newCQ(e.again(e.a), 8, nil)
	e.must(closed.Close(), "Close")
	bads := map[string]verbs.CQ{"nil": nil, "other context": foreign, "other context of the device": second, "closed": closed}
	for name, bad := range bads {
		for field, cqs := range map[string][2]verbs.CQ{"SendCQ": {bad, own}, "RecvCQ": {own, bad}, "both": {bad, bad}} {
			cfg := verbs.QPConfig{Type: verbs.RC, SendCQ: cqs[0], RecvCQ: cqs[1], MaxSendWR: 1, MaxRecvWR: 1, Port: e.a.port, GID: e.a.gid}
			want := []error{verbs.ErrInvalid}
			if name == "closed" {
				want = append(want, verbs.ErrClosed)
			}
			e.rejectsCreate(fmt.Sprintf("CreateQP with %s: %s", field, name), want...)(e.a.pd.CreateQP(cfg))
		}
	}
	e.must(own.Close(), "Close of the CQ that no QP got")
	e.must(foreign.Close(), "Close of the CQ of the other context")
}

// Closing a CQ used by a QP, for sends or receives, returns ErrBusy; the CQ remains usable, and
// closes after the QP (ibv_destroy_cq(3)).
func cqBusy(e *env) {
	sends, recvs := e.newCQ(e.a, 200, nil), e.newCQ(e.a, 200, nil)
	c := e.conn(connConfig{sendA: sends, cqA: recvs})
	for name, cq := range map[string]verbs.CQ{"send": sends, "receive": recvs} {
		e.refused("Close of the "+name+" CQ of a QP", cq.Close(), verbs.ErrBusy)
	}
	e.exchange(c, 100)
	e.exchange(c.back(), 100)
	e.must(c.a.Close(), "Close of the QP")
	e.must(sends.Close(), "Close of the send CQ")
	e.must(recvs.Close(), "Close of the receive CQ")
}

// Methods of a closed CQ return ErrClosed, whatever it contained.
func cqClosed(e *env) {
	for _, n := range []uint64{0, 3} {
		cq := e.newCQ(e.a, 200, verbs.NewWaker())
		c := e.conn(connConfig{cqA: cq})
		for id := range n {
			e.postRecv(c.b, recv(id))
			e.post(c.a, send(id))
		}
		e.wait(c.b.cq, int(n))
		e.must(c.a.Close(), "Close of the QP")
		e.must(cq.Close(), "Close")
		for _, dst := range [][]verbs.WC{make([]verbs.WC, 4), nil} {
			got, err := cq.Poll(dst)
			e.refused(fmt.Sprintf("Poll with room for %d after Close = %d", len(dst), got), err, verbs.ErrClosed)
			if got != 0 {
				e.Errorf("Poll after Close = %d completions, want none", got)
			}
		}
		e.refused("Arm(false) after Close", cq.Arm(false), verbs.ErrClosed)
		e.refused("Arm(true) after Close", cq.Arm(true), verbs.ErrClosed)
		e.must(cq.Close(), "Close a second time")
	}
}
