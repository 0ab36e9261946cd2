package ibverbx

import "ibverbx/verbs"

// spray is the original's first scheme. The data of a notified request goes as plain
// WRITEs; when it and everything before it has completed, a WRITE_WITH_IMM of no bytes on
// the notify lane carries the immediate. Several notifications may be in flight: the lane
// keeps their order.
type spray struct {
	q *VirtualQP
	// next is the first request whose data was not seen complete.
	next uint32
}

func (y *spray) connected(*Card) int                        { return 0 }
func (y *spray) acked(uint32)                               {}
func (y *spray) ahead(*lane) bool                           { return false }
func (y *spray) close() error                               { return nil }
func (y *spray) mayStage(*sendSlot, bool) bool              { return true }
func (y *spray) recvSGE(_ *lane, _ uint32, r *verbs.RecvWR) { r.NumSGE = 0 }

func (y *spray) fragment(_ *lane, s *sendSlot, wr *verbs.SendWR, _ bool) {
	wr.Opcode = s.wr.Opcode
	if wr.Opcode == verbs.OpRDMAWriteWithImm {
		wr.Opcode = verbs.OpRDMAWrite
	}
}

func (y *spray) finish(s *sendSlot) bool {
	s.owes = s.wr.Opcode == verbs.OpRDMAWriteWithImm
	return true
}

// advance notifies the receiver of requests whose data is complete, in order. A request
// that failed is never notified: the VirtualQP has failed with it.
func (y *spray) advance() {
	q := y.q
	if y.next-q.reported > uint32(len(q.sends)) {
		y.next = q.reported // all before it was reported meanwhile
	}
	for q.state == stateConnected && y.next != q.dispatched {
		s := q.slot(y.next)
		if s.frags > 0 {
			return
		}
		if s.owes {
			l := q.notifyLane
			if !l.room() {
				return
			}
			wr := l.add(kindNotify, y.next, 0)
			wr.Opcode, wr.Flags, wr.Imm, wr.NumSGE = verbs.OpRDMAWriteWithImm, s.wr.Flags&verbs.SendSolicited, s.wr.Imm, 0
			wr.RemoteAddr, wr.RKey = 0, 0
			s.owes = false
			s.frags++
			q.stageOn(l)
		}
		y.next++
	}
}

func (y *spray) received(l *lane, wc *verbs.WC, _ uint32) {
	if l != y.q.notifyLane || wc.Opcode != verbs.WCRecvRDMAWithImm || wc.ByteLen != 0 {
		y.q.protocol(l, "%s of %d bytes is not a notification", wc.Opcode, wc.ByteLen)
		return
	}
	y.q.arrived(message{imm: wc.Imm, flags: WCHasImm})
}
