package reliable

import (
	"sync"
	"sync/atomic"

	"ibverbx/internal/u32map"
	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// engine runs connections of a PD: it processes the completions of their inner QPs, runs their timers and posts
// the resulting requests. It runs inside the program's calls and in its background loop.
type engine struct {
	ctx        *pathContext
	recvs      *atomic.Int64   // counts the receive buffers of all engines of the PD
	background *backgroundLoop // runs timers while the program does not poll, nil with Config.Now
	// overran is set when a CQ has overrun and its QPs are not in the error state yet.
	overran atomic.Bool

	mu           sync.Mutex        // guards the fields below, QPs and connections; taken under the context's lock, never before it
	closed       bool              // set by close
	now          int64             // the time of the current batch
	age          int64             // the wait of the current completion in the CQ, in nanoseconds; 0 if unknown
	wakeAt       int64             // the next run of the background loop, core.Never if no timer is set
	polled       bool              // set when the program polls, cleared by the background loop
	inbox        inbox             // receives the completions of all inner QPs
	routes       u32map.Map[route] // maps the numbers of path and control QPs to their owners
	regions      regions           // the open regions of the PD
	resources    engineResources   // shared by the connections
	cqs          []*cq             // the CQs of its QPs, each once
	qps          []*qp             // the wrapped QPs, by qp.id; a nil entry is free
	conns        []*connection     // the connections, by the index in their number; a nil entry is free
	generations  []uint32          // counts the connections of each index, as part of their numbers
	connsCreated uint32            // counts the connections
	connected    []*connection     // the connections with a core, in order of creation
	dirty        []*connection     // the connections that may have requests to post, each once
	pacers       []*core.Pacer     // grant credit to peers, by port; nil for unused ports, empty with Config.NoCredits
	cardTimers   int               // counts the QPs with handshake.resendAt set
	unackedCards int               // counts the cards that cardQPs retransmit
	srqs         []*srq            // the open SRQs of its QPs
	doorbells    Doorbells         // counts the posts to the NIC
	closedStats  core.Stats        // sums the counters of destroyed connections
}

// route is the owner of an inner QP: a path, a control QP, a UD QP of paths, or none if the QP is unknown.
type route struct {
	path    *path
	control *controlQP
	data    *datagramQP
}

// inboxDepth is the depth of the inner CQ, or the device's limit; see cqBudget.
const inboxDepth = 1 << 16

// newEngine returns a running engine of a PD. The context is locked.
func newEngine(p *pd) (*engine, error) {
	ctx := p.ctx
	e := &engine{ctx: ctx, recvs: &p.recvs, regions: p.regions.clone()}
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

// close stops the background loop and destroys all objects of the engine. The context is locked.
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
