package softnic

import (
	"time"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

const (
	// fairShare is the number of unacknowledged packets that a QP may always have, however many its NIC has. A peer
	// that does not answer must not block traffic to others.
	fairShare = 16

	// peerShare is the number of unacknowledged packets that a QP may always have, however many other QPs have to the
	// same peer. One keeps it going, and the peer's buffer needs no more than that per QP.
	peerShare = 1
)

// flow limits the packets of a QP in flight.
type flow struct {
	// seg is the number of payload bytes of a full packet.
	seg uint32
	// window is the maximum number of unacknowledged packets.
	window uint32
	// longWindow is the same after another full packet.
	longWindow uint32
	// ackMask makes a long message request acknowledgements, often enough that the window never closes. A packet
	// requests one if the number of packets before it in the message is ackMask modulo ackMask + 1.
	ackMask roce.PSN
	// charged is the number of packets charged to the NIC's budget, and to to.
	charged uint32
	// to is the budget of the peer's NIC, nil if it is unknown.
	to *budget
	// timed is set if the round trip is measured.
	timed bool
	// paced is set on a UC or UD QP that waits for the receiver.
	paced bool
}

// budget is a window that several QPs share.
type budget struct {
	// limit is the maximum number of unacknowledged packets. 0 means unlimited.
	limit uint32
	// full is the same for another full packet, at most limit.
	full uint32
	// inFlight is the number of unacknowledged packets.
	inFlight uint32
	// starved are QPs that wait for inFlight to fall.
	starved workList
}

func newBudget() budget { return budget{starved: workList{bit: onStarved}} }

// set sets the two limits.
func (b *budget) set(limit, full uint32) { b.limit, b.full = limit, min(limit, full) }

// most returns the maximum number of unacknowledged packets before another one is sent.
func (b *budget) most(full bool) uint32 {
	if full {
		return b.full
	}
	return b.limit
}

// inFlight returns how many packets are sent and not acknowledged.
func (q *qp) inFlight() uint32 { return uint32(q.snd.Sub(q.una)) }

// holder returns the budget that prevents a QP with f unacknowledged packets from sending another one, nil if none
// does. full is set for a full packet.
func (q *qp) holder(f uint32, full bool) *budget {
	if b := &q.nic.budget; f >= fairShare && b.inFlight-q.charged+f >= b.most(full) {
		return b
	}
	if b := q.to; b != nil && f >= peerShare && b.inFlight-q.charged+f >= b.most(full) {
		return b
	}
	return nil
}

// mayAdd reports whether a QP with f unacknowledged packets may send another one. If not, the QP
// is scheduled when packets of others have been acknowledged.
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

// add adds packets, or removes some if change is negative, and wakes waiting QPs. A full window
// wakes none, however short it is: a QP that cannot send would be woken again and again. Therefore
// the lower limit counts.
func (b *budget) add(c *core, change uint32) {
	b.inFlight += change
	if !b.starved.empty() && b.inFlight < b.full && b.inFlight <= b.full-b.full/4 {
		b.wake(c)
	}
}

// wake schedules all waiting QPs. Those that still may not send wait again.
func (b *budget) wake(c *core) {
	for q := b.starved.pop(); q != nil; q = b.starved.pop() {
		c.lists.tx.push(q)
	}
}

// switchBudget charges the QP's packets to the budget of another path.
func (q *qp) switchBudget(p *path) {
	if q.to != nil {
		q.to.add(q.core, -q.charged)
		if q.lists&onStarved != 0 {
			q.to.wake(q.core) // the QP must not wait for a budget that is no longer its own
		}
		q.to = nil
	}
	if p != nil && p.route != nil && p.route.budget != nil {
		q.to = p.route.budget
		q.to.add(q.core, q.charged)
	}
}

// UC and UD have no acknowledgements. A lossless network slows their senders down, but a full socket buffer drops packets. So
// toward peers that are softnics in any case (UDPConfig.AssumeSoftNICs), QPs of both types keep to a window. Several
// packets of a window have the AckReq bit, which is reserved on UC and UD, and the receiver answers such a packet with an RC
// acknowledgement of its PSN. It says that packets left the buffer, and nothing about messages: a request completes when it
// is sent, and what was lost stays lost. Sealed QPs are not paced.

const (
	// paceTimeout is how long a sender waits for an answer. Then it assumes that all packets were lost and goes on.
	paceTimeout = 200 * time.Millisecond
	// paceRNRTimeout is how long it waits after the receiver has said that its receives run out. Some programs post more only
	// when the last one is used.
	paceRNRTimeout = 20 * time.Millisecond
)

// setPace decides whether the QP is paced. It is called when the QP gets ready to receive, after the windows were set.
func (q *qp) setPace() {
	w := q.core.udpNIC
	q.paced = w != nil && w.link.cfg.AssumeSoftNICs && q.sealing == nil && q.typ != verbs.RC
	if q.paced && q.typ == verbs.UD {
		q.window = min(q.window, q.port().peerWindow(uint32(q.port().conn.Buffer())))
		q.longWindow = min(q.longWindow, q.window)
	}
}

// requestsPace reports whether a packet of a paced QP requests a response. A window has at least two such packets,
// because the wait for a lost one is long.
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

// pacedOn sends the packets that a paced QP's window now allows.
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

// respondPace responds to a pace request of a UC peer. If receives are running out it reports that, and that there are
// more when they are posted (see announceReceive). Otherwise a SEND would find none.
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

// fewReceives reports whether the receives of a paced UC QP may not last until its peer's next pace request. It
// returns false for a program that has never replaced a receive: it has posted all that it needs.
func (q *qp) fewReceives() bool {
	return q.rq.used.taken > q.rq.maxWR && uint32(q.rq.ring.Len()) < min(q.window, q.rq.maxWR/2)
}

// respondDatagram responds to a pace request in a datagram.
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
