package verbstest

import (
	"context"
	"fmt"
	"time"

	"ibverbx/verbs"
)

var waitTests = []test{
	{"NeedsWaker", waitNeedsWaker},
	{"EveryKind", waitEveryKind},
	{"CompletionThenArm", waitCompletionThenArm},
	{"OneWakePerArm", waitOneWake},
	{"SolicitedOnly", waitSolicitedOnly},
	{"SolicitedOnlyFailed", waitSolicitedFailed},
	{"AnyAfterSolicited", waitAnyAfterSolicited},
	{"SolicitedAfterAny", waitSolicitedAfterAny},
	{"SharedWaker", waitSharedWaker},
	{"Cancel", waitCancel},
	{"StaleToken", waitStaleToken},
	{"PingPong", waitPingPong},
}

// sleepy is a connection whose end b sleeps on w, and another one with a separate Waker that shows
// when the first would have been woken.
type sleepy struct {
	*conn
	w      *verbs.Waker
	other  *conn
	otherW *verbs.Waker
}

func (e *env) sleepy() *sleepy {
	e.Helper()
	w, otherW := verbs.NewWaker(), verbs.NewWaker()
	return &sleepy{
		conn: e.conn(connConfig{cqB: e.newCQ(e.b, 200, w)}), w: w,
		other: e.conn(connConfig{cqB: e.newCQ(e.b, 200, otherW)}), otherW: otherW,
	}
}

func (e *env) arm(cq verbs.CQ, solicitedOnly bool) {
	e.Helper()
	e.must(cq.Arm(solicitedOnly), "Arm(%v)", solicitedOnly)
}

// notWoken fails the test if w has been woken. It first waits for the wake-up of another queue of
// the same device, for a later completion.
func (e *env) notWoken(s *sleepy, why string) {
	e.Helper()
	e.arm(s.other.b.cq, false)
	e.message(s.other, recv(77), send(77))
	e.waitWoken(s.otherW, "the completion of another connection")
	if takeToken(s.w) {
		e.Errorf("woken %s", why)
	}
}

// A queue created without a Waker supports polling only.
func waitNeedsWaker(e *env) {
	cq := e.newCQ(e.a, 64, nil)
	e.refused("Arm(false) without a Waker", cq.Arm(false), verbs.ErrNotSupported)
	e.refused("Arm(true) without a Waker", cq.Arm(true), verbs.ErrNotSupported)
	ctx, cancel := context.WithTimeout(e.Context(), waitLimit)
	defer cancel()
	n, err := verbs.Wait(ctx, cq, verbs.NewWaker(), make([]verbs.WC, 1))
	e.refused(fmt.Sprintf("Wait = %d", n), err, verbs.ErrNotSupported)
}

// All kinds of completions wake: sends, one-sided requests, failures.
func waitEveryKind(e *env) {
	w := verbs.NewWaker()
	cq := e.newCQ(e.a, 200, w)
	c := e.conn(connConfig{cqA: cq})
	local, remote := e.buf(e.a, 64), e.buf(e.b, 64)
	for _, wr := range []verbs.SendWR{
		send(1), write(2, remote, 0, local.sge(0, 64)), read(3, remote, 0, local.sge(0, 64)),
	} {
		e.postRecv(c.b, recv(1))
		e.arm(cq, false)
		e.post(c.a, wr)
		e.waitWoken(w, fmt.Sprintf("a %v completed", wr.Opcode))
		e.done(c.a, wr.WRID, wr.Opcode.WC())
	}
	e.postRecv(c.a, recv(4))
	e.arm(cq, false)
	e.move(c.a, verbs.StateErr)
	e.waitWoken(w, "a receive was flushed")
	e.flushed(cq, c.a, 4)
}

// sleep takes one completion with verbs.Wait.
func (e *env) sleep(cq verbs.CQ, w *verbs.Waker) verbs.WC {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), waitLimit)
	defer cancel()
	wcs := []verbs.WC{poison}
	n, err := verbs.Wait(ctx, cq, w, wcs)
	e.must(err, "Wait = %d", n)
	return wcs[0]
}

// A completion queued before Arm need not wake, but the poll after Arm finds it: Wait never misses
// a completion, whenever it arrives.
func waitCompletionThenArm(e *env) {
	s := e.sleepy()
	for id := range uint64(50) {
		e.postRecv(s.b, recv(id))
		e.post(s.a, send(id))
		if id%2 == 0 { // otherwise it may arrive at any time from here on
			e.done(s.a, id, verbs.WCSend)
			e.fence(s.other)
		}
		if id%4 < 2 {
			e.arm(s.b.cq, false)
		}
		e.received(e.sleep(s.b.cq, s.w), s.b, id, 0)
		if id%2 != 0 {
			e.done(s.a, id, verbs.WCSend)
		}
	}
}

