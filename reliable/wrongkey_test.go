package reliable

import (
	"testing"

	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// arrive passes a chunk of 8 bytes to the connection of a QP over UD.
func arrive(q *qp, csn uint16, h wire.Header) {
	h.Flags, h.Len = h.Flags|wire.FlagLap, 8
	ev := core.Event{Imm: wire.Imm{Kind: wire.KindChunk, CSN: csn}, Header: h}
	q.conn.receiveChunk(&ev, make([]byte, wire.HeaderLen+8))
}

// TestWrongKeyBeforeLongMessage: a WRITE with a wrong key arrives after a SEND behind it that is too long for its receive. The WRITE
// is the reason for the failure, and the receive is flushed.
func TestWrongKeyBeforeLongMessage(t *testing.T) {
	q := newLoop(t, 0)
	_, err := q.PostRecv([]verbs.RecvWR{{}})
	fatal(t, err)
	arrive(q, 1, wire.Header{Op: wire.OpEager, Flags: wire.FlagLast})
	arrive(q, 0, wire.Header{Op: wire.OpWrite, RKey: 12345})
	var wcs [2]verbs.WC
	if n, _ := q.recvCQ.pop(wcs[:]); n != 1 || wcs[0].Status != verbs.StatusWRFlushErr {
		t.Errorf("%d receives complete, with %v, want one with %v", n, wcs[0].Status, verbs.StatusWRFlushErr)
	}
	var events [4]verbs.Event
	if n, err := q.ctx.Events(events[:]); n != 1 || events[0].Type != verbs.EventQPAccessErr {
		t.Errorf("Events = %d, %v, %v, want one %v", n, err, events[0].Type, verbs.EventQPAccessErr)
	}
}
