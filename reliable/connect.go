package reliable

import (
	"time"

	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// Endpoint implements verbs.QP: that of the side QP, with all the rest in Extra.
func (q *qp) Endpoint() (verbs.Endpoint, error) {
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	if q.closed {
		return verbs.Endpoint{}, q.opError("query endpoint", verbs.ErrClosed)
	}
	if err := q.enlist(); err != nil {
		return verbs.Endpoint{}, err
	}
	ep, err := q.side.Endpoint()
	if err != nil {
		return ep, err
	}
	ep.Extra = joinExtra(q.card().encode(), ep.Extra)
	return ep, nil
}

// card returns what the peer must know.
func (q *qp) card() *card {
	l := q.link
	c := &card{window: q.ctx.cfg.Window, credit: l.share, chunk: uint32(q.ctx.cfg.ChunkBytes), conn: l.id, flow: q.flow, perPath: !q.ctx.shared}
	if q.ctx.cfg.Credits {
		c.speculative = uint32(q.ctx.cfg.Speculative)
	}
	for i := range c.control {
		c.control[i] = q.pd.control[i].qp.Num()
	}
	for i := range l.paths {
		c.paths = append(c.paths, l.paths[i].addr)
	}
	return c
}

// Connect implements verbs.QP.
func (q *qp) Connect(remote verbs.Endpoint) error {
	if err := remote.Validate(); err != nil {
		return q.opError("connect QP", err)
	}
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	if q.closed {
		return q.opError("connect QP", verbs.ErrClosed)
	}
	if q.state != verbs.StateReset && q.state != verbs.StateInit {
		return q.opError("connect QP", verbs.ErrState)
	}
	if err := q.enlist(); err != nil {
		return err
	}
	b, inner, err := splitExtra(remote.Extra)
	if err != nil {
		return q.opError("connect QP", err)
	}
	peer, err := decodeCard(b, &q.ctx.cfg)
	if err != nil {
		return q.opError("connect QP", err)
	}
	remote.Extra = inner
	if q.state == verbs.StateReset {
		if err := verbs.InitQP(q.side, q.cfg.Port); err != nil {
			return err
		}
		q.state = verbs.StateInit
		q.awaitCards()
	}
	if err := q.side.Connect(remote); err != nil {
		return err
	}
	q.state, q.modified = verbs.StateRTS, false
	if err := q.plug(peer); err != nil {
		q.fail() // some of its parts may be connected
		return err
	}
	return nil
}

// Modify implements verbs.QP. A QP that is taken to RTS in this way learns of the peer's paths
// by a card on the side QP, when there is something to send.
func (q *qp) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	if q.closed {
		return q.opError("modify QP", verbs.ErrClosed)
	}
	if mask&verbs.AttrCurState != 0 && attr.CurState != q.state {
		return q.opError("modify QP", verbs.ErrState)
	}
	to := q.state
	if mask&verbs.AttrState != 0 {
		to = attr.State
	}
	if err := verbs.CheckTransition(verbs.RC, q.state, to, mask); err != nil {
		return q.opError("modify QP", err)
	}
	switch to {
	case verbs.StateErr:
		q.ctx.now = q.ctx.clock()
		q.fail()
		q.ctx.flush()
		return nil
	case verbs.StateReset:
		return q.reset()
	case verbs.StateInit, verbs.StateRTR, verbs.StateRTS:
	default:
		return q.opError("modify QP", verbs.ErrNotSupported)
	}
	if err := q.enlist(); err != nil {
		return err
	}
	if err := q.side.Modify(attr, mask); err != nil {
		return err
	}
	first := q.state == verbs.StateReset
	q.state, q.modified = to, true
	if first {
		q.awaitCards()
	}
	if mask&verbs.AttrAccess != 0 {
		q.allow(attr.Access)
	}
	if mask&(verbs.AttrTimeout|verbs.AttrRetryCount|verbs.AttrRNRRetry) != 0 {
		return q.retime()
	}
	return nil
}

// retime lets the times count that Modify has set after the QP got its peer's card.
func (q *qp) retime() error {
	if q.conn == nil || q.state != verbs.StateRTS {
		return nil
	}
	attr, err := q.side.Query()
	if err != nil {
		return err
	}
	cfg := q.flowConfig(&attr)
	q.conn.Retime(int(q.flow), cfg.GiveUp, cfg.RecvPatience)
	q.ctx.rekick(q)
	return nil
}

// allow sets what the peer may do. Reading and atomics are the side QP's matter.
func (q *qp) allow(access verbs.Access) {
	q.access = access
	q.link.allow()
}

// awaitCards posts the receives of the side QP: for the peer's question and its answer.
func (q *qp) awaitCards() {
	q.awaitCard(2)
	q.awaitCard(3)
}

// awaitCard posts the receive for a card of a slot.
func (q *qp) awaitCard(slot int) {
	var wr [1]verbs.RecvWR
	wr[0].WRID = tagCardRecv.with(q.id, 0, uint32(slot))
	wr[0].SetSGE(q.cards.sge(slot, q.cards.size))
	_, _ = q.side.PostRecv(wr[:]) // there is room for two
}

// askAgain is how long a QP waits for the card of its peer, which has got its own, before it
// sends it again, in nanoseconds. If the peer has gone meanwhile that ends in RC's RETRY_EXC.
const askAgain = int64(20 * time.Millisecond)