// An armed queue wakes once when a completion arrives, even if no goroutine sleeps yet
// (ibv_req_notify_cq(3)); further completions do not wake until it is armed again.
func waitOneWake(e *env) {
	s := e.sleepy()
	e.message(s.conn, recv(100), flagged(send(100), verbs.SendSolicited))
	e.notWoken(s, "although the CQ was not armed")
	for id := range uint64(3) {
		e.arm(s.b.cq, false)
		e.message(s.conn, recv(id), send(id))
		e.waitWoken(s.w, "a receive completed")
		e.message(s.conn, recv(10+id), send(10+id))
		e.message(s.conn, recv(20+id), flagged(send(20+id), verbs.SendSolicited))
		e.notWoken(s, "twice although the CQ was armed once")
	}
}

// Of successful completions, a queue armed for solicited ones wakes only for messages sent with
// SendSolicited (IBTA 11.4.2.2).
func waitSolicitedOnly(e *env) {
	s := e.sleepy()
	src, dst := e.buf(e.a, 8), e.buf(e.b, 8)
	e.arm(s.b.cq, true)
	for id := range uint64(3) {
		e.message(s.conn, recv(id), send(id))
	}
	e.postRecv(s.a, recv(20))
	e.post(s.b, flagged(send(21), verbs.SendSolicited)) // solicits at A, not at B
	e.done(s.b, 21, verbs.WCSend)
	e.gets(s.a, 20, 0)
	e.notWoken(s, "by completions that were not solicited")
	e.message(s.conn, recv(4), flagged(send(4), verbs.SendSolicited))
	e.waitWoken(s.w, "a solicited receive completed")
	e.arm(s.b.cq, true)
	e.postRecv(s.b, recv(30))
	e.post(s.a, flagged(writeImm(31, 5, dst, 0, src.sge(0, 8)), verbs.SendSolicited))
	e.waitWoken(s.w, "a solicited WRITE_WITH_IMM completed")
	e.getsImm(s.b, 30, verbs.WCRecvRDMAWithImm, 8, 5)
	e.done(s.a, 31, verbs.WCRDMAWrite)
}

// A failed completion also wakes, because no solicited one will follow it (IBTA 11.4.2.2,
// "solicited completion event").
func waitSolicitedFailed(e *env) {
	e.sub("FlushedReceive", func(e *env) {
		s := e.sleepy()
		e.postRecv(s.b, recv(1))
		e.arm(s.b.cq, true)
		e.move(s.b, verbs.StateErr)
		e.waitWoken(s.w, "a receive was flushed")
		e.flushed(s.b.cq, s.b, 1)
	})
	e.sub("FailedSend", func(e *env) {
		s := e.sleepy()
		local, remote := e.buf(e.b, 64), e.buf(e.a, 64)
		e.arm(s.b.cq, true)
		e.post(s.b, write(1, remote, 1, local.sge(0, 64)))
		e.waitWoken(s.w, "a WRITE failed")
		e.fails(s.b, 1, e.orRetryExc(verbs.StatusRemAccessErr)...)
	})
}

// Arm(true) followed by Arm(false) requests one wake-up for any completion (IBTA 11.4.2.2).
func waitAnyAfterSolicited(e *env) {
	s := e.sleepy()
	e.arm(s.b.cq, true)
	e.arm(s.b.cq, false)
	e.message(s.conn, recv(1), send(1))
	e.waitWoken(s.w, "a receive completed after Arm(true) and Arm(false)")
	e.message(s.conn, recv(2), flagged(send(2), verbs.SendSolicited))
	e.notWoken(s, "twice after Arm(true) and Arm(false): they are one request")
}

// Arm(true) does not narrow an earlier Arm(false).
func waitSolicitedAfterAny(e *env) {
	s := e.sleepy()
	e.arm(s.b.cq, false)
	e.arm(s.b.cq, true)
	e.message(s.conn, recv(1), send(1))
	e.waitWoken(s.w, "a receive completed after Arm(false) and Arm(true)")
}

// postAside posts a send from another goroutine.
func postAside(q *end, wr verbs.SendWR) <-chan error {
	posted := make(chan error, 1)
	go func() {
		_, err := q.PostSend([]verbs.SendWR{wr})
		posted <- err
	}()
	return posted
}

// One goroutine can wait for two queues and the events of the context together.
func waitSharedWaker(e *env) {
	w := verbs.NewWaker()
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8})
	// The last connection's CQ has no Waker; only its SRQ raises an event.
	conns := []*conn{
		e.conn(connConfig{cqB: e.newCQ(e.b, 200, w)}), e.conn(connConfig{cqB: e.newCQ(e.b, 200, w)}), e.conn(connConfig{srqB: srq}),
	}
	e.must(e.b.ctx.NotifyEvents(w), "NotifyEvents")
	for id := range uint64(30) {
		e.postRecv(conns[0].b, recv(id))
		e.postRecv(conns[1].b, recv(id))
		e.postRecv(srq, recv(id))
		e.must(srq.SetLimit(1), "SetLimit")
		for k := range 3 { // one by one, so that each must wake on its own
			i := (int(id) + k) % 3
			sent := postAside(conns[i].a, send(id))
			e.findOne(w, srq, conns, i, id)
			e.must(<-sent, "PostSend")
			e.done(conns[i].a, id, verbs.WCSend)
		}
		e.gets(conns[2].b, id, 0)
	}
	e.must(e.b.ctx.NotifyEvents(nil), "NotifyEvents(nil)")
}

