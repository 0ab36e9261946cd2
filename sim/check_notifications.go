package sim

import (
	"bytes"

	"ibverbx"
	"ibverbx/verbs"
)

// This file checks that a notification arrives only after the bytes of its request and of all earlier requests are in memory, exactly once
// and in order, with the scheme's immediate and length, and that a request with an invalid key is not notified.

// checkMessage checks a receive that succeeded.
func (e *end) checkMessage(kind int, recv *receive, wc *ibverbx.WC) {
	from := e.peer
	q := &from.messages[kind]
	if q.head == len(q.sent) {
		e.fail("notifications", "receive %#x succeeded, but the peer has sent no message", wc.WRID)
		return
	}
	r := q.sent[q.head]
	q.head++
	r.notified = true
	switch {
	case r.bad:
		e.fail("notifications", "notified of %v, which cannot have been written", r)
		return
	case from.bad != nil && from.bad.id < r.id:
		e.fail("notifications", "notified of %v, but %v before it cannot have been written", r, from.bad)
		return
	}
	e.checkWords(r, wc)
	if recv.span != nil && r.message() {
		got := recv.span.bytes()[:r.length]
		if !bytes.Equal(got, e.w.pool.content(r.content, r.length)) {
			e.fail("bytes", "receive %#x got %v with wrong bytes", wc.WRID, r)
		}
	}
	e.checkBefore(r)
	from.settle(r)
}

// checkBefore checks that everything up to a message is in memory.
func (e *end) checkBefore(message *request) {
	from := e.peer
	for _, r := range from.sends[min(from.head, int(message.id)):] {
		if r.id > message.id {
			return
		}
		switch {
		case r.remote != nil && !r.verified && (!r.done || r.status == verbs.StatusSuccess):
			from.checkRemote("notifications", r, "comes before a message that the peer was notified of")
		case r.atomic() && !r.shared && !r.done && !e.mayDoubt() && !from.happened(r.word, r.place):
			from.fail("notifications", "%v comes before a message that the peer was notified of, but was not executed", r)
		}
	}
}

// checkWords checks the opcode, the immediate and the length of a notification.
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
		e.fail("notifications", "notified of %v as %s", r, wc.Opcode)
	case hasImm != (wc.Flags&ibverbx.WCHasImm != 0) || hasLength != (wc.Flags&ibverbx.WCHasLength != 0):
		e.fail("notifications", "notified of %v with flags %#x", r, wc.Flags)
	case hasImm && wc.Imm != r.wr.Imm:
		e.fail("notifications", "notified of %v with immediate %#x, want %#x", r, wc.Imm, r.wr.Imm)
	case hasLength && wc.ByteLen != uint32(r.length):
		e.fail("notifications", "notified of %v with %d bytes", r, wc.ByteLen)
	}
}
