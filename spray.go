package ibverbx

import "ibverbx/verbs"

// spray is the original's first scheme. The data of a notified request goes as plain
// WRITEs; when it and everything before it has completed, a WRITE_WITH_IMM of no bytes on
// the notify lane carries the immediate. Several notifications may be in flight: the lane
// keeps their order.
type spray struct {
	setup *setup
	send  *sender
	recv  *receiver
	// next is the first request whose data was not seen complete.
	next uint32
}

func (y *spray) connected(*Card) int                        { return 0 }
func (y *spray) ahead(*lane) bool                           { return false }
func (y *spray) close() error                               { return nil }
func (y *spray) moved(_, _ *lane)                           {}
func (y *spray) recvSGE(_ *lane, _ uint32, r *verbs.RecvWR) { r.NumSGE = 0 }

func (y *spray) wire(op verbs.Opcode) verbs.Opcode {
	if op == verbs.OpRDMAWriteWithImm {
		return verbs.OpRDMAWrite
	}
	return op
}

func (y *spray) handOver(s *sendSlot) bool {
	if !y.send.spread(s) {
		return false
	}
	if s.op == verbs.OpRDMAWriteWithImm {
		s.owes = true
		s.pending++
		y.send.owed++
	}
	return true
}

// advance notifies the receiver of requests whose data is complete, in order. A request
// that failed is never notified: the VirtualQP has failed with it.
func (y *spray) advance() {
	send, r, notify := y.send, &y.send.sends, y.setup.notifyLane
	if y.next-r.reported > uint32(len(r.slots)) {
		y.next = r.reported // all before it was reported meanwhile
	}
	for y.next != r.dispatched {
		s := r.slot(y.next)
		if !s.owes {
			if s.pending > 0 {
				return
			}
			y.next++
			continue
		}
		if s.pending > 1 || !notify.room() {
			return
		}
		// What it owed it now waits for: pending stays as it is.
		s.owes = false
		send.owed--
		send.add(notify, entryHead(r.index(y.next), kindNotify, s.flags&verbs.SendSolicited)|entryConsumes, 0, 0, y.imm(s.imm))
		y.next++
	}
}

// imm converts an immediate to what is on the wire, and back: the C++ original hands it to
// the NIC in the order of its host (see wireImm).
func (y *spray) imm(v uint32) uint32 {
	if y.setup.cfg.CxxPeer {
		return wireImm(v)
	}
	return v
}

func (y *spray) received(l *lane, wc *verbs.WC, _ uint32) {
	if l != y.setup.notifyLane || wc.Opcode != verbs.WCRecvRDMAWithImm || wc.ByteLen != 0 {
		y.recv.protocol(l, "%s of %d bytes is not a notification", wc.Opcode, wc.ByteLen)
		return
	}
	y.recv.arrived(message{imm: y.imm(wc.Imm), flags: WCHasImm})
}
