package reliable

import (
	"bytes"
	"cmp"

	"ibverbx/verbs"
)

// agreement is what a QP and its peer have agreed on where QPs share connections (Config.Flows): the
// connection of each end, and the flow, which has the same number at both. They settle that by cards
// on the side QP, which connects exactly these two QPs. One of them leads, the one with the smaller
// address. X and Y are the numbers of the connections at the two ends.
//
//	leader                        follower
//	        <---- bare ---------  has a request and no proposal yet
//	X, f    ----- propose ----->  Y: its connection to X, or a new one
//	        <---- accept -------  takes what arrives for flow f of Y
//	connects X to Y, may send
//	        ----- confirm ----->  may send
//
// The leader takes another connection and proposes again if X is connected to another connection than
// Y, of another peer or of an earlier life. Until the confirm the follower sends nothing: UC takes any
// packet, so packets of Y could land in a connection that is not its peer. An arrival at Y is as good
// as a confirm for the connection, because only X sends there.
//
// Only the leader's end allots the flow numbers of X and Y, and never the same twice. Each card states
// the present phase. It is sent again while a request waits and the peer does not answer. A card that
// does not echo the present proposal is ignored.
type agreement struct {
	user    *qp      // the QP of this end
	to      peerAddr // the peer's QP
	leads   bool     // reports that this end proposes
	self    bool     // reports that the QP is connected to itself
	offer   *card    // the proposal that the follower has accepted, nil before
	sending bool     // reports that a card has been posted and has not completed
	again   bool     // reports that another card waits for it
}

// peerAddr is where the peer's QP is.
type peerAddr struct {
	gid     verbs.GID // all zero if the QP is connected by LID
	lid     uint16
	qpn     uint32
	control [2]uint32 // the control QPs of the peer's engine, zero if they are not known yet
}

// near reports whether connections to both addresses may be the same: the engine is the same as far as
// known.
func (a *peerAddr) near(b *peerAddr) bool {
	var unknown [2]uint32
	return a.gid == b.gid && a.lid == b.lid && (a.control == b.control || a.control == unknown || b.control == unknown)
}

// meet notes which QP this one is being connected to.
func (a *agreement) meet(to peerAddr) error {
	q := a.user
	own, err := q.side.Endpoint()
	if err != nil {
		return err
	}
	order := bytes.Compare(own.GID[:], to.gid[:])
	if to.gid == (verbs.GID{}) {
		order = cmp.Compare(own.LID, to.lid)
	}
	order = cmp.Or(order, cmp.Compare(own.QPN, to.qpn))
	q.leave() // of a failed attempt
	*a = agreement{user: q, to: to, leads: order <= 0, self: order == 0}
	return nil
}

// propose gives the leader's QP a connection and a flow of it, unless it has them. QPs of an
// engine whose peers are in one engine share connections. A QP that is connected to itself has its own.
func (a *agreement) propose() error {
	q := a.user
	if q.conn != nil {
		return nil
	}
	for _, c := range q.engine.conns {
		if c != nil && c.led && !c.full() && c.suits(q) && c.to.near(&a.to) && !a.self {
			q.join(c, len(c.flows))
			return nil
		}
	}
	c, err := q.engine.newConnection(&q.cfg)
	if err != nil {
		return err
	}
	c.led, c.to = !a.self, a.to
	q.join(c, 0)
	return nil
}

// negotiate sends the card of the present phase to the peer.
func (a *agreement) negotiate() {
	q := a.user
	if a.sending {
		a.again = true
		return
	}
	if a.leads {
		if err := a.propose(); err != nil {
			q.refuse()
			return
		}
	}
	if a.self {
		if q.connectFlow(q.card()) != nil {
			q.refuse()
		}
		return
	}
	if a.sending = q.side.send(cardOwn, a.phase()); !a.sending {
		q.side.setAskAt(q.engine.now + askAgain) // the QP has failed, in which case its receives end, or its queue is full
	}
}

