package reliable

import (
	"slices"
	"sync/atomic"

	"ibverbx/internal/ring"
	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// maxInline is the limit of inline bytes per request.
const maxInline = 256

// qp is a wrapped QP: the queues of a user's QP, its flow of a connection, and its handshake QP. The
// lock of the engine guards it.
type qp struct {
	ctx    *pathContext
	engine *engine        // runs the QP
	cfg    verbs.QPConfig // the argument of CreateQP, with MaxSendSGE and MaxRecvSGE of at least 1
	sendCQ *cq            // receives the completions of sends
	recvCQ *cq            // receives the completions of receives
	id     uint32         // the index in e.qps, and the number of the QP in tags
	num    uint32         // the QP number, that of the handshake QP
	state  verbs.QPState  // the state visible to the user
	access verbs.Access   // the peer's access to local memory
	// maxFetches is MaxRdAtomic, as set by Modify or Connect. Zero forbids READs and atomics. The
	// number itself is not a limit.
	maxFetches uint8
	maxServed  uint8 // likewise, MaxDestRdAtomic
	modified   bool  // set if Modify has connected the QP, so the user's timeouts apply
	// broken is set after an unacceptable chunk of the peer. The current step of the connection
	// moves the QP to the error state.
	broken  bool
	overran bool // set once the QP has failed because a CQ has overrun
	closed  bool // set by Close

	// conn is the connection, shared with the other QPs of conn.flows. It is nil until the two ends
	// agree on it, or after a reset that could not create another connection.
	conn          *connection
	flow          uint16        // the index of the QP in conn.flows
	connected     bool          // set while the flow is open in conn.core
	ready         bool          // set while the flow is open on both sides: requests and receives go to conn.core
	handshake     handshakeQP   // provides the QP number and carries cards
	flowHandshake flowHandshake // negotiates shared connections

	sends      ring.Ring[sendSlot]     // the incomplete requests, by token
	inline     pool                    // a slot of MaxInline bytes per slot of sends
	recvs      ring.Ring[verbs.RecvWR] // the incomplete receives, by message number; with an SRQ those consumed by messages
	answers    []answer                // the responses to the peer, by token of core.ActAnswer
	sendsHeld  atomic.Int32            // the occupied slots of the send queue, at least sends.Len()
	recvsHeld  atomic.Int32            // likewise, of the receive queue
	unreported int32                   // the slots of completed requests without a CQE
	refused    refusal                 // the refused chunks of the peer
	shared     sharing                 // the use of an SRQ
}

// refusal describes the refused chunks of the peer.
type refusal struct {
	recvError verbs.Status // the status of the receive that caused the refusal of a chunk, or 0
	key       uint32       // the last wrong key, if keys is not 0
	keys      uint32       // counts the wrong keys
}

var _ verbs.QP = (*qp)(nil)

// CreateQP implements verbs.PD. An RC QP consists of paths. Other QPs are QPs of the inner PD.
func (p *pd) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	ctx := p.ctx
	ctx.mu.Lock()
	defer ctx.mu.Unlock()
	send, ok1 := cfg.SendCQ.(*cq)
	recv, ok2 := cfg.RecvCQ.(*cq)
	if !ok1 || !ok2 || !send.usable(ctx) || !recv.usable(ctx) {
		return nil, ctx.opError("create QP", 0, verbs.Invalidf("QPConfig.SendCQ or RecvCQ is nil, closed or of another context"))
	}
	s, err := p.usable(&cfg)
	if err != nil {
		return nil, ctx.opError("create QP", 0, err)
	}
	if cfg.Type != verbs.RC {
		cfg.SendCQ, cfg.RecvCQ = send.inner, recv.inner
		if s != nil {
			if cfg.SRQ, err = s.moveToDevice(); err != nil {
				return nil, err
			}
		}
		return p.inner.CreateQP(cfg)
	}
	q := &qp{ctx: ctx, cfg: cfg, sendCQ: send, recvCQ: recv, shared: sharing{srq: s}}
	if err := q.checkConfig(); err != nil {
		return nil, ctx.opError("create QP", 0, err)
	}
	if err := q.create(p); err != nil {
		return nil, err
	}
	return q, nil
}

// create assigns an engine to the QP and creates its parts. The context is locked.
func (q *qp) create(p *pd) (err error) {
	if p.closed || p.ctx.closed.Load() {
		return p.ctx.opError("create QP", 0, verbs.ErrClosed)
	}
	if q.engine, err = p.engineOf(&q.cfg, q.sendCQ, q.shared.srq); err != nil {
		return err
	}
	q.engine.mu.Lock()
	defer q.engine.mu.Unlock()
	if q.engine.resources.qps >= q.ctx.recvs.connections()*q.ctx.cfg.Flows {
		return p.ctx.opError("create QP", 0, p.ctx.tooManyConnections())
	}
	if !q.engine.resources.suits(&q.cfg) {
		return p.ctx.opError("create QP", 0, verbs.Invalidf("some QPs of the SRQ have a QPConfig.Path.Seal and others do not: their control packets share a QP"))
	}
	if err := q.build(); err != nil {
		q.destroy()
		return err
	}
	q.sendCQ.attach(q.engine)
	q.recvCQ.attach(q.engine)
	if s := q.shared.srq; s != nil {
		s.join(q.engine)
	}
	return nil
}

