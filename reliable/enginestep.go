package reliable

import (
	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// inbox receives the completions of all inner QPs of an engine.
type inbox struct {
	cq      verbs.CQ   // the inner CQ, deeper than the number of outstanding requests
	entries cqBudget   // the budget of cq's entries
	batch   []verbs.WC // the target of one Poll
	stash   []verbs.WC // completions polled from cq
	next    int        // the index of the first undispatched completion in stash
	more    bool       // set if the last drive stopped before cq was empty
	// delay computes the wait of completions in the CQ.
	delay cqDelay
}

// open creates the CQ, with timestamps if the device supports them.
func (in *inbox) open(ctx verbs.Context, cfg verbs.CQConfig) (err error) {
	in.entries.depth = cfg.Depth
	if in.delay.device != nil {
		cfg.Timestamp = true
		if in.cq, err = ctx.CreateCQ(cfg); err == nil {
			return nil
		}
		in.delay.device, cfg.Timestamp = nil, false
	}
	in.cq, err = ctx.CreateCQ(cfg)
	return err
}

// poll moves completions from the CQ to the stash and returns their number.
func (in *inbox) poll() int {
	n, _ := in.cq.Poll(in.batch) // cannot overrun
	in.stash = append(in.stash, in.batch[:n]...)
	return n
}

// drain moves all completions to the stash. Call it before closing a QP, because closing
// removes its completions from the CQ.
func (in *inbox) drain() {
	for in.poll() > 0 {
	}
}

// discard drops the stashed completions of a QP that was reset and keeps its number.
func (in *inbox) discard(qpn uint32) {
	for i := in.next; i < len(in.stash); i++ {
		if in.stash[i].QPN == qpn {
			in.stash[i].WRID = 0 // has no tag
		}
	}
}

// lastSent returns the number of completed sends of a path, including the done dispatched ones.
func (in *inbox) lastSent(p *path, done uint32) uint32 {
	for i := in.next; i < len(in.stash); i++ {
		if t, id, index, n := untag(in.stash[i].WRID); t == tagPath && id == p.conn.id && index == p.index {
			done = n + 1
		}
	}
	return done
}

// step does all due work. It returns the time of the next timer, or core.Never. It
// arms the inner CQ so that the background loop wakes for the next completion.
func (e *engine) step() (next int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return core.Never
	}
	e.ctx.events.drain()
	e.drive()
	e.wakeAt = core.Never
	if e.background != nil {
		if e.programPolls() {
			e.wakeAt = e.now + backgroundInterval
		} else {
			_ = e.inbox.cq.Arm(false) // cannot fail: the CQ has a Waker
			e.drive()
		}
	}
	if e.inbox.more || e.inbox.next < len(e.inbox.stash) {
		e.wakeAt = e.now // these completions will not wake the background loop
	}
	e.wakeAt = min(e.wakeAt, e.grantAt(), e.resources.reviveAt(), e.resources.copier.deadline())
	for _, c := range e.connected {
		e.wakeAt = min(e.wakeAt, c.core.Deadline())
	}
	for _, q := range e.qps {
		if q != nil && q.handshake.resendAt != 0 {
			e.wakeAt = min(e.wakeAt, q.handshake.resendAt)
		}
		if q != nil && q.handshake.cardQP != nil {
			e.wakeAt = min(e.wakeAt, q.handshake.cardQP.deadline())
		}
	}
	if len(e.dirty) > 0 {
		e.wakeAt = min(e.wakeAt, e.now+sendRetry) // a send queue is full
	}
	return e.wakeAt
}

// sendRetry is the retry interval of requests that wait for a full send queue, in nanoseconds.
const sendRetry = 10_000

// backgroundInterval is the interval of the background loop while the program polls, in nanoseconds.
const backgroundInterval = 1_000_000

// programPolls reports whether the program has polled since the last call and has no CQ armed. Such a
// program drives the engine itself, and the background loop would only compete for the lock.
func (e *engine) programPolls() bool {
	polled := e.polled
	e.polled = false
	for _, c := range e.cqs {
		if c.isArmed() {
			return false
		}
	}
	return polled
}

// wakeForTimer wakes the background loop if a timer of c is due before the background loop would run.
func (e *engine) wakeForTimer(c *connection) {
	if at := c.core.Deadline(); at < e.wakeAt {
		e.wakeAt = at
		e.background.wake()
	}
}

// rounds bounds the number of completions that one drive dispatches.
const rounds = 1024

