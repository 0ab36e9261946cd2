package verbstest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"ibverbx/verbs"
)

// waitLimit is the timeout for expected events: far longer than they take on the slowest
// device of a busy machine, because only a failing test reaches it.
const waitLimit = 60 * time.Second

// deadline paces a polling loop.
type deadline struct {
	start time.Time
	turns int
}

func newDeadline() *deadline { return &deadline{start: time.Now()} }

// wait yields to others for a moment and reports whether time is left.
func (d *deadline) wait() bool {
	if d.turns++; d.turns < 200 {
		runtime.Gosched()
		return true
	}
	time.Sleep(min(time.Duration(d.turns)*time.Microsecond, time.Millisecond))
	return time.Since(d.start) < waitLimit
}

// poison fills completions before a Poll, which reveals fields that the provider does not
// write.
var poison = verbs.WC{
	WRID: 0xdeadbeefdeadbeef, Status: 0xee, Opcode: 0xee, Flags: 0xff, SL: 0xee, VendorErr: 0xeeeeeeee,
	ByteLen: 0xeeeeeeee, Imm: 0xeeeeeeee, QPN: 0xeeeeeeee, SrcQPN: 0xeeeeeeee, SLID: 0xeeee, PKeyIndex: 0xeeee,
}

// pollN polls exactly n completions. The time limit restarts with each completion.
func pollN(cq verbs.CQ, n int) ([]verbs.WC, error) {
	got := slices.Repeat([]verbs.WC{poison}, n)
	have := 0
	for d := newDeadline(); have < n; {
		k, err := cq.Poll(got[have:])
		switch {
		case k < 0 || k > n-have:
			return got[:have], fmt.Errorf("Poll into %d completions = %d, %w", n-have, k, err)
		case k > 0:
			have += k
			d = newDeadline()
		case err != nil:
			return got[:have], fmt.Errorf("Poll after %d of %d completions: %w", have, n, err)
		case !d.wait():
			return got[:have], fmt.Errorf("%d of %d completions, then none for %v", have, n, waitLimit)
		}
	}
	return got, nil
}

// wait polls exactly the next n completions of cq.
func (e *env) wait(cq verbs.CQ, n int) []verbs.WC {
	e.Helper()
	wcs, err := pollN(cq, n)
	if err != nil {
		e.Fatalf("waiting for completions: %v; got %s; events: A %v, B %v", err, describe(wcs), e.takeEvents(e.a), e.takeEvents(e.b))
	}
	return wcs
}

func (e *env) waitOne(cq verbs.CQ) verbs.WC {
	e.Helper()
	return e.wait(cq, 1)[0]
}

// describe formats the fields valid in every completion.
func describe(wcs []verbs.WC) string {
	s := "["
	for i, wc := range wcs {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprintf("wr_id %d: %v", wc.WRID, wc.Status)
	}
	return s + "]"
}

// expectEmpty fails the test if one of the queues has a completion. The caller has already observed
// a later event than the forbidden completion.
func (e *env) expectEmpty(cqs ...verbs.CQ) {
	e.Helper()
	for _, cq := range cqs {
		wcs := slices.Repeat([]verbs.WC{poison}, 8)
		if n, err := cq.Poll(wcs); n != 0 || err != nil {
			e.Fatalf("Poll = %d, %v with %s, want an empty queue", n, err, describe(wcs[:max(n, 0)]))
		}
	}
}

// ok fails the test unless wc is the success of q's request id.
func (e *env) ok(wc verbs.WC, q *end, id uint64, op verbs.WCOpcode) {
	e.Helper()
	if err := wc.Err(); err != nil {
		e.Fatalf("completion on %s, want success of wr_id %d: %v", q.side.name, id, err)
	}
	if wc.WRID != id || wc.Opcode != op || wc.QPN != q.Num() {
		e.Fatalf("completion on %s = wr_id %d %v QP %#x, want wr_id %d %v QP %#x",
			q.side.name, wc.WRID, wc.Opcode, wc.QPN, id, op, q.Num())
	}
}

// done takes the success of q's request id from its send CQ.
func (e *env) done(q *end, id uint64, op verbs.WCOpcode) {
	e.Helper()
	e.ok(e.waitOne(q.sendCQ), q, id, op)
}

// doneFrom takes the successes of count requests of q with consecutive wr_ids from first.
func (e *env) doneFrom(q *end, first uint64, count int, op verbs.WCOpcode) {
	e.Helper()
	for i, wc := range e.wait(q.sendCQ, count) {
		e.ok(wc, q, first+uint64(i), op)
	}
}

// received fails the test unless wc is a receive of n bytes without an immediate.
func (e *env) received(wc verbs.WC, q *end, id uint64, n int) {
	e.Helper()
	e.ok(wc, q, id, verbs.WCRecv)
	if wc.ByteLen != uint32(n) || wc.Flags&verbs.WCWithImm != 0 {
		e.Fatalf("receive = %d bytes, flags %#x, want %d bytes and no immediate", wc.ByteLen, uint8(wc.Flags), n)
	}
}

// gets takes q's receive id from its CQ: n bytes without an immediate.
func (e *env) gets(q *end, id uint64, n int) {
	e.Helper()
	e.received(e.waitOne(q.cq), q, id, n)
}

// receivedImm fails the test unless wc is a receive of n bytes with the immediate.
func (e *env) receivedImm(wc verbs.WC, q *end, id uint64, op verbs.WCOpcode, n int, imm uint32) {
	e.Helper()
	e.ok(wc, q, id, op)
	if wc.ByteLen != uint32(n) || wc.Flags&verbs.WCWithImm == 0 || wc.Imm != imm {
		e.Fatalf("receive = %d bytes, flags %#x, immediate %#x, want %d bytes and immediate %#x",
			wc.ByteLen, uint8(wc.Flags), wc.Imm, n, imm)
	}
}

