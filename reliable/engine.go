package reliable

import (
	"sync"
	"sync/atomic"

	"ibverbx/internal/u32map"
	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// engine runs connections of a PD: it takes the completions of their inner QPs, runs their timers and posts
// the resulting requests. It works inside the calls of the program, and in its background loop.
type engine struct {
	ctx        *pathContext
	recvBudget *recvBudget     // the receive buffers of the PD
	background *backgroundLoop // runs timers while the program does not poll, nil with Config.Now
	// overran reports that a CQ has overrun and its QPs are not in the error state yet.
	overran atomic.Bool

	mu           sync.Mutex        // guards the fields below and the QPs and connections; it is taken under the lock of the context, never before it
	closed       bool              // set by close
	now          int64             // the time that the clock returned for the present batch
	age          int64             // how long the present completion has waited, in nanoseconds, 0 if unknown
	wakeAt       int64             // when the background loop runs next, core.Never if no timer is set
	polled       bool              // reports whether the program has polled since the background loop last ran
	inbox        inbox             // takes the completions of all inner QPs
	routes       u32map.Map[route] // finds the owner of a path's QP or of a control QP, by QP number
	regions      regions           // the open regions of the PD
	resources    engineResources   // what the connections share
	cqs          []*cq             // the CQs of its QPs, each once
	qps          []*qp             // the wrapped QPs, by qp.id; a nil entry is free
	conns        []*connection     // the connections, by the index in their number; a nil entry is free
	generations  []uint32          // counts the connections of each index so far; it is part of their numbers
	connsCreated uint32            // counts the connections made so far
	connected    []*connection     // lists the connections that have a core, in the order in which they got it
	dirty        []*connection     // lists the connections that may have something to post, each once
	pacers       []*core.Pacer     // grant credit to the peers of its connections, by port, with nil for unused ports; empty with Config.NoCredits
	cardTimers   int               // counts the QPs whose handshake.resendAt is set
	unackedCards int               // counts the cards that cardQPs repeat
	srqs         []*srq            // the open SRQs whose QPs it runs
	doorbells    Doorbells         // counts what was posted to the NIC
	closedStats  core.Stats        // counts what connections have done that are destroyed
}

// route is the owner of an inner QP: a path, a control QP, a UD QP of paths, or none if the QP is unknown.
type route struct {
	path    *path
	control *controlQP
	data    *datagramQP
}

// inboxDepth is the depth of the CQ of the inner QPs, if the device allows it; see cqBudget.
const inboxDepth = 1 << 16

// newEngine returns a running engine of a PD. The context is locked.
func newEngine(p *pd) (*engine, error) {
	ctx := p.ctx
	e := &engine{ctx: ctx, recvBudget: &p.recvBudget, regions: p.regions.clone()}
	e.resources = engineResources{engine: e, pd: p.inner, dmaBufs: p.dmaBufs}
	waker := verbs.NewWaker()
	e.inbox = inbox{batch: make([]verbs.WC, 64), stash: make([]verbs.WC, 0, 256), delay: newCQDelay(ctx.inner, &ctx.attr)}
	if err := e.inbox.open(ctx.inner, verbs.CQConfig{Depth: min(inboxDepth, ctx.attr.MaxCQE), Waker: waker}); err != nil {
		return nil, err
	}
	if ctx.cfg.Now == nil {
		e.startBackground(waker)
	}
	return e, nil
}

// close stops the background loop and destroys everything that the engine has. The context is locked.
func (e *engine) close() {
	if e.background != nil {
		e.background.stop()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.qps {
		if q != nil {
			q.destroy()
		}
	}
	e.closed = true
	_ = e.inbox.cq.Close() // no QP uses it
}

// poll drives the engine for a program that polls.
func (e *engine) poll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.polled = true
		e.drive()
	}
}