func (q *qp) checkConfig() error {
	maxWR := min(q.ctx.attr.MaxQPWR, 1<<15)
	for _, f := range [...]struct {
		name       string
		value, max int
	}{
		{"MaxSendWR", q.cfg.MaxSendWR, maxWR},
		{"MaxRecvWR", q.cfg.MaxRecvWR, maxWR},
		{"MaxSendSGE", q.cfg.MaxSendSGE, verbs.MaxSGE},
		{"MaxRecvSGE", q.cfg.MaxRecvSGE, verbs.MaxSGE},
		{"MaxInline", q.cfg.MaxInline, maxInline},
	} {
		if f.value < 0 || f.value > f.max {
			return verbs.Invalidf("QPConfig.%s is %d: want 0 to %d", f.name, f.value, f.max)
		}
	}
	if q.sendCQ.hasOverrun() || q.recvCQ.hasOverrun() {
		return verbs.ErrCQOverrun
	}
	return nil
}

// build creates the parts of a QP.
func (q *qp) build() (err error) {
	h := &q.engine.resources
	h.qps++
	q.register()
	q.flowHandshake.qp = q
	q.cfg.MaxSendSGE, q.cfg.MaxRecvSGE = max(q.cfg.MaxSendSGE, 1), max(q.cfg.MaxRecvSGE, 1)
	if err = q.handshake.open(q); err != nil {
		return err
	}
	q.num = q.handshake.Num()
	if err = q.ensureConnection(); err != nil {
		return err
	}
	q.makeQueues()
	if q.cfg.MaxInline > 0 {
		if q.inline, err = newPool(h.pd, q.sends.Cap(), q.cfg.MaxInline); err != nil {
			return err
		}
	}
	if q.handshake.cardQP != nil {
		return nil
	}
	q.handshake.cards, err = newPool(h.pd, cardSlots, q.ctx.cfg.maxCardLen())
	return err
}

// makeQueues makes empty queues. Tokens and message numbers start at 0.
func (q *qp) makeQueues() {
	q.sendsHeld.Store(0)
	q.recvsHeld.Store(0)
	q.unreported = 0
	q.sends = ring.New[sendSlot](q.cfg.MaxSendWR)
	q.recvs = ring.New[verbs.RecvWR](q.cfg.MaxRecvWR)
	if s := q.shared.srq; s != nil {
		q.shared = sharing{srq: s}
		q.recvs = ring.New[verbs.RecvWR](q.ctx.cfg.Window)
	}
}

// register assigns the QP's id.
func (q *qp) register() {
	e := q.engine
	i := slices.Index(e.qps, nil)
	if i < 0 {
		i = len(e.qps)
		e.qps = append(e.qps, nil)
	}
	e.qps[i], q.id = q, uint32(i)
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) Type() verbs.QPType { return verbs.RC }

func (q *qp) State() verbs.QPState {
	q.engine.mu.Lock()
	defer q.engine.mu.Unlock()
	return q.state
}

func (q *qp) Close() error {
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	q.engine.mu.Lock()
	defer q.engine.mu.Unlock()
	if q.closed {
		return nil
	}
	q.destroy()
	q.sendCQ.detach(q.engine)
	q.recvCQ.detach(q.engine)
	q.discardCompletions()
	q.ctx.events.forgetQP(q)
	if s := q.shared.srq; s != nil {
		s.users--
		q.engine.flush()
	}
	return nil
}

// discardCompletions removes the QP's CQEs.
func (q *qp) discardCompletions() {
	q.sendCQ.discard(q.num)
	q.recvCQ.discard(q.num)
}

// destroy frees a QP, even if build has not completed.
func (q *qp) destroy() {
	if q.closed {
		return
	}
	q.closed = true
	q.leaveConnection()
	q.handshake.close()
	q.inline.free()
	if q.engine.findQP(q.id) == q {
		q.engine.qps[q.id] = nil
	}
	h := &q.engine.resources
	if h.qps--; h.qps == 0 {
		q.engine.inbox.drain()
		h.release()
	}
}

// failWith moves the QP to the error state. Its oldest request fails with status.
func (q *qp) failWith(status verbs.Status) {
	switch {
	case q.state != verbs.StateRTS:
	case q.ready:
		q.conn.run(&core.Event{Kind: core.EvClose, Flow: q.flow, Status: uint8(status)})
	case q.sends.Len() > 0:
		q.completeSend(q.sends.Head(), status)
	}
	q.fail()
}

// fail moves the QP to the error state and flushes all its requests and receives.
func (q *qp) fail() {
	if q.state == verbs.StateErr || q.state == verbs.StateReset {
		return
	}
	q.state, q.broken = verbs.StateErr, false
	q.handshake.setResendAt(0)
	if q.connected {
		q.conn.run(&core.Event{Kind: core.EvClose, Flow: q.flow, Status: uint8(verbs.StatusWRFlushErr)})
		if q.conn.core.Over() {
			q.conn.leavePacer()
		}
	}
	for q.sends.Len() > 0 { // requests that waited for the peer
		q.completeSend(q.sends.Head(), verbs.StatusWRFlushErr)
	}
	_ = q.handshake.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState) // fails if it is there already
	if q.conn != nil {
		q.engine.resources.copier.abandon(q.conn, q.flow)
	}
	q.flushRecvs()
	if q.shared.srq != nil {
		q.shared.srq.releaseGrants(q)
		q.ctx.events.raise(verbs.Event{Type: verbs.EventLastWQEReached, QP: q})
	}
}

func (q *qp) opError(op string, err error) error { return q.ctx.opError(op, q.num, err) }