// introduce sends the own card with the first request: a peer that was connected by Modify
// knows nothing of the paths yet.
func (q *qp) introduce() {
	if !q.introduced {
		q.introduced = true
		q.sendCard(1, q.conn == nil)
	}
}

// cardSent takes the completion of the own card.
func (q *qp) cardSent(wc *verbs.WC) {
	switch {
	case wc.Status != verbs.StatusSuccess:
		q.failWith(wc.Status) // as the first request would have
	case q.conn == nil && q.state == verbs.StateRTS && q.introduced:
		q.wait(q.ctx.now + askAgain)
	}
}

// wait sets the time at which the own card is sent again; zero is never.
func (q *qp) wait(at int64) {
	if q.askAt != 0 {
		q.ctx.asking--
	}
	if q.askAt = at; at != 0 {
		q.ctx.asking++
	}
}

// askForCards sends the cards again that nobody has answered.
func (d *device) askForCards() {
	for _, q := range d.qps {
		if q != nil && q.askAt != 0 && d.now >= q.askAt {
			q.wait(0)
			q.sendCard(1, true)
		}
	}
}

// sendCard sends the own card on the side QP, from a slot; want asks for that of the peer.
func (q *qp) sendCard(slot int, want bool) {
	c := q.card()
	c.want = want
	n := copy(q.cards.slot(slot), c.encode())
	q.sideWR[0] = verbs.SendWR{WRID: tagCardSend.with(q.id, 0, 0), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	q.sideWR[0].SetSGE(q.cards.sge(slot, n))
	_, _ = q.side.PostSend(q.sideWR[:]) // if it is refused the QP is in error, which drive finds
}

// gotCard takes the peer's card from a slot.
func (q *qp) gotCard(slot uint32, wc *verbs.WC) {
	if wc.Status != verbs.StatusSuccess || slot < 2 || slot > 3 || int(wc.ByteLen) > q.cards.size {
		return
	}
	c, err := decodeCard(q.cards.slot(int(slot))[:wc.ByteLen], &q.ctx.cfg)
	if err != nil {
		q.ctx.raise(verbs.Event{Type: verbs.EventQPReqErr, QP: q})
		q.fail()
		return
	}
	q.awaitCard(int(slot))
	if c.want {
		q.sendCard(0, false)
	}
	if q.conn == nil && (q.state == verbs.StateRTR || q.state == verbs.StateRTS) && q.plug(c) != nil {
		q.fail()
	}
}

// minGiveUp is the least time without progress after which a QP gives up, whatever its timeout
// is: the peer's answers come from a program.
const minGiveUp = int64(50 * time.Millisecond)

// plug connects the QP to that of the peer, its link if this is the first of its QPs, and sends
// what was waiting for it.
func (q *qp) plug(peer *card) error {
	d, l := q.ctx, q.link
	d.now = d.clock()
	q.wait(0)
	attr, err := q.side.Query()
	if err != nil {
		return err
	}
	q.access = attr.Access
	cfg := q.flowConfig(&attr)
	if err := l.meet(q, peer, &attr, cfg); err != nil {
		return err
	}
	if d.cfg.Flows > 1 {
		if err := l.conn.Open(int(q.flow), cfg); err != nil {
			return q.opError("connect QP", err)
		}
	}
	q.conn = l.conn
	if n := int(q.recvTail - q.recvHead); n > 0 {
		q.step(&core.Event{Kind: core.EvReceives, Count: n})
	}
	for t := q.sendHead; t != q.sendTail; t++ {
		q.launch(t)
	}
	d.flush()
	return nil
}

// flowConfig returns the configuration of the QP's flow.
func (q *qp) flowConfig(attr *verbs.QPAttr) core.FlowConfig {
	cfg := core.FlowConfig{SendDepth: max(q.cfg.MaxSendWR, 1)}
	if q.modified && attr.Timeout != 0 && q.ctx.cfg.GiveUp == 0 {
		cfg.GiveUp = max(int64(verbs.AckTimeout(attr.Timeout))*int64(attr.RetryCount+1), minGiveUp)
	}
	if attr.RNRRetry < 7 && q.state == verbs.StateRTS {
		cfg.RecvPatience = int64(max(verbs.RNRTimer(attr.MinRNRTimer), time.Millisecond)) * int64(attr.RNRRetry+1)
	}
	return cfg
}

// reset makes the QP as new, on a new link or with a new flow.
func (q *qp) reset() error {
	if err := q.side.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState); err != nil {
		return err
	}
	q.leave()
	q.ctx.disregard(q.num)
	q.sendCQ.discard(q.num)
	q.recvCQ.discard(q.num)
	q.sendHead, q.sendTail, q.recvHead, q.recvTail = 0, 0, 0, 0
	q.faultLocal, q.broken, q.introduced, q.modified, q.state = 0, false, false, false, verbs.StateReset
	return q.enlist()
}

// Query implements verbs.QP.
func (q *qp) Query() (verbs.QPAttr, error) {
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	if q.closed {
		return verbs.QPAttr{}, q.opError("query QP", verbs.ErrClosed)
	}
	a, err := q.side.Query()
	a.State, a.CurState = q.state, q.state
	return a, err
}
