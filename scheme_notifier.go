package ibverbx

import (
	"fmt"
	"math"

	"ibverbx/verbs"
)

// Scheme selects how a receiver is notified that a complete message has arrived.
type Scheme uint8

// Schemes. The zero value is Tally.
const (
	// Tally is the default. Fragments are plain WRITEs. Each lane that carried data since the last
	// notification then sends a 16-byte record, and the receiver counts the records. Tally delivers the
	// immediate and the length.
	Tally Scheme = iota
	// DQPLB sends every fragment of a notified request as a WRITE_WITH_IMM whose immediate is a sequence
	// number. It delivers the length (WCHasLength).
	DQPLB
	// Spray sends plain WRITEs and, once all have completed, one notification on a dedicated lane. It
	// delivers the immediate (WCHasImm). Prefer Tally: InfiniBand does not guarantee that data is
	// visible when a notification on another QP arrives (o9-20).
	Spray
)

var schemeNames = [...]string{"tally", "dqplb", "spray"}

// String returns the scheme's name as used in cards and flags.
func (s Scheme) String() string {
	if int(s) < len(schemeNames) {
		return schemeNames[s]
	}
	return fmt.Sprintf("Scheme(%d)", uint8(s))
}

// MarshalText returns the scheme's name.
func (s Scheme) MarshalText() ([]byte, error) {
	if int(s) >= len(schemeNames) {
		return nil, verbs.Invalidf("unknown scheme %d", uint8(s))
	}
	return []byte(schemeNames[s]), nil
}

// UnmarshalText parses a name returned by String. Other names return verbs.ErrInvalid.
func (s *Scheme) UnmarshalText(b []byte) error {
	for i, name := range schemeNames {
		if name == string(b) {
			*s = Scheme(i)
			return nil
		}
	}
	return verbs.Invalidf("unknown scheme %q: want tally, dqplb or spray", b)
}

// notifier implements a scheme. NewQP selects it.
type notifier interface {
	// dispatch stages a WRITE or READ with its notification. It returns false if the lanes are full; a later call
	// then continues.
	dispatch(s *sendSlot) bool
	// notifyLimit returns the maximum number of fragments of notified requests in a stripe or run, or 0 if earlier
	// data must be covered first. recorded is set if lanes send records with them.
	notifyLimit() (fragments uint32, recorded bool)
	// run builds a lane's chain from at most notifyLimit unfragmented notified requests, in the memory of buf. The
	// lane has at least len(wrs) free entries. If the scheme needs more, the chain has fewer requests, or none.
	run(l *lane, wrs []SendWR, buf []verbs.SendWR) laneChain
	// notifyStripe prepares the notified requests of a stripe. It returns the stripe with its numbers.
	notifyStripe(t stripe) stripe
	// advance is called by sender.dispatch before it rings the doorbells.
	advance()
	// beforeMove is called with each entry of an out-of-service lane before it moves to another lane. If ok, behind
	// follows it there.
	beforeMove(e *entry) (behind entry, ok bool)
	// afterMove is called after all entries of an out-of-service lane have moved.
	afterMove(from, to *lane)
	// received handles a filled receive of a data or notify lane.
	received(l *lane, wc *verbs.WC, entry uint32)
	// tooFarAhead reports whether l must be starved because its latest message is too far ahead of the oldest missing
	// one.
	tooFarAhead(l *lane) bool
	// recvSGEs sets the SGEs of l's receives, the first of which has the number entry.
	recvSGEs(l *lane, entry uint32, chain []verbs.RecvWR)
	// connected handles the peer's card. It returns the maximum number of messages that can wait for an earlier
	// message and complete together with it.
	connected(remote *Card) (waiting int)
}

func (q *VirtualQP) newNotifier() (notifier, error) {
	switch q.setup.cfg.Scheme {
	case DQPLB:
		return newDQPLB(q), nil
	case Spray:
		return &spray{setup: &q.setup, send: &q.send, recv: &q.recv}, nil
	case Tally:
	}
	return newTally(q)
}

