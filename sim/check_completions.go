package sim

import (
	"errors"

	"ibverbx"
	"ibverbx/verbs"
)

// This file checks that every signaled request completes exactly once, in posting order, that unsignaled requests complete only on
// failure, and that a post accepts a request completely or not at all.

// checkPosted checks what PostSend returned.
func (e *end) checkPosted(n, of int, err error) {
	switch {
	case n < 0 || n > of:
		e.fail("completions", "PostSend took %d of %d requests", n, of)
	case n < of && err == nil:
		e.fail("completions", "PostSend took %d of %d requests without an error", n, of)
	case n == of && err != nil:
		e.fail("completions", "PostSend took all %d requests and returned %v", of, err)
	case err != nil && !errors.Is(err, verbs.ErrQueueFull) && !e.mayFail:
		e.fail("completions", "PostSend took %d of %d requests: %v", n, of, err)
	}
}

// checkOrder checks that the completion belongs to the oldest request that can have one. All requests
// before it must be unsignaled. They have succeeded.
func (e *end) checkOrder(wc *ibverbx.WC) {
	if wc.WRID >= uint64(len(e.sends)) {
		e.fail("completions", "completion of request %d, but only %d were posted", wc.WRID, len(e.sends))
		return
	}
	if wc.WRID < uint64(e.head) {
		e.fail("completions", "%v completed again, or after a later one", e.sends[wc.WRID])
		return
	}
	for _, r := range e.sends[e.head:wc.WRID] {
		if r.signaled() {
			e.fail("completions", "%v completed before %v", e.sends[wc.WRID], r)
			return
		}
	}
}

// checkStatus checks the completion of a request.
func (e *end) checkStatus(r *request, wc *ibverbx.WC) {
	if wc.Status != verbs.StatusSuccess {
		e.checkError(r, wc)
		return
	}
	switch {
	case !r.signaled():
		e.fail("completions", "%v succeeded with a completion, but is unsignaled", r)
	case wc.Opcode != r.wr.Opcode.WC():
		e.fail("completions", "%v completed as %s", r, wc.Opcode)
	case wc.Flags&ibverbx.WCHasLength != 0 && wc.ByteLen != uint32(r.length):
		e.fail("completions", "%v completed with %d bytes", r, wc.ByteLen)
	}
}

// checkReceive checks that the completion belongs to the oldest receive of its kind, or to one of the pool, and returns the receive.
func (e *end) checkReceive(kind int, wc *ibverbx.WC) *receive {
	if kind == kindData && e.w.plan.Pool > 0 {
		r := e.host.pool.completed(wc.WRID)
		if r == nil {
			e.fail("completions", "completion of receive %#x, which is not in the pool", wc.WRID)
		}
		return r
	}
	q := &e.receives[kind]
	if q.waiting() == 0 {
		e.fail("completions", "completion of receive %#x, but none is posted", wc.WRID)
		return nil
	}
	r := &q.posted[q.head]
	if r.id != wc.WRID {
		e.fail("completions", "completion of receive %#x, but the oldest is %#x", wc.WRID, r.id)
		return nil
	}
	q.head++
	return r
}