// getsImm takes q's receive id from its CQ: n bytes with the immediate.
func (e *env) getsImm(q *end, id uint64, op verbs.WCOpcode, n int, imm uint32) {
	e.Helper()
	e.receivedImm(e.waitOne(q.cq), q, id, op, n, imm)
}

// failed fails the test unless wc is the failure of q's request id with one of the statuses, or
// with a substitute of one. It ignores the fields that are invalid in a failed completion
// (ibv_poll_cq(3)).
func (e *env) failed(wc verbs.WC, q *end, id uint64, want ...verbs.Status) {
	e.Helper()
	for _, right := range want {
		if subs := e.pair.Substitutes[right]; slices.Contains(subs, wc.Status) && !slices.Contains(want, wc.Status) {
			e.Logf("%q is accepted as %q", wc.Status, right)
			want = append(want[:len(want):len(want)], subs...)
		}
	}
	if wc.WRID != id || wc.QPN != q.Num() || !slices.Contains(want, wc.Status) {
		e.Fatalf("completion on %s = wr_id %d QP %#x status %q, want wr_id %d QP %#x status %v",
			q.side.name, wc.WRID, wc.QPN, wc.Status, id, q.Num(), want)
	}
	if wc.Err() == nil {
		e.Fatalf("Err of a completion with status %q = nil", wc.Status)
	}
}

// fails takes the failure of q's request id from its CQ.
func (e *env) fails(q *end, id uint64, want ...verbs.Status) {
	e.Helper()
	e.failed(e.waitOne(q.cq), q, id, want...)
}

// breaks takes the failure of q's first request and the flushed requests behind it, and waits until
// q is in the error state.
func (e *env) breaks(q *end, want []verbs.Status, first uint64, rest ...uint64) {
	e.Helper()
	e.fails(q, first, want...)
	e.flushed(q.cq, q, rest...)
	e.inState(q, verbs.StateErr)
}

// flushed takes the completions of the given requests from cq: all flushed, in order.
func (e *env) flushed(cq verbs.CQ, q *end, ids ...uint64) {
	e.Helper()
	for i, wc := range e.wait(cq, len(ids)) {
		e.failed(wc, q, ids[i], verbs.StatusWRFlushErr)
	}
}

// orRetryExc returns the statuses that a requester may see if its peer rejects a request with s. The
// peer enters the error state and stops responding, so on a lossy path the response may be lost and
// the retries are exhausted (IBTA 9.9.2, requester errors).
func (e *env) orRetryExc(s ...verbs.Status) []verbs.Status {
	if e.pair.Lossy {
		return append(slices.Clip(s), verbs.StatusRetryExcErr)
	}
	return s
}

// inState waits until q is in state want.
func (e *env) inState(q *end, want verbs.QPState) {
	e.Helper()
	for d := newDeadline(); q.State() != want; {
		if !d.wait() {
			e.Fatalf("state of the QP on %s = %v after %v, want %v", q.side.name, q.State(), waitLimit, want)
		}
	}
	if attr := e.query(q); attr.State != want {
		e.Fatalf("Query on %s: State = %v, but State() = %v", q.side.name, attr.State, want)
	}
}

// bothIn waits until both ends of c are in the state.
func (e *env) bothIn(c *conn, want verbs.QPState) {
	e.Helper()
	e.inState(c.a, want)
	e.inState(c.b, want)
}

func (e *env) query(q *end) verbs.QPAttr {
	e.Helper()
	attr, err := q.Query()
	e.must(err, "Query on %s", q.side.name)
	return attr
}

// takeEvents removes the queued events and returns all events not yet used by a check.
func (e *env) takeEvents(s *side) []verbs.Event {
	var evs [8]verbs.Event
	for {
		n, err := s.ctx.Events(evs[:])
		if n <= 0 || err != nil {
			return s.seen
		}
		s.seen = append(s.seen, evs[:n]...)
	}
}

// event waits for an event of type t about obj (a QP, CQ or SRQ) and removes it.
func (e *env) event(s *side, t verbs.EventType, obj any) {
	e.Helper()
	for d := newDeadline(); ; {
		if e.takeEvent(s, t, obj) {
			return
		}
		if !d.wait() {
			e.Fatalf("no event %q on %s after %v; received events: %v", t, s.name, waitLimit, s.seen)
		}
	}
}

// takeEvent removes the next event of type t about obj, and reports whether one was received.
func (e *env) takeEvent(s *side, t verbs.EventType, obj any) bool {
	for i, ev := range e.takeEvents(s) {
		if ev.Type == t && subject(ev) == obj {
			s.seen = slices.Delete(s.seen, i, i+1)
			return true
		}
	}
	return false
}

// subject returns the object of an event.
func subject(ev verbs.Event) any {
	switch {
	case ev.QP != nil:
		return ev.QP
	case ev.CQ != nil:
		return ev.CQ
	case ev.SRQ != nil:
		return ev.SRQ
	}
	return nil
}

// waitWoken waits for the token of w and consumes it.
func (e *env) waitWoken(w *verbs.Waker, why string) {
	e.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	if err := w.Wait(ctx); err != nil {
		e.Fatalf("no wake after %v: %s", waitLimit, why)
	}
}

// takeToken consumes w's token, and reports whether it was set.
func takeToken(w *verbs.Waker) bool {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return w.Wait(ctx) == nil
}

// fence sends a message in each direction on connection c, so that both devices have processed all
// earlier packets.
func (e *env) fence(c *conn) {
	e.Helper()
	e.message(c, recv(901), send(902))
	e.message(c.back(), recv(903), send(904))
}