// spray is the first scheme of torchcomms. Data is written with plain WRITEs. Once a notified request and all earlier
// ones have completed, an empty WRITE_WITH_IMM on the notify lane carries the immediate. Several notifications may be
// in flight, because the lane keeps their order.
type spray struct {
	setup *setup
	send  *sender
	recv  *receiver
	next  uint32 // first request whose data has not been seen complete
}

func (y *spray) connected(*Card) int                              { return 0 }
func (y *spray) tooFarAhead(*lane) bool                           { return false }
func (y *spray) beforeMove(*entry) (_ entry, _ bool)              { return entry{}, false }
func (y *spray) afterMove(_, _ *lane)                             {}
func (y *spray) recvSGEs(_ *lane, _ uint32, chain []verbs.RecvWR) { noSGEs(chain) }

// noSGEs sets empty receives, for peers that send only immediates.
func noSGEs(chain []verbs.RecvWR) {
	for i := range chain {
		chain[i].NumSGE = 0
	}
}

func (y *spray) dispatch(s *sendSlot) bool {
	if !y.send.stageFragments(s) {
		return false
	}
	if s.op == verbs.OpRDMAWriteWithImm {
		y.deferNotify(s)
	}
	return true
}

func (y *spray) notifyLimit() (uint32, bool) { return math.MaxUint32, false }

func (y *spray) notifyStripe(t stripe) stripe {
	for i := range t.count {
		y.deferNotify(y.send.sends.slot(t.from + i))
	}
	return t
}

// run sends the data; advance sends the notifications.
func (y *spray) run(l *lane, wrs []SendWR, buf []verbs.SendWR) laneChain {
	r := &y.send.sends
	c, at := laneChain{taken: len(wrs), wrs: buf[:len(wrs)]}, r.posted
	c.bytes, _ = y.send.fill(l, wrs, c.wrs, false)
	for i := range wrs {
		one := r.slot(at)
		one.demote(&c.wrs[i])
		one.imm, one.notifyDue = wrs[i].Imm, true
		at++
	}
	y.send.dueNotifies += len(wrs)
	return c
}

// deferNotify records that a notification follows the request's data.
func (y *spray) deferNotify(s *sendSlot) {
	s.notifyDue = true
	s.pending++
	y.send.dueNotifies++
}

// advance sends the notifications of requests with complete data, in order. A failed request is not notified, because
// the VirtualQP has failed with it.
func (y *spray) advance() {
	send, r, notify := y.send, &y.send.sends, y.setup.notifyLane
	if y.next-r.reported > uint32(len(r.slots)) {
		y.next = r.reported // all earlier requests were reported
	}
	for y.next != r.dispatched {
		s := r.slot(y.next)
		if !s.notifyDue {
			if s.pending > 0 {
				return
			}
			y.next++
			continue
		}
		if s.pending > 1 || !notify.room() {
			return
		}
		// pending now counts the notification itself.
		s.notifyDue = false
		send.dueNotifies--
		flags := s.flags & verbs.SendSolicited
		if y.setup.cfg.CxxPeer {
			flags |= verbs.SendSignaled // its user posts each receive, so the next notification may wait for one
		}
		send.stage(notify, entryHead(r.index(y.next), kindNotify, flags)|entryConsumes, 0, 0, y.setup.imm(s.imm))
		y.next++
	}
}

func (y *spray) received(l *lane, wc *verbs.WC, _ uint32) {
	if l != y.setup.notifyLane || wc.Opcode != verbs.WCRecvRDMAWithImm || wc.ByteLen != 0 {
		y.recv.failProtocol(l, "%s of %d bytes is not a notification", wc.Opcode, wc.ByteLen)
		return
	}
	y.recv.deliverMessage(message{imm: y.setup.imm(wc.Imm), flags: WCHasImm})
}
