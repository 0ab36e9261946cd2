package reliable

import (
	"time"

	"ibverbx/verbs"
)

// sideQP is the inner RC QP of one wrapped QP, or a cardQP, which has its number. It carries cards, with which the two
// ends tell each other their paths: after Modify, and where QPs share connections.
type sideQP struct {
	// QP is the RC QP or cardQP, nil until open.
	verbs.QP
	cardQP     *cardQP         // is QP, or nil
	user       *qp             // the wrapped QP
	entries    int             // the CQ entries reserved for QP
	introduced bool            // reports that the own card was sent
	expects    uint32          // the first PSN of the peer, as Modify has set it
	early      bool            // reports that the QP went to RTS before the user's; see answerEarly
	later      verbs.QPAttr    // has what the user has set of earlyAttrs, if early
	askAt      int64           // when the own card is sent again, 0 for never
	cards      pool            // has four slots: an answer, the own card, and two receives
	wr         [1]verbs.SendWR // the request being posted
}

const (
	// Slots of sideQP.cards. The receives are the slots from cardRecv on.
	cardAnswer, cardOwn, cardRecv, cardSlots = 0, 1, 2, 4
	// askAgain is how long a QP waits for the peer's card before it sends its own again, in
	// nanoseconds. If the peer is gone, the second card ends with RETRY_EXC.
	askAgain = int64(20 * time.Millisecond)
)

// open makes the QP.
func (s *sideQP) open(q *qp) (err error) {
	s.user = q
	n := 2*cardSlots - cardRecv
	if q.ctx.carrier.datagrams() {
		n = cardRecvs
	}
	if err := q.engine.inbox.room.reserve(n); err != nil {
		return q.opError("create QP", err)
	}
	s.entries = n
	if q.ctx.carrier.datagrams() {
		if s.cardQP, err = newCardQP(q); err == nil {
			s.QP = s.cardQP
			q.ctx.events.own(s.cardQP.QP, q)
		}
		return err
	}
	s.QP, err = q.engine.hub.pd.CreateQP(verbs.QPConfig{
		Type: verbs.RC, SendCQ: q.engine.inbox.cq, RecvCQ: q.engine.inbox.cq,
		MaxSendWR: cardSlots, MaxRecvWR: cardSlots - cardRecv,
		Port: q.cfg.Port, GID: q.cfg.GID, Path: q.cfg.Path,
	})
	if err != nil {
		s.QP = nil
		return err
	}
	q.ctx.events.own(s.QP, q)
	return nil
}

func (s *sideQP) close() {
	if s.QP != nil {
		s.user.ctx.events.disown(s.QP)
		_ = s.Close() // no object depends on it
	}
	if s.entries > 0 {
		s.user.engine.inbox.room.release(s.entries)
		s.entries = 0
	}
	s.cards.free()
}

// completed takes a completion of the QP.
func (s *sideQP) completed(kind tag, n uint32, wc *verbs.WC) {
	q := s.user
	switch {
	case kind == tagCardRecv && wc.Status != verbs.StatusSuccess:
		q.fail() // the QP or the device has failed
	case kind == tagCardRecv:
		if n >= cardRecv && n < cardSlots && int(wc.ByteLen) <= s.cards.size {
			s.receiveCard(s.cards.slot(int(n))[:wc.ByteLen])
			s.awaitCard(int(n)) // a failed QP refuses it
		}
	case wc.Status != verbs.StatusSuccess:
		q.failWith(wc.Status) // as the first request would have
	case q.ctx.cfg.Flows > 1:
		q.pact.cardArrived()
	case !q.connected && q.state == verbs.StateRTS && s.introduced:
		s.setAskAt(q.engine.now + askAgain)
	}
}

// setAskAt sets the time at which the own card is sent again, 0 for never.
func (s *sideQP) setAskAt(at int64) {
	if s.askAt != 0 {
		s.user.engine.asking--
	}
	if s.askAt = at; at != 0 {
		s.user.engine.asking++
	}
}

// awaitCards posts both receives: for the peer's question and for its answer.
func (s *sideQP) awaitCards() {
	if s.cardQP != nil {
		return // it has receives of its own
	}
	for slot := cardRecv; slot < cardSlots; slot++ {
		s.awaitCard(slot)
	}
}

// awaitCard posts the receive of a slot.
func (s *sideQP) awaitCard(slot int) {
	var r refill
	r.add(tagCardRecv.with(s.user.id, 0, uint32(slot)), &s.cards, slot)
	r.post(s.QP) // the queue has room for both
}

// introduce sends the own card with the first request. A peer that was connected by Modify does not
// know the paths yet. QPs that share connections begin to agree on one.
func (s *sideQP) introduce() {
	q := s.user
	if s.introduced {
		return
	}
	s.introduced = true
	switch {
	case q.ctx.cfg.Flows == 1:
		s.sendCard(cardOwn, !q.connected)
	case !q.ready:
		q.pact.negotiate()
	}
}

// sendCard sends the own card from a slot. With want it asks for the peer's card.
func (s *sideQP) sendCard(slot int, want bool) {
	c := s.user.card()
	c.want = want
	s.send(slot, c)
}

// send sends a card from a slot. It reports whether the QP has taken it: a QP in the error state
// does not, and its receives end.
func (s *sideQP) send(slot int, c *card) bool {
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
func (s *sideQP) receiveCard(b []byte) {
	q := s.user
	c, err := decodeCard(b, &q.ctx.cfg, &q.ctx.carrier)
	if err != nil {
		q.ctx.events.raise(verbs.Event{Type: verbs.EventQPReqErr, QP: q})
		q.fail()
		return
	}
	if q.state == verbs.StateRTR && !s.early && (c.want || q.ctx.cfg.Flows > 1) {
		s.answerEarly(c.psn)
	}
	if q.ctx.cfg.Flows > 1 {
		q.pact.hear(c)
		return
	}
	if c.want {
		s.sendCard(cardAnswer, false)
	}
	if !q.connected && (q.state == verbs.StateRTR || q.state == verbs.StateRTS) && q.connectFlow(c) != nil {
		q.fail()
	}
}

// askForCards sends the own cards of QPs again whose peers have not answered.
func (e *engine) askForCards() {
	for _, q := range e.qps {
		if q != nil && q.side.askAt != 0 && e.now >= q.side.askAt {
			q.side.setAskAt(0)
			if e.ctx.cfg.Flows > 1 {
				q.pact.negotiate()
			} else {
				q.side.sendCard(cardOwn, true)
			}
		}
	}
}