// phase returns the card of the present phase.
func (a *agreement) phase() *card {
	q := a.user
	if q.conn == nil {
		return q.bareCard()
	}
	c := q.card()
	switch {
	case a.leads && q.ready:
		c = q.bareCard()
		c.kind, c.conn, c.flow, c.echo = cardConfirm, q.conn.id, q.flow, q.conn.peer.conn
	case a.leads:
		c.kind = cardPropose
	default:
		c.kind, c.echo = cardAccept, a.offer.conn
	}
	return c
}

// cardArrived notes that the last card has arrived. If a request waits and nothing happens, the card is sent
// again.
func (a *agreement) cardArrived() {
	q := a.user
	a.sending = false
	switch {
	case a.again:
		a.again = false
		a.negotiate()
	case !q.ready && q.state == verbs.StateRTS && q.side.introduced:
		q.side.setAskAt(q.engine.now + askAgain)
	}
}

// hear takes a card of the peer. Cards that do not fit the present phase are late, or not true.
func (a *agreement) hear(c *card) {
	q := a.user
	if !q.side.speaks() {
		return // no card can leave; the peer sends its card again
	}
	var err error
	switch {
	case a.self:
	case c.kind == cardBare && a.leads && !q.ready:
		a.negotiate()
	case c.kind == cardPropose && !a.leads && !q.ready:
		err = a.follow(c)
	case c.kind == cardAccept && a.leads && q.conn != nil && c.echo == q.conn.id && c.flow == q.flow:
		err = a.conclude(c)
	case c.kind == cardConfirm && !a.leads && !q.ready && a.offer != nil &&
		c.conn == a.offer.conn && c.flow == q.flow && c.echo == q.conn.id:
		q.conn.begin()
		if q.connected {
			q.launchAll()
		}
	}
	if err != nil {
		q.refuse()
	}
}

// refuse ends a QP for which there is no connection, or whose connection cannot be connected.
func (q *qp) refuse() {
	q.ctx.events.raise(verbs.Event{Type: verbs.EventQPFatal, QP: q})
	q.fail()
}

// follow takes a proposal of the leader. The QP joins the connection whose peer is the leader's, or a
// new one.
func (a *agreement) follow(offer *card) error {
	q := a.user
	if o := a.offer; o != nil && o.conn == offer.conn && o.birth == offer.birth && o.flow == offer.flow {
		a.negotiate() // it has come again
		return nil
	}
	q.leave() // nothing was sent
	a.offer = nil
	attr, err := q.side.query()
	if err != nil {
		return err
	}
	q.access = attr.Access
	if c := q.engine.connectionOf(q, offer, &attr); c != nil {
		q.join(c, int(offer.flow))
		c.allow()
		if c.core != nil {
			err = q.openFlow(&attr)
		}
	} else if c, err = q.engine.newConnection(&q.cfg); err == nil {
		q.join(c, int(offer.flow))
		err = c.connect(offer, &attr)
		c.held = err == nil
	}
	if err != nil {
		return err
	}
	a.offer = offer
	a.negotiate()
	return nil
}

// connectionOf returns the connection that a follower has to the leader's of an offer, or nil.
func (e *engine) connectionOf(q *qp, offer *card, attr *verbs.QPAttr) *connection {
	for _, c := range e.conns {
		if c != nil && !c.led && c.suits(q) && c.reaches(offer, attr) && c.free(int(offer.flow)) {
			return c
		}
	}
	return nil
}

// conclude takes the follower's consent to the present proposal. The connection is connected to that
// of the follower, or is already, or the QP takes another one.
func (a *agreement) conclude(answer *card) error {
	q := a.user
	c := q.conn
	if q.ready {
		a.negotiate() // the follower has not got the confirm
		return nil
	}
	attr, err := q.side.query()
	if err != nil {
		return err
	}
	if c.peer != nil && !c.reaches(answer, &attr) {
		if c.peer.control == answer.control {
			c.closed = true // the peer has left it
		}
		a.to.control = answer.control
		q.leave()
		a.negotiate()
		return nil
	}
	c.to.control = answer.control // Modify does not tell it
	return q.connectFlow(answer)
}
