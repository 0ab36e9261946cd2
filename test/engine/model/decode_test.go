package model_test

import (
	"encoding/binary"
	"math/bits"

	"pgregory.net/rapid"

	"ibverbx"
	"ibverbx/verbs"
)

// modelElement is a physical request that notifies the receiver: a Tally record or a message without one, a
// numbered DQPLB fragment or cover, or a Spray notification.
type modelElement struct {
	number      uint32 // message of a record, number of DQPLB, count of notifications
	want        int    // records of the message
	last        bool
	imm, length uint32
	// Whether the remote NIC has executed it, and whether the local NIC has completed it.
	executed, completed bool
}

// modelDecoder is the simplest possible receiver of a scheme: it keeps every element it ever received.
type modelDecoder struct {
	t         *rapid.T
	scheme    ibverbx.Scheme
	elements  map[uint32][]*modelElement // by number
	latest    map[int]uint32             // Tally: the last number of each lane
	next      uint32                     // first number not yet delivered
	delivered int                        // messages
	length    uint32                     // DQPLB: of the message being assembled
	notified  uint32                     // Spray: notifications received
	// DQPLB: all numbers below scanned have been received; ends lists the numbers of last fragments.
	scanned uint32
	ends    []uint32
}

func newModelDecoder(t *rapid.T, scheme ibverbx.Scheme) *modelDecoder {
	return &modelDecoder{t: t, scheme: scheme, elements: make(map[uint32][]*modelElement), latest: make(map[int]uint32)}
}

// decode decodes a physical request posted to a lane of the given role. It returns nil if the request does not
// notify the receiver.
func (d *modelDecoder) decode(lane int, role string, wr *verbs.SendWR, inline []byte) *modelElement {
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

// message returns the message that an element belongs to, or -1 if unknown because an earlier number is
// missing.
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

// completed reports whether the NIC has completed every element of message m.
func (d *modelDecoder) completed(m int) bool {
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
		if !d.allArrived(n, func(e *modelElement) bool { return e.completed }) {
			return false
		}
	}
	return true
}

// canIdentify reports whether the elements of message m can be identified.
func (d *modelDecoder) canIdentify(m int) bool { return d.scheme != ibverbx.DQPLB || m < len(d.ends) }

// allArrived reports whether all elements with a number have arrived and satisfy is.
func (d *modelDecoder) allArrived(number uint32, is func(*modelElement) bool) bool {
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

// advance calls complete for every newly complete message, in order, with the metadata the scheme carries.
func (d *modelDecoder) advance(complete func(message int, imm, length uint32)) {
	for d.allArrived(d.next, func(e *modelElement) bool { return e.executed }) {
		e := d.elements[d.next][0]
		d.next++
		d.length += e.length
		if d.scheme == ibverbx.DQPLB && !e.last {
			continue
		}
		length := d.length
		d.length = 0
		d.delivered++
		complete(d.delivered-1, e.imm, length)
	}
}

// schemeCarries returns the metadata that a receiver gets with a message.
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
