package reliable

import (
	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// inbox takes the completions of all inner QPs of a context.
type inbox struct {
	cq    verbs.CQ   // takes the completions; it is deeper than the number of outstanding requests
	batch []verbs.WC // the target of one Poll
	stash []verbs.WC // holds completions that were polled from cq
	next  int        // the index in stash of the first completion that is not dispatched
	more  bool       // reports that the last drive has stopped before cq was empty
	// stamps tells how long completions have waited.
	stamps stamps
}

// open makes the CQ, with timestamps if the device can.
func (in *inbox) open(ctx verbs.Context, cfg verbs.CQConfig) (err error) {
	if in.stamps.device != nil {
		cfg.Timestamp = true
		if in.cq, err = ctx.CreateCQ(cfg); err == nil {
			return nil
		}
		in.stamps.device, cfg.Timestamp = nil, false
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

// drain moves all completions to the stash. It is called before a QP is closed, because closing a QP
// removes its completions from the CQ.
func (in *inbox) drain() {
	for in.poll() > 0 {
	}
}

// discard drops the stashed completions of a QP that is reset and keeps its number.
func (in *inbox) discard(qpn uint32) {
	for i := in.next; i < len(in.stash); i++ {
		if in.stash[i].QPN == qpn {
			in.stash[i].WRID = 0 // has no tag
		}
	}
}

// Step does everything that is due. It arms the inner CQ so that the keeper wakes for the next
// completion.
func (ctx *pathContext) Step() (next int64, pending bool) {
	ctx.mu.Lock()
	defer ctx.mu.Unlock()
	if ctx.closed {
		return 0, false
	}
	ctx.collect()
	ctx.drive()
	ctx.wakeAt = core.Never
	if ctx.keeper != nil {
		if ctx.attended() {
			ctx.wakeAt = ctx.now + lookAgain
		} else {
			_ = ctx.inbox.cq.Arm(false) // cannot fail: the CQ has a Waker
			ctx.drive()
		}
	}
	if ctx.inbox.more || ctx.inbox.next < len(ctx.inbox.stash) {
		ctx.wakeAt = ctx.now // these completions will not wake the keeper
	}
	ctx.wakeAt = min(ctx.wakeAt, ctx.grantAt(), ctx.reviveAt())
	for _, c := range ctx.connected {
		ctx.wakeAt = min(ctx.wakeAt, c.core.Deadline())
	}
	for _, q := range ctx.qps {
		if q != nil && q.side.askAt != 0 {
			ctx.wakeAt = min(ctx.wakeAt, q.side.askAt)
		}
	}
	return ctx.wakeAt, ctx.wakeAt != core.Never
}

// lookAgain is how long the keeper leaves completions to a program that polls, in nanoseconds.
const lookAgain = 1_000_000

// attended reports whether the program has polled since the last call and has no CQ armed. Such a
// program takes the completions itself, and the keeper would only compete for the lock.
func (ctx *pathContext) attended() bool {
	polled := ctx.polled
	ctx.polled = false
	for _, c := range ctx.cqs {
		if c.armed {
			return false
		}
	}
	return polled
}

// rekick wakes the keeper if a timer of c is due before the keeper would run.
func (ctx *pathContext) rekick(c *connection) {
	if at := c.core.Deadline(); at < ctx.wakeAt {
		ctx.wakeAt = at
		ctx.keeper.kick()
	}
}

// rounds bounds the number of completions that one drive dispatches.
const rounds = 1024

// drive dispatches the completions of the inner QPs, runs timers and posts the resulting requests.
func (ctx *pathContext) drive() {
	in := &ctx.inbox
	in.more = true
	for range rounds {
		if in.next == len(in.stash) {
			in.stash, in.next = in.stash[:0], 0
			if in.poll() == 0 {
				in.more = false
				break
			}
			ctx.now = ctx.clock()
		}
		wc := in.stash[in.next] // a copy: dispatch may grow the stash
		in.next++
		ctx.age = in.stamps.age(ctx.now, wc.Timestamp)
		ctx.dispatch(&wc)
	}
	ctx.age = 0
	ctx.now = ctx.clock()
	if ctx.asking > 0 {
		ctx.askForCards()
	}
	ctx.revive()
	for i := 0; i < len(ctx.connected); i++ {
		if c := ctx.connected[i]; ctx.now >= c.core.Deadline() || len(c.queue) > 0 {
			c.step(&core.Event{Kind: core.EvTick})
		}
	}
	ctx.grant()
	for i := 0; i < len(ctx.dirty); i++ {
		ctx.dirty[i].step(&core.Event{Kind: core.EvFlush})
	}
	if ctx.overran {
		ctx.failBroken()
	}
	for _, p := range ctx.pds {
		p.topUp() // before acknowledgements leave, which invite more
	}
	ctx.flush()
}

// failBroken takes the QPs of CQs that have overrun to the error state.
func (ctx *pathContext) failBroken() {
	ctx.overran = false
	for _, q := range ctx.qps {
		if q != nil && q.broken {
			q.fail()
		}
	}
}

// flush posts the chains and control packets of all dirty connections.
func (ctx *pathContext) flush() {
	for _, c := range ctx.dirty {
		c.dirty = false
		c.flush()
	}
	ctx.dirty = ctx.dirty[:0]
	for _, p := range ctx.pds {
		p.ringControls()
	}
}

// dispatch takes one completion of an inner QP.
func (ctx *pathContext) dispatch(wc *verbs.WC) {
	kind, id, index, n := untag(wc.WRID)
	switch kind {
	case tagPath, tagPathRecv:
		c := ctx.findConnection(id)
		switch {
		case c == nil || index >= len(c.paths):
		case kind == tagPath:
			c.paths[index].sent(n, wc)
		default:
			c.paths[index].arrived(n, wc)
		}
	case tagArrival:
		if p := ctx.findPD(id); p != nil && int(n) < ctx.cfg.RecvDepth {
			p.arrived(n, wc)
		}
	case tagControlSend:
		if p := ctx.findPD(id); p != nil && index < len(p.control) {
			p.control[index].sent(n, wc)
		}
	case tagControlRecv:
		if c := ctx.routes.Find(wc.QPN).control; c != nil && n < controlRecvs {
			c.arrived(n, wc)
		}
	case tagCopy:
		if p := ctx.findPD(id); p != nil {
			p.copier.completed(index, n, wc)
		}
	case tagCardSend, tagCardRecv:
		if q := ctx.findQP(id); q != nil && wc.QPN == q.num {
			q.side.completed(kind, n, wc)
		}
	}
}

// findConnection returns the connection of a number, or nil.
func (ctx *pathContext) findConnection(id uint32) *connection {
	if i := int(id & maxIndex); i < len(ctx.conns) && ctx.conns[i] != nil && ctx.conns[i].id == id {
		return ctx.conns[i]
	}
	return nil
}

// findQP returns the QP of an id, or nil.
func (ctx *pathContext) findQP(id uint32) *qp {
	if int(id) < len(ctx.qps) {
		return ctx.qps[id]
	}
	return nil
}

// findPD returns the prepared PD of an id, or nil.
func (ctx *pathContext) findPD(id uint32) *pd {
	for _, p := range ctx.pds {
		if p.id == id && p.ready {
			return p
		}
	}
	return nil
}
