package reliable

import (
	"bytes"
	"cmp"

	"ibverbx/verbs"
)

// flowHandshake negotiates the connection and the flow of a QP where QPs share connections (Config.Flows).
// Both sides use the same flow number. They exchange cards on the handshake QP, which connects exactly these
// two QPs. The QP with the smaller address is the leader. X and Y are the connection numbers of the two sides.
//
//	leader                        follower
//	        <---- bare ---------  has a request and no proposal yet
//	X, f    ----- propose ----->  Y: its connection to X, or a new one
//	        <---- accept -------  accepts data for flow f of Y
//	connects X to Y, may send
//	        ----- confirm ----->  may send
//
// If X is already connected to another connection than Y, the leader proposes another one. The follower does
// not send before the confirm: UC accepts any packet, so packets of Y could land in a connection that is not
// its peer. An arrival at Y confirms the connection too, because only X sends there.
//
// Only the leader assigns the flow numbers of X and Y, each number once. A card states the current phase and
// is retransmitted while a request waits. Cards that do not echo the current proposal are ignored.
type flowHandshake struct {
	qp       *qp      // the QP of this end
	to       peerAddr // the peer's QP
	leader   bool     // set on the side that proposes
	loopback bool     // set if the QP is connected to itself
	offer    *card    // the proposal that the follower has accepted, nil before
	sending  bool     // set while a posted card has not completed
	resend   bool     // set if another card follows it
}

// peerAddr is the address of the peer's QP.
type peerAddr struct {
	gid     verbs.GID // all zero if the QP is connected by LID
	lid     uint16
	qpn     uint32
	control [2]uint32 // the control QPs of the peer's engine, zero if unknown
}

// mayShareEngine reports whether both addresses may belong to one engine.
func (a *peerAddr) mayShareEngine(b *peerAddr) bool {
	var unknown [2]uint32
	return a.gid == b.gid && a.lid == b.lid && (a.control == b.control || a.control == unknown || b.control == unknown)
}

// setPeer starts over with a new peer.
func (h *flowHandshake) setPeer(to peerAddr) error {
	q := h.qp
	own, err := q.handshake.Endpoint()
	if err != nil {
		return err
	}
	order := bytes.Compare(own.GID[:], to.gid[:])
	if to.gid == (verbs.GID{}) {
		order = cmp.Compare(own.LID, to.lid)
	}
	order = cmp.Or(order, cmp.Compare(own.QPN, to.qpn))
	q.leaveConnection() // of a failed attempt
	*h = flowHandshake{qp: q, to: to, leader: order <= 0, loopback: order == 0}
	return nil
}

// propose assigns a connection and a flow to the leader's QP, unless it has them. QPs of an engine share a
// connection if their peers share an engine. A QP that is connected to itself has its own.
func (h *flowHandshake) propose() error {
	q := h.qp
	if q.conn != nil {
		return nil
	}
	for _, c := range q.engine.conns {
		if c != nil && c.assignsFlows && !c.full() && c.fits(q) && c.to.mayShareEngine(&h.to) && !h.loopback {
			q.joinConnection(c, len(c.flows))
			return nil
		}
	}
	c, err := q.engine.newConnection(&q.cfg)
	if err != nil {
		return err
	}
	c.assignsFlows, c.to = !h.loopback, h.to
	q.joinConnection(c, 0)
	return nil
}

// sendPhaseCard sends the card of the current phase to the peer.
func (h *flowHandshake) sendPhaseCard() {
	q := h.qp
	if h.sending {
		h.resend = true
		return
	}
	if h.leader {
		if err := h.propose(); err != nil {
			q.failFatally()
			return
		}
	}
	if h.loopback {
		if q.connectFlow(q.card()) != nil {
			q.failFatally()
		}
		return
	}
	if h.sending = q.handshake.send(cardOwn, h.phaseCard()); !h.sending {
		q.handshake.setResendAt(q.engine.now + cardRetry) // the QP has failed, in which case its receives end, or its queue is full
	}
}

