package reliable

import (
	"errors"
	"time"

	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// sideQP is the inner RC QP of one wrapped QP, which has its number. It carries the user's READs and
// atomics. It also carries cards: after Modify, and where QPs share connections.
type sideQP struct {
	// QP is the RC QP, nil until open.
	verbs.QP
	user       *qp             // the wrapped QP
	down       bool            // reports that the QP was in the error state when watchSides last looked
	introduced bool            // reports that the own card was sent
	askAt      int64           // when the own card is sent again, 0 for never
	cards      pool            // has four slots: an answer, the own card, and two receives
	wr         [1]verbs.SendWR // the request being posted
	refused    []uint32        // tokens of READs and atomics that found the queue full, in order
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
	s.QP, err = q.pd.inner.CreateQP(verbs.QPConfig{
		Type: verbs.RC, SendCQ: q.ctx.inbox.cq, RecvCQ: q.ctx.inbox.cq,
		MaxSendWR: max(q.cfg.MaxSendWR, 1) + cardRecv, MaxSendSGE: q.cfg.MaxSendSGE, MaxRecvWR: cardSlots - cardRecv,
		Port: q.cfg.Port, GID: q.cfg.GID, Path: q.cfg.Path,
	})
	if err != nil {
		s.QP = nil
	}
	return err
}

func (s *sideQP) close() {
	if s.QP != nil {
		_ = s.Close() // no object depends on it
	}
	s.cards.free()
}

// completed takes a completion of the QP.
func (s *sideQP) completed(kind tag, n uint32, wc *verbs.WC) {
	q := s.user
	switch {
	case kind == tagCardRecv:
		s.receiveCard(n, wc)
	case kind == tagSide:
		if q.connected {
			q.step(&core.Event{Kind: core.EvSide, Token: n, Status: uint8(wc.Status)})
		}
	case wc.Status != verbs.StatusSuccess:
		q.failWith(wc.Status) // as the first request would have
	case q.ctx.cfg.Flows > 1:
		q.cardArrived()
	case !q.connected && q.state == verbs.StateRTS && s.introduced:
		s.setAskAt(q.ctx.now + askAgain)
	}
}

// start posts a READ or an atomic behind those that were refused. It returns the status with which
// the request ends if it can never be posted. A QP or device that has failed flushes requests, so
// only a request that is itself wrong ends otherwise.
func (s *sideQP) start(token uint32) verbs.Status {
	q := s.user
	if len(s.refused) > 0 {
		s.refused = append(s.refused, token)
		return verbs.StatusSuccess
	}
	wr := &q.sends.At(token).wr
	s.wr[0] = *wr
	s.wr[0].WRID = tagSide.with(q.id, 0, token)
	s.wr[0].Flags = verbs.SendSignaled | wr.Flags&verbs.SendFence
	n, err := s.PostSend(s.wr[:])
	switch {
	case n == 1:
		return verbs.StatusSuccess
	case errors.Is(err, verbs.ErrQueueFull):
		s.refused = append(s.refused, token)
		q.ctx.refusing++
		q.ctx.keeper.kick()
		return verbs.StatusSuccess
	case errors.Is(err, verbs.ErrInvalid):
		return verbs.StatusLocQPOpErr
	}
	return verbs.StatusWRFlushErr
}

// forget drops the requests that were refused.
func (s *sideQP) forget() {
	if len(s.refused) > 0 {
		s.refused = nil
		s.user.ctx.refusing--
	}
}

// postRefused posts again the READs and atomics that found a full queue.
func (ctx *pathContext) postRefused() {
	for _, q := range ctx.qps {
		if q == nil || len(q.side.refused) == 0 {
			continue
		}
		tokens := q.side.refused
		q.side.forget()
		for _, token := range tokens {
			if q.state == verbs.StateRTS { // otherwise the request was flushed
				q.startSide(token)
			}
		}
		q.conn.touch()
	}
}

// setAskAt sets the time at which the own card is sent again, 0 for never.
func (s *sideQP) setAskAt(at int64) {
	if s.askAt != 0 {
		s.user.ctx.asking--
	}
	if s.askAt = at; at != 0 {
		s.user.ctx.asking++
	}
}

// awaitCards posts both receives: for the peer's question and for its answer.
func (s *sideQP) awaitCards() {
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
		q.negotiate()
	}
}

// sendCard sends the own card from a slot. With want it asks for the peer's card.
func (s *sideQP) sendCard(slot int, want bool) {
	c := s.user.card()
	c.want = want
	s.send(slot, c)
}

// send sends a card from a slot. It reports whether the QP has taken it: a QP in the error state does
// not, which watchSides finds.
func (s *sideQP) send(slot int, c *card) bool {
	n := copy(s.cards.slot(slot), c.encode())
	s.wr[0] = verbs.SendWR{WRID: tagCardSend.with(s.user.id, 0, 0), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	s.wr[0].SetSGE(s.cards.sge(slot, n))
	taken, _ := s.PostSend(s.wr[:])
	return taken == 1
}

// receiveCard takes the peer's card from a slot.
func (s *sideQP) receiveCard(slot uint32, wc *verbs.WC) {
	q := s.user
	if wc.Status != verbs.StatusSuccess || slot < cardRecv || slot >= cardSlots || int(wc.ByteLen) > s.cards.size {
		return
	}
	c, err := decodeCard(s.cards.slot(int(slot))[:wc.ByteLen], &q.ctx.cfg)
	if err != nil {
		q.ctx.raise(verbs.Event{Type: verbs.EventQPReqErr, QP: q})
		q.fail()
		return
	}
	s.awaitCard(int(slot))
	if q.ctx.cfg.Flows > 1 {
		q.hear(c)
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
func (ctx *pathContext) askForCards() {
	for _, q := range ctx.qps {
		if q != nil && q.side.askAt != 0 && ctx.now >= q.side.askAt {
			q.side.setAskAt(0)
			if ctx.cfg.Flows > 1 {
				q.negotiate()
			} else {
				q.side.sendCard(cardOwn, true)
			}
		}
	}
}

// watchSides looks for side QPs in the error state. An invalid READ or atomic of the peer takes the
// side QP there, without a completion at this end. A query of the state is a system call, so it is
// made once in a while, and after an event.
//
// A request of this end may take the side QP there too. Its completion gives the reason, and may
// follow the state. So a QP fails only if it was down the last time as well: the completions in
// between were taken.
func (ctx *pathContext) watchSides() {
	ctx.sidesAt = ctx.now + lookAgain
	for _, q := range ctx.qps {
		if q == nil || q.state != verbs.StateRTS || q.side.State() != verbs.StateErr {
			continue
		}
		if q.side.down {
			q.fail()
		}
		q.side.down = true
	}
}
