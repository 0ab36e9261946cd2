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

// keyCounter is a Seal that counts wrong keys.
type keyCounter struct{ keys int }

func (*keyCounter) Sealed() {}

func (c *keyCounter) WrongKey() { c.keys++ }

// TestKeyGuesses: chunks with guessed keys arrive before an earlier chunk, so no QP fails. Each key counts once: the
// acknowledgement would show which one is right.
func TestKeyGuesses(t *testing.T) {
	q := newLoop(t, 0)
	counter := &keyCounter{}
	q.cfg.Path.Seal = counter
	for _, g := range []struct {
		csn  uint16
		key  uint32
		want int
	}{{5, 0, 1}, {6, 111, 2}, {7, 111, 2}, {6, 222, 2}, {8, 333, 3}} {
		arrive(q, g.csn, wire.Header{Op: wire.OpWrite, RKey: g.key})
		if counter.keys != g.want || q.state != verbs.StateRTS {
			t.Errorf("after chunk %d with the wrong key %d, %d count and the QP is in %v, want %d and RTS", g.csn, g.key, counter.keys, q.state, g.want)
		}
	}
}
