package sim

import (
	"errors"

	"ibverbx"
	"ibverbx/verbs"
)

// This file holds: exactly one completion per signaled request, once, in posting order;
// none for an unsignaled success; and a post takes a request whole or not at all.

// checkPosted looks at what PostSend returned.
func (e *end) checkPosted(n, of int, err error) {
	switch {
	case n < 0 || n > of:
		e.fail("completions", "PostSend took %d of %d requests", n, of)
	case n < of && err == nil:
		e.fail("completions", "PostSend took %d of %d requests and gave no reason", n, of)
	case n == of && err != nil:
		e.fail("completions", "PostSend took all %d requests and returned %v", of, err)
	case err != nil && !errors.Is(err, verbs.ErrQueueFull) && !e.excused():
		e.fail("completions", "PostSend took %d of %d requests: %v", n, of, err)
	}
}

// checkOrder wants the completion to be of the oldest request that may have one: all before
// it were not signaled, which says that they have ended well.
func (e *end) checkOrder(wc *ibverbx.WC) {
	if wc.WRID >= uint64(len(e.sends)) {
		e.fail("completions", "completion of request %d, %d were posted", wc.WRID, len(e.sends))
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

// checkStatus looks at the completion of a request.
func (e *end) checkStatus(r *request, wc *ibverbx.WC) {
	if wc.Status != verbs.StatusSuccess {
		e.checkError(r, wc)
		return
	}
	switch {
	case !r.signaled():
		e.fail("completions", "%v succeeded with a completion that it did not ask for", r)
	case wc.Opcode != r.wr.Opcode.WC():
		e.fail("completions", "%v completed as %s", r, wc.Opcode)
	case wc.Flags&ibverbx.WCHasLength != 0 && wc.ByteLen != uint32(r.length):
		e.fail("completions", "%v completed with %d bytes", r, wc.ByteLen)
	}
}

// checkReceive wants the completion to be of the oldest receive of its kind.
func (e *end) checkReceive(kind int, wc *ibverbx.WC) *receive {
	q := &e.receives[kind]
	if q.waiting() == 0 {
		e.fail("completions", "completion of receive %#x, none is posted", wc.WRID)
		return nil
	}
	r := &q.posted[q.head]
	if r.id != wc.WRID {
		e.fail("completions", "completion of receive %#x, the oldest is %#x", wc.WRID, r.id)
		return nil
	}
	return r
}
