package sim

import (
	"bytes"

	"ibverbx"
	"ibverbx/verbs"
)

// This file holds: when the receiver is told of a message, the bytes of that request and of
// every one posted before it are in memory; messages are told of in order, once each, with
// the immediate and the length that the scheme can carry; and one that cannot have arrived
// is never told of.

// checkMessage looks at a receive that succeeded.
func (e *end) checkMessage(kind int, recv *receive, wc *ibverbx.WC) {
	from := e.peer
	q := &from.messages[kind]
	if q.head == len(q.sent) {
		e.fail("notifications", "receive %#x succeeded, but the peer has sent no message", wc.WRID)
		return
	}
	r := q.sent[q.head]
	q.head++
	r.told = true
	switch {
	case r.bad:
		e.fail("notifications", "told of %v, which cannot have been written", r)
		return
	case e.firstBad() != nil && e.firstBad().id < r.id:
		e.fail("notifications", "told of %v, and %v before it cannot have been written", r, e.firstBad())
		return
	}
	e.checkWords(r, wc)
	if recv.span != nil && r.message() {
		got := recv.span.bytes()[:r.length]
		if !bytes.Equal(got, e.w.pool.content(r.content, r.length)) {
			e.fail("bytes", "receive %#x got %v, and not its bytes", wc.WRID, r)
		}
	}
	e.checkBefore(r)
	from.settle(r)
}

// checkBefore wants everything up to a message in memory.
func (e *end) checkBefore(message *request) {
	from := e.peer
	for _, r := range from.sends[min(from.head, int(message.id)):] {
		if r.id > message.id {
			return
		}
		switch {
		case r.remote != nil && !r.verified && (!r.done || r.status == verbs.StatusSuccess):
			from.checkRemote("notifications", r, "comes before a message that the peer was told of")
		case r.atomic() && !r.shared && !r.done && !e.mayDoubt() && !from.happened(r.word, r.place):
			from.fail("notifications", "%v comes before a message that the peer was told of, and has not happened", r)
		}
	}
}

// checkWords looks at what a receive tells beside its end.
func (e *end) checkWords(r *request, wc *ibverbx.WC) {
	hasImm, hasLength := r.wr.Opcode != verbs.OpSend, true
	if r.imm() && !e.straight() {
		hasImm, hasLength = e.conn.Scheme != ibverbx.DQPLB, e.conn.Scheme != ibverbx.Spray
	}
	want := verbs.WCRecv
	if r.imm() {
		want = verbs.WCRecvRDMAWithImm
	}
	switch {
	case wc.Opcode != want:
		e.fail("notifications", "told of %v as %s", r, wc.Opcode)
	case hasImm != (wc.Flags&ibverbx.WCHasImm != 0) || hasLength != (wc.Flags&ibverbx.WCHasLength != 0):
		e.fail("notifications", "told of %v with flags %#x", r, wc.Flags)
	case hasImm && wc.Imm != r.wr.Imm:
		e.fail("notifications", "told of %v with immediate %#x, want %#x", r, wc.Imm, r.wr.Imm)
	case hasLength && wc.ByteLen != uint32(r.length):
		e.fail("notifications", "told of %v with %d bytes", r, wc.ByteLen)
	}
}

// firstBad is the oldest request of the peer that cannot have been written, nil if there is
// none.
func (e *end) firstBad() *request { return e.peer.bad }
