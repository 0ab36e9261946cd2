package softnic

import (
	"ibverbx/internal/bulk"
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// direct returns the QP that receives every packet of q unharmed and at once, until the work list
// is next run. It returns nil if there is no such QP. It saves a lookup per packet of a burst.
func (q *qp) direct() *qp {
	if !q.core.traits.immediate {
		return nil
	}
	to := q.core.find(q.path)
	if to == nil || !q.nic.portUp || !to.portUp {
		return nil
	}
	peer := to.qps.get(q.attr.DestQPN)
	if peer == nil || peer.transport != roce.RC || q.transport != roce.RC || !receivable[peer.state] {
		return nil
	}
	if !peer.knows(q.path) || peer.state == verbs.StateRTR {
		return nil
	}
	return peer
}

// express does for a run of plain one-packet WRITEs what sendData and receiveRequest do for each
// of them, but without packets. On an immediate link both requester and responder are at hand, and
// in the ordinary case their steps reduce to two key checks, a copy and four counters. That halves
// the time of an 8-byte WRITE. Anything unusual, such as an error, ends the run and is left to the
// packets.
func (q *qp) express(peer *qp) {
	ready := q.state == verbs.StateRTS && q.sqNext == q.sqMax && q.sqOff == 0 && q.snd == q.maxPSN &&
		peer.epsn == q.snd && peer.msgKind == 0 && !peer.dying && peer.attr.Access&verbs.AccessRemoteWrite != 0
	if !ready || q.nic.observe != nil || peer.nic.observe != nil {
		return
	}
	ring := q.sq
	psn, next := q.snd, q.sqNext
	for ; next != q.sqTail; next++ {
		w := &ring[int(next)&(len(ring)-1)]
		if w.opcode != verbs.OpRDMAWrite || w.numSGE != 1 || w.flags&(verbs.SendInline|verbs.SendFence) != 0 || w.length-1 >= q.seg {
			break
		}
		src, ok := q.nic.mrs.find(q.pd, w.sge[0].LKey, w.sge[0].Addr, w.length, 0)
		if !ok {
			break
		}
		dst, ok := peer.nic.mrs.find(peer.pd, w.rkey, w.remoteAddr, w.length, verbs.AccessRemoteWrite)
		if !ok {
			break
		}
		bulk.Copy(dst, src)
		w.first, w.last = psn, psn
		psn = psn.Add(1)
	}
	n := next - q.sqNext
	if n == 0 {
		return
	}
	q.sqNext, q.sqMax, q.snd, q.maxPSN = next, next, psn, psn
	peer.epsn, peer.asked = psn, 0
	peer.msn += n
	peer.filled()
	q.nic.stats.PacketsSent += uint64(n)
	peer.nic.stats.PacketsReceived += uint64(n)
	peer.owe()
}