// drive dispatches the completions of the inner QPs, runs timers and posts the resulting requests.
func (e *engine) drive() {
	in := &e.inbox
	in.more = true
	if in.next < len(in.stash) {
		e.now = e.ctx.clock() // polled by a closing QP, after e.now was set
	}
	for range rounds {
		if in.next == len(in.stash) {
			in.stash, in.next = in.stash[:0], 0
			if in.poll() == 0 {
				in.more = false
				break
			}
			e.now = e.ctx.clock()
		}
		wc := in.stash[in.next] // a copy: dispatch may grow the stash
		in.next++
		e.age = in.delay.age(e.now, wc.Timestamp)
		e.dispatch(&wc)
	}
	e.age = 0
	e.now = e.ctx.clock()
	if e.cardTimers > 0 {
		e.resendCards()
	}
	if e.unackedCards > 0 {
		e.retransmitCards()
	}
	e.resources.revive()
	if e.now >= e.resources.copier.deadline() {
		e.resources.copier.restart(core.StatusNoRecv)
	}
	for i := 0; i < len(e.connected); i++ {
		if c := e.connected[i]; e.now >= c.core.Deadline() || len(c.queue) > 0 {
			c.step(&core.Event{Kind: core.EvTick})
		}
	}
	for i := 0; i < len(e.dirty); i++ {
		if c := e.dirty[i]; c.core != nil && (len(c.queue) > 0 || c.core.Owes()) {
			c.step(&core.Event{Kind: core.EvFlush})
		}
	}
	e.grant() // after EvFlush, which reports what has arrived
	if e.overran.Load() {
		e.failOverrun()
	}
	e.resources.topUp() // before acknowledgements, which invite more messages
	e.flush()
}

// failOverrun moves the QPs of overrun CQs to the error state.
func (e *engine) failOverrun() {
	e.overran.Store(false)
	for _, q := range e.qps {
		if q != nil && !q.overran && (q.sendCQ.hasOverrun() || q.recvCQ.hasOverrun()) {
			q.overran = true
			e.ctx.events.raise(verbs.Event{Type: verbs.EventQPFatal, QP: q})
			q.fail()
		}
	}
}

// flush serves the QPs that wait for shared receives, and posts the chains and control packets of all dirty
// connections, together if the device can.
func (e *engine) flush() {
	for _, s := range e.srqs {
		if s.due {
			s.grantWaiting()
		}
	}
	corked := e.ctx.corked
	if corked == nil || len(e.dirty) == 0 {
		e.ringDoorbells()
		return
	}
	corked.Cork()
	e.ringDoorbells()
	corked.Uncork()
}

// ringDoorbells rings the doorbells of flush.
func (e *engine) ringDoorbells() {
	kept := 0
	for _, c := range e.dirty {
		if c.dirty = c.flush(); c.dirty {
			e.dirty[kept] = c
			kept++
		}
	}
	e.dirty = e.dirty[:kept]
	e.resources.ringControls()
}

// dispatch passes one completion of an inner QP to its owner.
func (e *engine) dispatch(wc *verbs.WC) {
	kind, id, index, n := untag(wc.WRID)
	switch kind {
	case tagPath, tagPathRecv:
		c := e.findConnection(id)
		switch {
		case c == nil || index >= len(c.paths):
		case kind == tagPath:
			c.paths[index].sent(n, wc)
		default:
			c.paths[index].arrived(n, wc)
		}
	case tagArrival:
		if e.resources.isCurrent(id) && int(n) < e.resources.allocated() {
			e.resources.arrived(n, wc)
		}
	case tagControlSend:
		if e.resources.isCurrent(id) && index < len(e.resources.control) {
			e.resources.control[index].sent(n, wc)
		}
	case tagControlRecv:
		if c := e.routes.Find(wc.QPN).control; c != nil && n < controlRecvs {
			c.arrived(n, wc)
		}
	case tagCopy:
		if e.resources.isCurrent(id) {
			e.resources.copier.completed(index, n, wc)
		}
	case tagCardSend, tagCardRecv:
		switch q := e.findQP(id); {
		case q == nil || wc.QPN != q.num:
		case q.handshake.cardQP != nil:
			q.handshake.cardQP.completed(kind, n, wc)
		default:
			q.handshake.completed(kind, n, wc)
		}
	}
}

// findConnection returns the connection of a number, or nil.
func (e *engine) findConnection(id uint32) *connection {
	if i := int(id & maxIndex); i < len(e.conns) && e.conns[i] != nil && e.conns[i].id == id {
		return e.conns[i]
	}
	return nil
}

// findQP returns the QP of an id, or nil.
func (e *engine) findQP(id uint32) *qp {
	if int(id) < len(e.qps) {
		return e.qps[id]
	}
	return nil
}