// findOne waits on w for a receive of connection i, or for the limit event if i is the SRQ's
// index. Other completions fail the test.
func (e *env) findOne(w *verbs.Waker, srq verbs.SRQ, conns []*conn, i int, id uint64) {
	e.Helper()
	look := func() (found bool) {
		for k, c := range conns[:2] {
			if k != i {
				e.expectEmpty(c.b.cq)
				continue
			}
			wcs := []verbs.WC{poison}
			n, err := c.b.cq.Poll(wcs)
			e.must(err, "Poll")
			if found = n > 0; found {
				e.received(wcs[0], c.b, id, 0)
			}
		}
		return found || i == 2 && e.takeEvent(e.b, verbs.EventSRQLimitReached, srq)
	}
	for !look() {
		e.arm(conns[0].b.cq, false)
		e.arm(conns[1].b.cq, false)
		if look() {
			return
		}
		e.waitWoken(w, fmt.Sprintf("round %d, source %d", id, i))
	}
}

// Wait returns when its context is done, without losing a completion; an available completion takes
// precedence over the context's error.
func waitCancel(e *env) {
	s := e.sleepy()
	for id := range uint64(10) {
		ctx, cancel := context.WithCancel(e.Context())
		ended := make(chan error, 1)
		go func() {
			n, err := verbs.Wait(ctx, s.b.cq, s.w, make([]verbs.WC, 4))
			ended <- fmt.Errorf("%d, %w", n, err)
		}()
		e.fence(s.other)
		cancel()
		select {
		case err := <-ended:
			e.refused("Wait on a context that was cancelled", err, context.Canceled)
		case <-time.After(waitLimit):
			e.Fatalf("Wait goes on %v after its context was cancelled", waitLimit)
		}
		e.postRecv(s.b, recv(id))
		e.post(s.a, send(id))
		e.received(e.sleep(s.b.cq, s.w), s.b, id, 0)
		e.done(s.a, id, verbs.WCSend)
	}
}

// A stale token makes Wait poll once more and sleep again.
func waitStaleToken(e *env) {
	s := e.sleepy()
	for id := range uint64(20) {
		e.arm(s.b.cq, false)
		e.message(s.conn, recv(id), send(id)) // its wake-up stays pending
		s.w.Wake()
		e.postRecv(s.b, recv(100+id))
		posted := postAside(s.a, send(100+id))
		e.received(e.sleep(s.b.cq, s.w), s.b, 100+id, 0)
		e.must(<-posted, "PostSend")
		e.done(s.a, 100+id, verbs.WCSend)
	}
}

// pingPong is one side of a ping-pong: it sleeps until the peer's message arrives. With begins it
// sends before it sleeps, otherwise afterwards.
func pingPong(ctx context.Context, q *end, w *verbs.Waker, rounds uint32, begins bool) error {
	wcs := make([]verbs.WC, 4)
	for i, received := uint32(0), uint32(0); i < rounds; i++ {
		if begins {
			if err := postAll(q, sendImm(1, i)); err != nil {
				return fmt.Errorf("round %d: %w", i, err)
			}
		}
		for received <= i {
			n, err := verbs.Wait(ctx, q.cq, w, wcs)
			if err != nil {
				return fmt.Errorf("round %d of %d: Wait = %d, %w", i, rounds, n, err)
			}
			for _, wc := range wcs[:n] {
				switch {
				case wc.Err() != nil:
					return fmt.Errorf("round %d: %w", i, wc.Err())
				case wc.Opcode != verbs.WCRecv:
					continue
				case wc.Imm != received:
					return fmt.Errorf("round %d: message %d came when it was the turn of %d", i, wc.Imm, received)
				}
				received++
				if n, err := q.PostRecv([]verbs.RecvWR{recv(1)}); n != 1 {
					return fmt.Errorf("round %d: PostRecv = %d, %w", i, n, err)
				}
			}
		}
		if !begins {
			if err := postAll(q, sendImm(1, i)); err != nil {
				return fmt.Errorf("round %d: %w", i, err)
			}
		}
	}
	return nil
}

// Two goroutines that keep waking each other by messages never miss one.
func waitPingPong(e *env) {
	rounds := uint32(e.rounds(1000))
	wA, wB := verbs.NewWaker(), verbs.NewWaker()
	c := e.conn(connConfig{cqA: e.newCQ(e.a, 300, wA), cqB: e.newCQ(e.b, 300, wB)})
	e.postRecv(c.a, recv(1), recv(1))
	e.postRecv(c.b, recv(1), recv(1))
	ctx, cancel := context.WithTimeout(e.Context(), 3*waitLimit)
	defer cancel()
	ended := make(chan error, 2)
	go func() { ended <- pingPong(ctx, c.a, wA, rounds, true) }()
	go func() { ended <- pingPong(ctx, c.b, wB, rounds, false) }()
	for range 2 {
		if err := <-ended; err != nil {
			e.Errorf("ping-pong: %v", err)
			cancel() // the other side would wait forever
		}
	}
}
