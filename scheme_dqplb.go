package ibverbx

import (
	"math/bits"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// dqplb is a scheme of torchcomms, with a compatible wire format. Every fragment of a notified request is a
// WRITE_WITH_IMM, and the immediate is a number:
//
//	 31  | 30    24 | 23                    0
//	last |  (zero)  |  0 .. 0xFFFFFE, cyclic
//
// The receiver sorts the numbers and completes a message when all numbers up to its last fragment have arrived. Lanes
// that carried plain WRITEs since the last notification send an empty WRITE_WITH_IMM to cover them.
type dqplb struct {
	setup *setup
	send  *sender
	recv  *receiver

	seq    uint32 // next number to send
	oldest uint32 // no earlier number is outstanding
	window uint32 // maximum distance of seq from oldest
	// mixed is set once a lane has taken over numbers from another, so that they are out of order on it.
	mixed bool

	next     uint32 // next number expected
	consumed uint64 // count of the numbers before next
	// witness is the index of a data lane that has delivered no number after next, and may still deliver next. It is
	// only maintained with Config.CxxPeer.
	witness int
	got     ring.Window[arrivedFragment] // numbers from next on, indexed by consumed
	length  uint32                       // bytes received of the current message
}

const (
	dqplbModulus = 1<<24 - 1 // torchcomms never uses 0xFFFFFF
	dqplbLast    = 1 << 31
	dqplbMask    = 1<<24 - 1
)

// arrivedFragment is a fragment that arrived ahead of next.
type arrivedFragment struct {
	arrived bool
	last    bool   // last fragment of its message
	length  uint32 // in bytes
}

func newDQPLB(q *VirtualQP) *dqplb {
	d := &dqplb{setup: &q.setup, send: &q.send, recv: &q.recv}
	// The peer sends at most a window beyond the acknowledged numbers. They may wait in one rail's CQ while another
	// is polled, until their lanes are starved (tooFarAhead). After that, the receives already posted there can still
	// be filled.
	d.got = ring.NewWindow[arrivedFragment](initialDepth, 4*ring.CeilPow2(max(int(d.setup.dqplbWindow()), d.setup.receives())))
	return d
}

// dqplbWindow is the peer's window: the number of the engine's receives.
func (u *setup) dqplbWindow() uint32 {
	return uint32(min(ring.CeilPow2(u.cfg.Lanes*u.cfg.NotifyDepth), maxDQPLBWindow))
}

func (d *dqplb) connected(remote *Card) int {
	d.window = min(remote.Window, maxDQPLBWindow)
	return int(d.got.Limit())
}

// maxDQPLBWindow limits a sender's outstanding numbers, whatever the peer allows.
const maxDQPLBWindow = 1 << 16

func (d *dqplb) tooFarAhead(l *lane) bool {
	return int64(l.latest-d.consumed) >= int64(d.setup.dqplbWindow())
}

func (d *dqplb) advance()                            {}
func (d *dqplb) beforeMove(*entry) (_ entry, _ bool) { return entry{}, false }
func (d *dqplb) afterMove(_, _ *lane)                { d.mixed = true }

func (d *dqplb) recvSGEs(_ *lane, _ uint32, chain []verbs.RecvWR) { noSGEs(chain) }

// wireImm converts a number to an immediate, and back. torchcomms passes its number to the NIC in host order, which
// is little-endian wherever it runs, so the lowest byte is first on the wire. Providers of package verbs write the
// highest byte first, so the bytes are reversed on every host.
func wireImm(v uint32) uint32 { return bits.ReverseBytes32(v) }

// distance returns how far b is ahead of a.
func distance(a, b uint32) uint32 {
	if b >= a {
		return b - a
	}
	return b + dqplbModulus - a
}

// dispatch stages a notified request with a number on every fragment, within the receiver's window. Lanes with plain
// WRITEs are covered before the last fragment gets its number. An empty request is that number alone.
func (d *dqplb) dispatch(r *sendSlot) bool {
	s := d.send
	if r.op != verbs.OpRDMAWriteWithImm {
		return s.stageFragments(r)
	}
	whole := r.length <= r.cut
	for {
		n := min(r.cut, r.length-r.sent)
		last := r.sent+n == r.length
		if (last && !d.cover(r)) || !d.room() {
			return false
		}
		l := s.pick(r, n, whole)
		if l == nil {
			return false
		}
		imm, flags := d.number(), verbs.SendFlags(0)
		if last {
			imm |= dqplbLast
			flags = r.flags & verbs.SendSolicited
		}
		off := r.sent
		s.uncovered.remove(l.index)
		r.started = true
		r.sent += n
		r.pending++
		s.stage(l, entryHead(s.sends.index(s.sends.dispatched), r.dataKind(), flags)|entryConsumes, off, n, wireImm(imm))
		if last {
			return true
		}
	}
}

// notifyLimit returns the free part of the window, or 0 if a lane with plain WRITEs must be covered first.
func (d *dqplb) notifyLimit() (uint32, bool) {
	if d.send.uncovered.first() >= 0 {
		return 0, false
	}
	if d.windowLeft() < d.window/2 {
		d.advanceOldest()
	}
	return d.windowLeft(), false
}

func (d *dqplb) notifyStripe(t stripe) stripe {
	t.numbered, t.number = true, d.seq
	d.seq = numberAfter(d.seq, t.count*t.cuts)
	return t
}

// run gives each request a number.
func (d *dqplb) run(l *lane, wrs []SendWR, buf []verbs.SendWR) laneChain {
	c, at := laneChain{taken: len(wrs), wrs: buf[:len(wrs)], consuming: uint32(len(wrs))}, l.tail
	c.bytes, _ = d.send.fill(l, wrs, c.wrs, true)
	for i := range c.wrs {
		imm := wireImm(d.number() | dqplbLast)
		c.wrs[i].Imm, l.at(at).imm = imm, imm
		at++
	}
	return c
}

// numberAfter returns the number n after another one. n must be less than the modulus.
func numberAfter(number, n uint32) uint32 {
	if number += n; number >= dqplbModulus {
		number -= dqplbModulus
	}
	return number
}

// room reports whether another number fits the window.
func (d *dqplb) room() bool {
	if d.windowLeft() > 0 {
		return true
	}
	d.advanceOldest()
	return d.windowLeft() > 0
}

// windowLeft returns the free part of the window, as of the last advanceOldest.
func (d *dqplb) windowLeft() uint32 { return d.window - distance(d.oldest, d.seq) }

// advanceOldest finds the oldest outstanding number. Numbers are assigned in order and lanes complete in order, so it
// is the first one of some lane. If mixed, older numbers may be behind newer ones.
func (d *dqplb) advanceOldest() {
	ahead := distance(d.oldest, d.seq)
	for _, l := range d.setup.lanes {
		for n := l.head; n != l.tail; n++ {
			if e := l.at(n); e.kind() == kindNotify || d.send.sends.of(e).op == verbs.OpRDMAWriteWithImm {
				ahead = min(ahead, distance(d.oldest, wireImm(e.imm)&dqplbMask))
				if !d.mixed {
					break
				}
			}
		}
	}
	d.oldest = numberAfter(d.oldest, ahead)
}

// cover stages empty WRITE_WITH_IMMs that cover plain WRITEs.
func (d *dqplb) cover(r *sendSlot) bool {
	s := d.send
	for i := s.uncovered.first(); i >= 0; i = s.uncovered.first() {
		l := s.substitute(d.setup.lanes[i])
		if l == nil || !l.room() || !d.room() {
			return false
		}
		s.uncovered.remove(uint16(i))
		r.started = true
		r.pending++
		s.stage(l, entryHead(s.sends.index(s.sends.dispatched), kindNotify, 0)|entryConsumes, 0, 0, wireImm(d.number()))
	}
	return true
}

// number allocates the next number.
func (d *dqplb) number() uint32 {
	n := d.seq
	d.seq = numberAfter(n, 1)
	return n
}

// received records a number. A duplicate or a number outside the window fails the VirtualQP.
func (d *dqplb) received(l *lane, wc *verbs.WC, _ uint32) {
	if wc.Opcode != verbs.WCRecvRDMAWithImm || wc.Flags&verbs.WCWithImm == 0 {
		d.recv.failProtocol(l, "%s without an immediate", wc.Opcode)
		return
	}
	imm := wireImm(wc.Imm)
	seq := imm & dqplbMask
	ahead := distance(d.next, seq)
	if seq >= dqplbModulus || !d.got.Reach(uint32(d.consumed), ahead) || d.at(ahead).arrived {
		d.recv.failProtocol(l, "number %d, %d is expected", seq, d.next)
		return
	}
	l.latest = d.consumed + uint64(ahead)
	if ahead > 0 {
		*d.at(ahead) = arrivedFragment{arrived: true, last: imm&dqplbLast != 0, length: wc.ByteLen}
		if d.setup.cfg.CxxPeer && d.cannotArrive(l) {
			d.recv.failProtocol(l, "number %d cannot arrive, because every lane has delivered a later one. "+
				"torchcomms gives numbers to plain WRITEs and READs too, so a C++ peer must send only WRITE_WITH_IMM", d.next)
		}
		return
	}
	d.consume(arrivedFragment{last: imm&dqplbLast != 0, length: wc.ByteLen})
}

// cannotArrive reports whether next can no longer arrive, after l has delivered a later number. A C++ peer assigns
// numbers to lanes in order and reassigns none, and RC delivers in order. A lane that has delivered a later number
// therefore does not carry next.
func (d *dqplb) cannotArrive(l *lane) bool {
	if int(l.index) != d.witness {
		return false
	}
	for i, other := range d.setup.lanes {
		if other.latest <= d.consumed {
			d.witness = i
			return false
		}
	}
	return true
}

// at returns the entry of the number that is ahead of next by a distance.
func (d *dqplb) at(ahead uint32) *arrivedFragment {
	return d.got.At(uint32(d.consumed) + ahead)
}

// consume handles the expected number, and the numbers that waited for it.
func (d *dqplb) consume(n arrivedFragment) {
	for {
		d.length += n.length
		if n.last {
			d.recv.deliverMessage(message{length: d.length, flags: WCHasLength})
			d.length = 0
		}
		d.consumed++
		d.next = numberAfter(d.next, 1)
		p := d.at(0)
		if !p.arrived {
			return
		}
		n = *p
		*p = arrivedFragment{}
	}
}
