package model_test

import (
	"encoding/binary"
	"math/bits"

	"pgregory.net/rapid"

	"ibverbx"
	"ibverbx/verbs"
)

// modelElement is a physical request that tells the receiver something: a record of Tally or
// a message without one, a numbered fragment or cover of DQPLB, or a notification of Spray.
type modelElement struct {
	number      uint32 // message of a record, number of DQPLB, count of notifications
	want        int    // records of the message
	last        bool
	imm, length uint32
	// The NIC at the other side has executed it, and the one at this side has said so.
	executed, completed bool
}

// modelDecoder is the receiver of a scheme in its simplest form: it keeps all that ever
// came.
type modelDecoder struct {
	t        *rapid.T
	scheme   ibverbx.Scheme
	elements map[uint32][]*modelElement // by number
	latest   map[int]uint32             // Tally: the last number of each lane
	next     uint32                     // first number that is not told of
	told     int                        // messages
	length   uint32                     // DQPLB: of the message being put together
	notified uint32                     // Spray: notifications that were taken
	// DQPLB: the numbers below scanned were all taken; ends are those that end a message.
	scanned uint32
	ends    []uint32
}

func newModelDecoder(t *rapid.T, scheme ibverbx.Scheme) *modelDecoder {
	return &modelDecoder{t: t, scheme: scheme, elements: make(map[uint32][]*modelElement), latest: make(map[int]uint32)}
}

// take looks at a physical request that a lane of the given role took. It returns nil if
// the request tells nothing.
func (d *modelDecoder) take(lane int, role string, wr *verbs.SendWR, inline []byte) *modelElement {
	e := &modelElement{imm: wr.Imm, length: uint32(wr.Length())}
	switch {
	case d.scheme == ibverbx.Tally && role == "data" && wr.Opcode == verbs.OpRDMAWriteWithImm:
		before, ok := d.latest[lane]
		e.number, e.want = before+1, 1
		if !ok || len(d.elements[e.number]) > 0 {
			d.t.Fatalf("a message without a record is the first one of lane %d, or message %d has come before", lane, e.number)
		}
		d.latest[lane] = e.number
	case d.scheme == ibverbx.Tally && role == "data" && wr.Opcode == verbs.OpSend && len(inline) == 16:
		e.number = binary.LittleEndian.Uint32(inline)
		e.want = int(binary.LittleEndian.Uint16(inline[4:]))
		e.imm, e.length = binary.LittleEndian.Uint32(inline[8:]), binary.LittleEndian.Uint32(inline[12:])
		if len(d.elements[e.number]) >= e.want {
			d.t.Fatalf("record %d of message %d, which has %d", len(d.elements[e.number])+1, e.number, e.want)
		}
		d.latest[lane] = e.number
	case d.scheme == ibverbx.DQPLB && role == "data" && wr.Opcode == verbs.OpRDMAWriteWithImm:
		imm := bits.ReverseBytes32(wr.Imm)
		e.number, e.last = imm&^(1<<31), imm>>31 != 0
		if len(d.elements[e.number]) > 0 {
			d.t.Fatalf("number %d was used twice", e.number)
		}
	case d.scheme == ibverbx.Spray && role == "notify" && wr.Opcode == verbs.OpRDMAWriteWithImm:
		e.number = d.notified
		d.notified++
	default:
		return nil
	}
	d.elements[e.number] = append(d.elements[e.number], e)
	for d.scheme == ibverbx.DQPLB && len(d.elements[d.scanned]) > 0 {
		if d.elements[d.scanned][0].last {
			d.ends = append(d.ends, d.scanned)
		}
		d.scanned++
	}
	return e
}

// message is the message that an element belongs to, -1 if that cannot be said because a
// number before it was not taken yet.
func (d *modelDecoder) message(e *modelElement) int {
	if d.scheme != ibverbx.DQPLB {
		return int(e.number)
	}
	for m, end := range d.ends {
		if e.number <= end {
			return m
		}
	}
	if e.number < d.scanned {
		return len(d.ends)
	}
	return -1
}

// ended reports whether the NIC has completed everything that tells of message m.
func (d *modelDecoder) ended(m int) bool {
	first, last := uint32(m), uint32(m)
	if d.scheme == ibverbx.DQPLB {
		if m >= len(d.ends) {
			return false
		}
		if last, first = d.ends[m], 0; m > 0 {
			first = d.ends[m-1] + 1
		}
	}
	for n := first; n <= last; n++ {
		if !d.whole(n, func(e *modelElement) bool { return e.completed }) {
			return false
		}
	}
	return true
}

// known reports whether it can be said which elements tell of message m.
func (d *modelDecoder) known(m int) bool { return d.scheme != ibverbx.DQPLB || m < len(d.ends) }

// whole reports whether all elements with a number are there and as they should be.
func (d *modelDecoder) whole(number uint32, is func(*modelElement) bool) bool {
	elements := d.elements[number]
	if len(elements) == 0 || (d.scheme == ibverbx.Tally && len(elements) < elements[0].want) {
		return false
	}
	for _, e := range elements {
		if !is(e) {
			return false
		}
	}
	return true
}

// advance calls tell for every message that has become whole, in order, with what the
// scheme carries of it.
func (d *modelDecoder) advance(tell func(message int, imm, length uint32)) {
	for d.whole(d.next, func(e *modelElement) bool { return e.executed }) {
		e := d.elements[d.next][0]
		d.next++
		d.length += e.length
		if d.scheme == ibverbx.DQPLB && !e.last {
			continue
		}
		length := d.length
		d.length = 0
		d.told++
		tell(d.told-1, e.imm, length)
	}
}

// schemeCarries says what a receiver learns of a message.
func schemeCarries(s ibverbx.Scheme) (flags ibverbx.WCFlags) {
	switch s {
	case ibverbx.Tally:
		return ibverbx.WCHasImm | ibverbx.WCHasLength
	case ibverbx.DQPLB:
		return ibverbx.WCHasLength
	case ibverbx.Spray:
	}
	return ibverbx.WCHasImm
}
