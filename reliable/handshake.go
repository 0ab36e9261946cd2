package reliable

import (
	"time"

	"ibverbx/verbs"
)

// handshakeQP is the inner RC QP of one wrapped QP, or a cardQP, which has its number. It carries cards, with which the two
// sides exchange their paths after Modify, and negotiate shared connections.
type handshakeQP struct {
	// QP is the RC QP or cardQP, nil until open.
	verbs.QP
	cardQP   *cardQP         // is QP, or nil
	user     *qp             // the wrapped QP
	entries  int             // the CQ entries reserved for QP
	cardSent bool            // set once the local card is sent
	peerPSN  uint32          // the first PSN of the peer, as set by Modify or Connect
	earlyRTS bool            // set if the QP is in RTS before the user's; see enterRTSEarly
	deferred verbs.QPAttr    // the rtsAttrs that the user has set, if earlyRTS
	resendAt int64           // when the local card is retransmitted, 0 for never
	cards    pool            // has four slots: a response, the local card, and two receives
	wr       [1]verbs.SendWR // the request being posted
}

const (
	// Slots of handshakeQP.cards. The receives are the slots from cardRecv on.
	cardAnswer, cardOwn, cardRecv, cardSlots = 0, 1, 2, 4
	// cardRetry is the delay after which a QP without the peer's card retransmits its own, in
	// nanoseconds. If the peer is dead, the second card fails with RETRY_EXC.
	cardRetry = int64(20 * time.Millisecond)
)

// open creates the QP.
func (s *handshakeQP) open(q *qp) (err error) {
	s.user = q
	n := 2*cardSlots - cardRecv
	if q.ctx.carrier.datagrams() {
		n = cardRecvs
	}
	if err := q.engine.inbox.entries.reserve(n); err != nil {
		return q.opError("create QP", err)
	}
	s.entries = n
	if q.ctx.carrier.datagrams() {
		if s.cardQP, err = newCardQP(q); err == nil {
			s.QP = s.cardQP
			q.ctx.events.register(s.cardQP.QP, q)
		}
		return err
	}
	s.QP, err = q.engine.resources.pd.CreateQP(verbs.QPConfig{
		Type: verbs.RC, SendCQ: q.engine.inbox.cq, RecvCQ: q.engine.inbox.cq,
		MaxSendWR: cardSlots, MaxRecvWR: cardSlots - cardRecv,
		Port: q.cfg.Port, GID: q.cfg.GID, Path: q.cfg.Path,
	})
	if err != nil {
		s.QP = nil
		return err
	}
	q.ctx.events.register(s.QP, q)
	return nil
}

func (s *handshakeQP) close() {
	if s.QP != nil {
		s.user.ctx.events.unregister(s.QP)
		_ = s.Close() // no object depends on it
	}
	if s.entries > 0 {
		s.user.engine.inbox.entries.release(s.entries)
		s.entries = 0
	}
	s.cards.free()
}

// completed processes a completion of the QP.
func (s *handshakeQP) completed(kind tag, n uint32, wc *verbs.WC) {
	q := s.user
	switch {
	case kind == tagCardRecv && wc.Status != verbs.StatusSuccess:
		q.fail() // the QP or the device has failed
	case kind == tagCardRecv:
		if n >= cardRecv && n < cardSlots && int(wc.ByteLen) <= s.cards.size {
			s.receiveCard(s.cards.slot(int(n))[:wc.ByteLen])
			s.postCardReceive(int(n)) // a failed QP refuses it
		}
	case wc.Status != verbs.StatusSuccess:
		q.failWith(wc.Status) // as the first request would have
	case q.ctx.cfg.Flows > 1:
		q.flowHandshake.cardSent()
	case !q.connected && q.state == verbs.StateRTS && s.cardSent:
		s.setResendAt(q.engine.now + cardRetry)
	}
}

// setResendAt sets the time of the card's retransmission, 0 for never.
func (s *handshakeQP) setResendAt(at int64) {
	if s.resendAt != 0 {
		s.user.engine.cardTimers--
	}
	if s.resendAt = at; at != 0 {
		s.user.engine.cardTimers++
	}
}

// postCardReceives posts both receives: for the peer's question and for its answer.
func (s *handshakeQP) postCardReceives() {
	if s.cardQP != nil {
		return // it has receives of its own
	}
	for slot := cardRecv; slot < cardSlots; slot++ {
		s.postCardReceive(slot)
	}
}

// postCardReceive posts the receive of a slot.
func (s *handshakeQP) postCardReceive(slot int) {
	var r refill
	r.add(tagCardRecv.with(s.user.id, 0, uint32(slot)), &s.cards, slot)
	r.post(s.QP) // the queue holds both
}

// sendFirstCard sends the own card with the first request. A peer that was connected by Modify does not
// know the paths yet. QPs that share connections begin to agree on one.
func (s *handshakeQP) sendFirstCard() {
	q := s.user
	if s.cardSent {
		return
	}
	s.cardSent = true
	switch {
	case q.ctx.cfg.Flows == 1:
		s.sendCard(cardOwn, !q.connected)
	case !q.ready:
		q.flowHandshake.sendPhaseCard()
	}
}

// sendCard sends the local card from a slot. With want it requests the peer's card.
func (s *handshakeQP) sendCard(slot int, want bool) {
	c := s.user.card()
	c.want = want
	s.send(slot, c)
}

// send sends a card from a slot. It reports whether the QP has taken it: a QP in the error state
// does not, and its receives end.
func (s *handshakeQP) send(slot int, c *card) bool {
	if s.cardQP != nil {
		return s.cardQP.send(slot, c.encode())
	}
	n := copy(s.cards.slot(slot), c.encode())
	s.wr[0] = verbs.SendWR{WRID: tagCardSend.with(s.user.id, 0, 0), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	s.wr[0].SetSGE(s.cards.sge(slot, n))
	taken, _ := s.PostSend(s.wr[:])
	return taken == 1
}

// receiveCard takes the peer's card.
func (s *handshakeQP) receiveCard(b []byte) {
	q := s.user
	c, err := decodeCard(b, &q.ctx.cfg, &q.ctx.carrier)
	if err != nil {
		q.ctx.events.raise(verbs.Event{Type: verbs.EventQPReqErr, QP: q})
		q.fail()
		return
	}
	if q.state == verbs.StateRTR && !s.earlyRTS && (c.want || q.ctx.cfg.Flows > 1) {
		s.enterRTSEarly(c.psn)
	}
	if q.ctx.cfg.Flows > 1 {
		q.flowHandshake.receive(c)
		return
	}
	if c.want {
		s.sendCard(cardAnswer, false)
	}
	if !q.connected && (q.state == verbs.StateRTR || q.state == verbs.StateRTS) && q.connectFlow(c) != nil {
		q.fail()
	}
}

// resendCards sends the own cards of QPs again whose peers have not answered.
func (e *engine) resendCards() {
	for _, q := range e.qps {
		if q != nil && q.handshake.resendAt != 0 && e.now >= q.handshake.resendAt {
			q.handshake.setResendAt(0)
			if e.ctx.cfg.Flows > 1 {
				q.flowHandshake.sendPhaseCard()
			} else {
				q.handshake.sendCard(cardOwn, true)
			}
		}
	}
}
