package ibverbx

import (
	"math/bits"

	"ibverbx/verbs"
)

// dqplb is the original's other scheme, compatible with it on the wire. Every fragment of
// a notified request is a WRITE_WITH_IMM, and the immediate is a number:
//
//	 31  | 30    24 | 23                    0
//	last |  (zero)  |  0 .. 0xFFFFFE, in turn
//
// The receiver puts the numbers in order and completes a message when all up to its last
// fragment are in. Lanes that carried plain WRITEs since the last notification are closed
// by a WRITE_WITH_IMM of no bytes, so that those are covered too.
type dqplb struct {
	q *VirtualQP

	// Sender. given and oldest count numbers without end: those given out, and those
	// before the first that the peer has not acknowledged; open says of each in between
	// whether it is unacknowledged. plain are the lanes with plain WRITEs that no number
	// covers.
	seq           uint32 // the next number on the wire
	given, oldest uint32
	open          []bool
	plain         []uint64

	// Receiver: a window of numbers from next on.
	next     uint32
	consumed uint32 // numbers before next, counted without end
	got      []numbered
	length   uint32 // of the message being put together
	window   uint32 // how far the sender may run ahead
}

const (
	dqplbModulus = 1<<24 - 1 // the original never uses 0xFFFFFF
	dqplbLast    = 1 << 31
	dqplbMask    = 1<<24 - 1
)

// numbered is one number that has come.
type numbered struct {
	here, last bool
	length     uint32
}

func newDQPLB(q *VirtualQP) *dqplb {
	d := &dqplb{q: q, plain: make([]uint64, (q.cfg.Lanes+63)/64)}
	// The peer runs at most the window ahead of what was acknowledged; what was
	// acknowledged may wait in the CQ of one rail while that of another is polled, until
	// its lanes are no longer fed (ahead), and then there is what is posted on them.
	d.got = make([]numbered, 4*q.dqplbWindow())
	return d
}

// dqplbWindow is how far the peer may run ahead: as far as the engine has receives.
func (q *VirtualQP) dqplbWindow() uint32 {
	return uint32(min(ceilPow2(q.cfg.Lanes*q.cfg.NotifyDepth), maxDQPLBWindow))
}

func (d *dqplb) connected(remote *Card) int {
	d.window = min(remote.Window, maxDQPLBWindow)
	d.open = make([]bool, ceilPow2(int(d.window)))
	return len(d.got)
}

// maxDQPLBWindow is how many numbers a sender has outstanding at the most, whatever the
// peer allows.
const maxDQPLBWindow = 1 << 16

func (d *dqplb) close() error { return nil }

func (d *dqplb) ahead(l *lane) bool {
	return int32(l.latest-d.consumed) >= int32(d.q.dqplbWindow())
}
func (d *dqplb) advance() {}

func (d *dqplb) recvSGE(_ *lane, _ uint32, r *verbs.RecvWR) { r.NumSGE = 0 }

// wireImm makes an immediate of a number, and a number of an immediate. The original hands
// its number to the NIC in the order of its host, which is little-endian wherever it runs,
// and does not convert: on the wire the lowest byte comes first. Our immediates are numbers
// that providers write highest byte first, so the bytes are reversed, on every host.
func wireImm(v uint32) uint32 { return bits.ReverseBytes32(v) }

// distance is how far b is ahead of a.
func distance(a, b uint32) uint32 { return (b + dqplbModulus - a) % dqplbModulus }

// mayStage keeps the numbers that are outstanding within the receiver's window, and closes
// the lanes with plain WRITEs before the last fragment takes its number.
func (d *dqplb) mayStage(s *sendSlot, last bool) bool {
	if s.wr.Opcode != verbs.OpRDMAWriteWithImm {
		return true
	}
	if last && !d.cover(s) {
		return false
	}
	return d.room()
}

// room reports whether a number more fits the window.
func (d *dqplb) room() bool { return d.given-d.oldest < d.window }

// acked notes that the peer has a number.
func (d *dqplb) acked(number uint32) {
	d.open[int(number)&(len(d.open)-1)] = false
	for d.oldest != d.given && !d.open[int(d.oldest)&(len(d.open)-1)] {
		d.oldest++
	}
}

// cover stages the immediates that cover plain WRITEs.
func (d *dqplb) cover(s *sendSlot) bool {
	for i := range d.plain {
		for d.plain[i] != 0 {
			l := d.q.lanes[64*i+bits.TrailingZeros64(d.plain[i])]
			if !l.room() || !d.room() {
				return false
			}
			wr := l.add(kindNotify, d.q.dispatched, 0)
			l.number(d.given)
			wr.Opcode, wr.Flags, wr.NumSGE, wr.RemoteAddr, wr.RKey = verbs.OpRDMAWriteWithImm, 0, 0, 0, 0
			wr.Imm = wireImm(d.number())
			s.frags++
			d.plain[i] &= d.plain[i] - 1
			d.q.stageOn(l)
		}
	}
	return true
}

// number gives out the next number.
func (d *dqplb) number() uint32 {
	n := d.seq
	d.open[int(d.given)&(len(d.open)-1)] = true
	d.given++
	if d.seq++; d.seq == dqplbModulus {
		d.seq = 0
	}
	return n
}

func (d *dqplb) fragment(l *lane, s *sendSlot, wr *verbs.SendWR, last bool) {
	wr.Opcode = s.wr.Opcode
	switch wr.Opcode {
	case verbs.OpRDMAWriteWithImm:
		l.number(d.given)
		imm := d.number()
		if last {
			imm |= dqplbLast
			wr.Flags |= s.wr.Flags & verbs.SendSolicited
		}
		wr.Imm = wireImm(imm)
		d.plain[l.index/64] &^= 1 << (l.index % 64)
	case verbs.OpRDMAWrite:
		d.plain[l.index/64] |= 1 << (l.index % 64)
	default:
	}
}

func (d *dqplb) finish(*sendSlot) bool { return true }

// received puts a number in its place. One that is outside the window, or came before,
// ends the VirtualQP.
func (d *dqplb) received(l *lane, wc *verbs.WC, _ uint32) {
	if wc.Opcode != verbs.WCRecvRDMAWithImm || wc.Flags&verbs.WCWithImm == 0 {
		d.q.protocol(l, "%s without an immediate", wc.Opcode)
		return
	}
	imm := wireImm(wc.Imm)
	seq := imm & dqplbMask
	ahead := distance(d.next, seq)
	if seq >= dqplbModulus || ahead >= uint32(len(d.got)) || d.at(ahead).here {
		d.q.protocol(l, "number %d, %d is expected", seq, d.next)
		return
	}
	l.latest = d.consumed + ahead
	*d.at(ahead) = numbered{here: true, last: imm&dqplbLast != 0, length: wc.ByteLen}
	d.consume()
}

// at is the place of the number that is so far ahead of next.
func (d *dqplb) at(ahead uint32) *numbered {
	return &d.got[(d.consumed+ahead)&uint32(len(d.got)-1)]
}

func (d *dqplb) consume() {
	for {
		n := d.at(0)
		if !n.here {
			return
		}
		d.length += n.length
		if n.last {
			d.q.arrived(message{length: d.length, flags: WCHasLength})
			d.length = 0
		}
		*n = numbered{}
		d.consumed++
		if d.next++; d.next == dqplbModulus {
			d.next = 0
		}
	}
}
