package ibverbx

import (
	"math"

	"ibverbx/verbs"
)

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
