package reliable

import (
	"time"

	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// Endpoint implements verbs.QP. It is the endpoint of the handshake QP, with the card in Extra.
func (q *qp) Endpoint() (verbs.Endpoint, error) {
	q.engine.mu.Lock()
	defer q.engine.mu.Unlock()
	if q.closed {
		return verbs.Endpoint{}, q.opError("query endpoint", verbs.ErrClosed)
	}
	if err := q.ensureConnection(); err != nil {
		return verbs.Endpoint{}, err
	}
	ep, err := q.handshake.Endpoint()
	if err != nil {
		return ep, err
	}
	c := q.bareCard()
	if q.ctx.cfg.Flows == 1 {
		c = q.card()
	}
	ep.Extra = joinExtra(c.encode(), ep.Extra)
	return ep, nil
}

// card returns the QP's card with its connection.
func (q *qp) card() *card {
	c, conn := q.bareCard(), q.conn
	c.kind, c.credit, c.conn, c.flow, c.firstAddr = cardWhole, conn.share, conn.id, q.flow, conn.firstAddr
	for i := range conn.paths {
		c.paths = append(c.paths, conn.paths[i].addr)
	}
	return c
}

// bareCard returns the QP's card without a connection.
func (q *qp) bareCard() *card {
	cfg := &q.ctx.cfg
	c := &card{
		kind: cardBare, window: cfg.Window, chunk: uint32(q.engine.resources.chunk), pathCount: cfg.Paths, flow: uint16(cfg.Flows - 1),
		perPath: !q.ctx.carrier.srq, carrier: q.ctx.carrier.typ, grants: !cfg.NoCredits, psn: q.handshake.peerPSN,
		qkey: q.engine.resources.qkey,
	}
	for i := range c.control {
		c.control[i] = q.engine.resources.control[i].qp.Num()
	}
	return c
}

func (q *qp) Connect(remote verbs.Endpoint) error {
	if err := remote.Validate(); err != nil {
		return q.opError("connect QP", err)
	}
	q.engine.mu.Lock()
	defer q.engine.mu.Unlock()
	if q.closed {
		return q.opError("connect QP", verbs.ErrClosed)
	}
	if q.state != verbs.StateReset && q.state != verbs.StateInit {
		return q.opError("connect QP", verbs.ErrState)
	}
	b, inner, err := splitExtra(remote.Extra)
	if err != nil {
		return q.opError("connect QP", err)
	}
	peer, err := decodeCard(b, &q.ctx.cfg, &q.ctx.carrier)
	if err == nil && peer.kind != cardWhole && peer.kind != cardBare {
		err = verbs.Invalidf("the peer's Extra is a card of kind %d: want the Extra that Endpoint returns", peer.kind)
	}
	if err != nil {
		return q.opError("connect QP", err)
	}
	remote.Extra = inner
	if err := q.prepareFlow(&remote, peer); err != nil {
		return err
	}
	if q.state == verbs.StateReset {
		if err := verbs.InitQP(q.handshake.QP, q.cfg.Port); err != nil {
			return err
		}
		q.state = verbs.StateInit
		q.handshake.postCardReceives()
	}
	if err := q.handshake.Connect(remote); err != nil {
		return err
	}
	q.state, q.modified, q.handshake.peerPSN = verbs.StateRTS, false, remote.PSN
	if q.ctx.cfg.Flows > 1 {
		return nil // the first request of either side starts the handshake
	}
	if err := q.connectFlow(peer); err != nil {
		q.fail() // some paths may be connected
		return err
	}
	q.engine.flush() // the peer's credit
	return nil
}

// prepareFlow assigns a connection to the QP before Connect, unless the peer proposes one later.
func (q *qp) prepareFlow(remote *verbs.Endpoint, peer *card) error {
	if q.ctx.cfg.Flows == 1 {
		return q.ensureConnection()
	}
	if err := q.flowHandshake.setPeer(peerAddr{remote.GID, remote.LID, remote.QPN, peer.control}); err != nil || !q.flowHandshake.leader {
		return err
	}
	return q.flowHandshake.propose()
}

// Modify implements verbs.QP. After Modify, the two sides exchange their cards on the handshake QP with the
// first request of either.
func (q *qp) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.engine.mu.Lock()
	defer q.engine.mu.Unlock()
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
		q.engine.now = q.ctx.clock()
		q.fail()
		q.engine.flush()
		return nil
	case verbs.StateReset:
		return q.reset()
	case verbs.StateInit, verbs.StateRTR, verbs.StateRTS:
	default:
		return q.opError("modify QP", verbs.ErrNotSupported)
	}
	if err := q.ensureConnection(); err != nil {
		return err
	}
	if err := q.handshake.modify(attr, mask, to); err != nil {
		return err
	}
	if q.ctx.cfg.Flows > 1 && q.state != to && to == verbs.StateRTR {
		if err := q.flowHandshake.setPeer(peerAddr{gid: attr.AH.DGID, lid: attr.AH.DLID, qpn: attr.DestQPN}); err != nil {
			return err
		}
	}
	first := q.state == verbs.StateReset
	q.state, q.modified = to, true
	if first {
		q.handshake.postCardReceives()
	}
	if mask&verbs.AttrAccess != 0 {
		q.access = attr.Access
		if q.conn != nil {
			q.conn.applyAccess()
		}
	}
	if mask&verbs.AttrMaxRdAtomic != 0 {
		q.maxFetches = attr.MaxRdAtomic
	}
	if mask&verbs.AttrMaxDestRdAtomic != 0 {
		q.maxServed = attr.MaxDestRdAtomic
	}
	if mask&(verbs.AttrTimeout|verbs.AttrRetryCount|verbs.AttrRNRRetry) != 0 {
		return q.applyTimeouts()
	}
	return nil
}

