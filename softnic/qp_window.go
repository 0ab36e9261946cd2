package softnic

import (
	"time"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

const (
	// fairShare is the number of unacknowledged packets that a QP may always have, regardless of the
	// NIC's total. An unresponsive peer must not block traffic to others.
	fairShare = 16

	// peerShare is the number of unacknowledged packets that a QP may always have, regardless of other
	// QPs with the same peer. One keeps the QP moving, and limits the buffer needed at the peer per QP.
	peerShare = 1
)

// flow limits the packets of a QP in flight.
type flow struct {
	// seg is the number of payload bytes of a full packet.
	seg uint32
	// window is the maximum number of unacknowledged packets.
	window uint32
	// longWindow is the window for a full packet.
	longWindow uint32
	// ackMask selects the packets of a long message that request an ACK, often enough that the window
	// never closes. A packet requests one if its index in the message is ackMask modulo ackMask + 1.
	ackMask roce.PSN
	// charged is the number of packets counted in the NIC's budget, and in to.
	charged uint32
	// to is the budget of the peer's NIC, nil if unknown.
	to *budget
	// timed is set if the round trip is measured.
	timed bool
	// paced is set on a UC or UD QP that waits for the receiver.
	paced bool
}

// budget is a window shared by several QPs.
type budget struct {
	// limit is the maximum number of unacknowledged packets. 0 means unlimited.
	limit uint32
	// full is the limit for a packet of a whole MTU, at most limit.
	full uint32
	// inFlight is the number of unacknowledged packets.
	inFlight uint32
	// starved holds the QPs that wait for inFlight to fall.
	starved workList
}

func newBudget() budget { return budget{starved: workList{bit: onStarved}} }

// set sets the two limits.
func (b *budget) set(limit, full uint32) { b.limit, b.full = limit, min(limit, full) }

// most returns the limit for the next packet. full is set for a packet of a whole MTU.
func (b *budget) most(full bool) uint32 {
	if full {
		return b.full
	}
	return b.limit
}

// inFlight returns the number of unacknowledged packets.
func (q *qp) inFlight() uint32 { return uint32(q.snd.Sub(q.una)) }

// holder returns the budget that prevents a QP with f unacknowledged packets from sending another one,
// or nil. full is set for a packet of a whole MTU.
func (q *qp) holder(f uint32, full bool) *budget {
	if b := &q.nic.budget; f >= fairShare && b.inFlight-q.charged+f >= b.most(full) {
		return b
	}
	if b := q.to; b != nil && f >= peerShare && b.inFlight-q.charged+f >= b.most(full) {
		return b
	}
	return nil
}

// mayAdd reports whether a QP with f unacknowledged packets may send another one. Otherwise
// the QP is scheduled once packets of other QPs are acknowledged.
func (q *qp) mayAdd(f uint32, full bool) bool {
	b := q.holder(f, full)
	if b != nil {
		b.starved.push(q)
	}
	return b == nil
}

// charge updates the budgets with the number of this QP's unacknowledged packets.
func (q *qp) charge() {
	if q.nic.budget.limit == 0 {
		return
	}
	f := q.inFlight()
	change := f - q.charged
	q.charged = f
	q.nic.budget.add(q.core, change)
	if q.to != nil {
		q.to.add(q.core, change)
	}
}

// add adds change packets, which may be negative, and wakes waiting QPs once a quarter of the lower
// limit is free. It never wakes QPs at that limit: they could not send and would be woken again and
// again.
func (b *budget) add(c *core, change uint32) {
	b.inFlight += change
	if !b.starved.empty() && b.inFlight < b.full && b.inFlight <= b.full-b.full/4 {
		b.wake(c)
	}
}

// wake schedules all waiting QPs. QPs that still cannot send wait again.
func (b *budget) wake(c *core) {
	for q := b.starved.pop(); q != nil; q = b.starved.pop() {
		c.lists.tx.push(q)
	}
}

// switchBudget charges the QP's packets to the budget of path p.
func (q *qp) switchBudget(p *path) {
	if q.to != nil {
		q.to.add(q.core, -q.charged)
		if q.lists&onStarved != 0 {
			q.to.wake(q.core) // the QP must not wait for a budget that it no longer uses
		}
		q.to = nil
	}
	if p != nil && p.route != nil && p.route.budget != nil {
		q.to = p.route.budget
		q.to.add(q.core, q.charged)
	}
}

// UC and UD do not acknowledge packets. A lossless network throttles their senders, but a full socket
// buffer drops packets. So toward peers known to be softnics (UDPConfig.AssumeSoftNICs), QPs of both
// types have a window. Several packets of a window set the AckReq bit, which is reserved on UC and UD,
// and the receiver responds with an RC ACK of the packet's PSN. It confirms that packets have left the
// buffer, not that messages have arrived: a request completes when sent, and lost packets stay lost.
// Sealed QPs are not paced.

const (
	// paceTimeout is the sender's timeout for a response. It then assumes that all packets were lost,
	// and continues.
	paceTimeout = 200 * time.Millisecond
	// paceRNRTimeout is the timeout after the receiver has reported that its receives are running out.
	// Some programs repost only after using the last one.
	paceRNRTimeout = 20 * time.Millisecond
)

// setPace decides whether the QP is paced. It is called on the transition to RTR, after the windows
// were set.
func (q *qp) setPace() {
	w := q.core.udpNIC
	q.paced = w != nil && w.link.cfg.AssumeSoftNICs && q.sealing == nil && q.typ != verbs.RC
	if q.paced && q.typ == verbs.UD {
		q.window = min(q.window, q.port().peerWindow(uint32(q.port().conn.Buffer())))
		q.longWindow = min(q.longWindow, q.window)
	}
}

// requestsPace reports whether a packet of a paced QP requests a response. At least two per window do,
// because losing one causes a long wait.
func (q *qp) requestsPace(psn roce.PSN) bool { return psn&(q.ackMask>>1) == q.ackMask>>1 }

// mayPace reports whether a paced QP may send another packet.
func (q *qp) mayPace() bool { return !q.paced || q.inFlight() < q.longWindow }

// receivePace handles the response to a packet of a paced QP.
func (q *qp) receivePace(p *packet) {
	if p.Syndrome&roce.SyndromeKind == roce.SyndromeRNR {
		if q.una != q.snd {
			q.armedUna = q.una
			q.core.timers.set(q, q.core.clock()+int64(paceRNRTimeout))
		}
		return
	}
	if p.PSN.Sub(q.una) < 0 || p.PSN.Sub(q.snd) >= 0 {
		return
	}
	q.una = p.PSN.Add(1)
	q.pacedOn()
}

// pacedOn lets a paced QP send up to its window.
func (q *qp) pacedOn() {
	if q.una == q.snd {
		q.core.timers.drop(q)
	}
	if q.typ == verbs.UC {
		q.charge()
	}
	q.core.lists.tx.push(q)
}

// paceExpired gives up waiting for responses, unless one has arrived since the timer was set.
func (q *qp) paceExpired(now int64) {
	if q.una != q.armedUna {
		q.armTimer(now)
		return
	}
	q.una = q.snd
	q.pacedOn()
}

// respondPace responds to a packet of a paced UC peer that requests it. If receives are running out it
// sends an RNR NAK, and announceReceive reports when more are posted. Otherwise SENDs would be lost.
func (q *qp) respondPace(p *packet, t opTraits) {
	if !p.AckReq || !q.paced {
		return
	}
	if t&(opIsSend|opHasImm) != 0 && q.srq == nil && q.fewReceives() {
		q.rnrSent = true
		q.sendNak(roce.SyndromeRNR | q.attr.MinRNRTimer)
		return
	}
	q.oweAck()
}

// fewReceives reports whether the receives of a paced UC QP might run out before its peer requests the
// next response. It returns false for a program that has never reposted a receive: it has posted all
// that it needs.
func (q *qp) fewReceives() bool {
	return q.rq.used.taken > q.rq.maxWR && uint32(q.rq.ring.Len()) < min(q.window, q.rq.maxWR/2)
}

// respondDatagram responds to a datagram of a paced peer that requests it.
func (q *qp) respondDatagram(p *packet) {
	if !p.AckReq || !q.paced || p.path.back == nil {
		return
	}
	a := &q.nic.scratch
	a.noPayload()
	a.path, a.DestQPN, a.PSN, a.AckReq, a.Solicited = p.path.back, p.SrcQPN, p.PSN, false, false
	a.Opcode, a.Syndrome, a.MSN = roce.RC|roce.OpAck, roce.SyndromeAck, 0
	q.emit(a)
}