// phaseCard returns the card of the current phase.
func (h *flowHandshake) phaseCard() *card {
	q := h.qp
	if q.conn == nil {
		return q.bareCard()
	}
	c := q.card()
	switch {
	case h.leader && q.ready:
		c = q.bareCard()
		c.kind, c.conn, c.flow, c.echo = cardConfirm, q.conn.id, q.flow, q.conn.peer.conn
	case h.leader:
		c.kind = cardPropose
	default:
		c.kind, c.echo = cardAccept, h.offer.conn
	}
	return c
}

// cardSent processes the completion of the last card. While a request waits, the card is retransmitted after
// cardRetry.
func (h *flowHandshake) cardSent() {
	q := h.qp
	h.sending = false
	switch {
	case h.resend:
		h.resend = false
		h.sendPhaseCard()
	case !q.ready && q.state == verbs.StateRTS && q.handshake.cardSent:
		q.handshake.setResendAt(q.engine.now + cardRetry)
	}
}

// receive processes a card of the peer. Cards of another phase are ignored: they are late or false.
func (h *flowHandshake) receive(c *card) {
	q := h.qp
	if !q.handshake.canSend() {
		return // the peer retransmits its card
	}
	var err error
	switch {
	case h.loopback:
	case c.kind == cardBare && h.leader && !q.ready:
		h.sendPhaseCard()
	case c.kind == cardPropose && !h.leader && !q.ready:
		err = h.accept(c)
	case c.kind == cardAccept && h.leader && q.conn != nil && c.echo == q.conn.id && c.flow == q.flow:
		err = h.confirm(c)
	case c.kind == cardConfirm && !h.leader && !q.ready && h.offer != nil &&
		c.conn == h.offer.conn && c.flow == q.flow && c.echo == q.conn.id:
		q.conn.confirm()
		if q.connected {
			q.startSending()
		}
	}
	if err != nil {
		q.failFatally()
	}
}

// failFatally fails a QP whose connection cannot be created or connected.
func (q *qp) failFatally() {
	q.ctx.events.raise(verbs.Event{Type: verbs.EventQPFatal, QP: q})
	q.fail()
}

// accept accepts the leader's proposal. The QP joins the connection to the proposed one, or a new one.
func (h *flowHandshake) accept(offer *card) error {
	q := h.qp
	if o := h.offer; o != nil && o.conn == offer.conn && o.firstAddr == offer.firstAddr && o.flow == offer.flow {
		h.sendPhaseCard() // a duplicate
		return nil
	}
	q.leaveConnection() // nothing was sent
	h.offer = nil
	attr, err := q.handshake.query()
	if err != nil {
		return err
	}
	q.access = attr.Access
	if c := q.engine.connectionOf(q, offer, &attr); c != nil {
		q.joinConnection(c, int(offer.flow))
		c.applyAccess()
		if c.core != nil {
			err = q.openFlow(&attr)
		}
	} else if c, err = q.engine.newConnection(&q.cfg); err == nil {
		q.joinConnection(c, int(offer.flow))
		err = c.connect(offer, &attr)
		c.unconfirmed = err == nil
	}
	if err != nil {
		return err
	}
	h.offer = offer
	h.sendPhaseCard()
	return nil
}

// connectionOf returns the follower's connection to the proposed one, or nil.
func (e *engine) connectionOf(q *qp, offer *card, attr *verbs.QPAttr) *connection {
	for _, c := range e.conns {
		if c != nil && !c.assignsFlows && !c.closed && c.fits(q) && c.connectedTo(offer, attr) && c.flowUnused(int(offer.flow)) {
			return c
		}
	}
	return nil
}

// confirm processes the follower's accept. It connects the connection, unless it is connected. If it is
// connected to another one, the QP moves to another connection.
func (h *flowHandshake) confirm(answer *card) error {
	q := h.qp
	c := q.conn
	if q.ready {
		h.sendPhaseCard() // the confirm was lost
		return nil
	}
	attr, err := q.handshake.query()
	if err != nil {
		return err
	}
	if c.peer != nil && !c.connectedTo(answer, &attr) {
		if c.peer.control == answer.control {
			c.closed = true // the peer has left it
		}
		h.to.control = answer.control
		q.leaveConnection()
		h.sendPhaseCard()
		return nil
	}
	c.to.control = answer.control // unknown after Modify
	return q.connectFlow(answer)
}