// applyTimeouts applies the timeouts set by Modify to a connected QP.
func (q *qp) applyTimeouts() error {
	if !q.connected || q.state != verbs.StateRTS {
		return nil
	}
	attr, err := q.handshake.query()
	if err != nil {
		return err
	}
	cfg := q.flowConfig(&attr)
	q.conn.core.Retime(int(q.flow), cfg.GiveUp, cfg.RecvPatience)
	q.engine.wakeForTimer(q.conn)
	return nil
}

// connectFlow connects the QP to the peer's, and with the first QP the connection.
func (q *qp) connectFlow(peer *card) error {
	c := q.conn
	q.engine.now = q.ctx.clock()
	attr, err := q.handshake.query()
	if err != nil {
		return err
	}
	q.access = attr.Access
	if c.core != nil {
		c.applyAccess()
	} else {
		if err := c.connect(peer, &attr); err != nil {
			return err
		}
		if err := c.start(q.flowConfig(&attr)); err != nil {
			return err
		}
	}
	if err := q.openFlow(&attr); err != nil {
		return err
	}
	q.startSending()
	return nil
}

// openFlow opens the QP's flow, which accepts data from then on.
func (q *qp) openFlow(attr *verbs.QPAttr) error {
	if q.ctx.cfg.Flows > 1 {
		if err := q.conn.core.Open(int(q.flow), q.flowConfig(attr)); err != nil {
			return q.opError("connect QP", err)
		}
	}
	q.connected = true
	if q.shared.srq != nil {
		q.conn.core.Share(int(q.flow))
	}
	q.maxFetches, q.maxServed, q.answers = attr.MaxRdAtomic, attr.MaxDestRdAtomic, nil
	return nil
}

// startSending submits the requests that waited for the handshake. The peer's flow is open, so
// the QP's own receives are advertised as well. Receives of a shared queue are advertised when the peer requests
// them, which it may have done before the handshake ended here.
func (q *qp) startSending() {
	q.ready = true
	q.handshake.setResendAt(0)
	if q.flowHandshake.leader && !q.flowHandshake.loopback {
		q.flowHandshake.sendPhaseCard() // confirms
	}
	if n := q.recvs.Len(); n > 0 && q.shared.srq == nil {
		q.step(&core.Event{Kind: core.EvReceives, Count: n})
	}
	for t := q.sends.Head(); t != q.sends.Tail() && q.state != verbs.StateErr; t++ {
		q.submit(t) // may fail the QP, which completes the others
	}
	q.conn.endPosts()
	q.engine.flush()
}

// minGiveUp and maxGiveUp limit the no-progress timeout that a QP derives from its attributes, in
// nanoseconds: a process responds, not a NIC, and package core permits an hour.
const minGiveUp, maxGiveUp = int64(50 * time.Millisecond), int64(time.Hour)

// flowConfig returns the configuration of the QP's flow.
func (q *qp) flowConfig(attr *verbs.QPAttr) core.FlowConfig {
	cfg := core.FlowConfig{SendDepth: max(q.cfg.MaxSendWR, 1)}
	timed := q.modified || q.cfg.Path.AckTimeout != 0 || q.cfg.Path.RetryCount != 0
	if timed && attr.Timeout != 0 && q.ctx.cfg.GiveUp == 0 {
		cfg.GiveUp = min(max(int64(verbs.AckTimeout(attr.Timeout))*int64(attr.RetryCount+1), minGiveUp), maxGiveUp)
	}
	if attr.RNRRetry < 7 && q.state == verbs.StateRTS {
		cfg.RecvPatience = int64(max(verbs.RNRTimer(attr.MinRNRTimer), time.Millisecond)) * int64(attr.RNRRetry+1)
	}
	return cfg
}

// reset returns the QP to RESET, with a new flow.
func (q *qp) reset() error {
	if err := q.handshake.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState); err != nil {
		return err
	}
	q.leaveConnection()
	q.engine.inbox.drain()
	q.engine.inbox.discard(q.num)
	q.discardCompletions()
	q.makeQueues()
	q.refused, q.broken, q.modified, q.state = refusal{}, false, false, verbs.StateReset
	q.handshake.reset()
	q.flowHandshake = flowHandshake{qp: q}
	return q.ensureConnection()
}

func (q *qp) Query() (verbs.QPAttr, error) {
	q.engine.mu.Lock()
	defer q.engine.mu.Unlock()
	if q.closed {
		return verbs.QPAttr{}, q.opError("query QP", verbs.ErrClosed)
	}
	a, err := q.handshake.query()
	a.State, a.CurState = q.state, q.state
	return a, err
}
