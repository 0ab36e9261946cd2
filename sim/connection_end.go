package sim

import (
	"errors"
	"fmt"

	"ibverbx"
	"ibverbx/softnic"
)

// end is one end of a connection: a VirtualQP, the application that uses it, and the expected result
// of every request.
type end struct {
	w     *world
	host  *host
	peer  *end
	index int // of all ends; the peer's differs in the lowest bit
	name  string
	conn  *ConnectPlan
	plan  *EndPlan
	qp    *ibverbx.VirtualQP
	send  postFunc
	endMemory

	sends     []*request // in posting order
	head      int        // index of the first incomplete request
	backlog   []*request // requests that were not posted yet
	wrs       []ibverbx.SendWR
	blocked   int   // turns to wait before the next attempt to post
	budget    int   // requests left to make
	nextBurst int64 // time of the next post
	// burstOp is the kind of all requests of the burst, without fences, inline data and scattering; 0 if they are mixed.
	burstOp   OpSet
	burstSize int             // the length of all requests of the burst in bytes; -1 if they differ
	silentRun int             // unsignaled requests made since the last signaled one
	receives  [2]recvQueue    // by kind
	messages  [2]messageQueue // to the peer, by kind of its receive
	starved   int64           // end of the time without new receives
	badKey    bool            // the next request uses an invalid key
	refused   bool            // a fault makes a post be refused
	barrier   *request        // the last request
	ended     bool            // the barrier has ended
	worked    bool            // it has posted a request before the barrier
	endState
}

// endMemory is the memory of an end, and the peer's counters.
type endMemory struct {
	out            *ringAllocator // bytes that this end sends or fetches
	in             *ringAllocator // bytes that the peer writes
	inbox          *ringAllocator // data receives
	library        *span          // constant bytes that the peer may read
	libraryContent uint32         // content of library
	words          *span          // counters for the peer's atomics
	spare          [2][2]*span    // by kind of request: source of this end's, target of the peer's
	atomics        [2]history     // counters of this end at the peer
}

// endState records whether an end has failed or may fail.
type endState struct {
	mayFail    bool     // a fault or request allows a failure
	reasons    int      // number of reasons other than invalid keys and crashes
	anyCrashed bool     // this end or its peer has crashed
	bad        *request // the oldest WRITE with an invalid key
	failed     bool     // EventFailed was reported
	err        error    // error of that event
	crashed    bool     // the process has crashed
	inherited  *end     // crashed end whose control channel this one has inherited, or nil
	replaced   int64    // time at which another process replaced the peer, 0 before
}

// Kinds of receives. A VirtualQP that passes requests through has only the second.
const (
	kindNotify = iota
	kindData
)

// connect creates both ends of a connection and connects them. If crashed is not nil, the end that replaces it inherits its control
// channel. On error, connect closes both.
func (w *world) connect(c *ConnectPlan, crashed *end) (err error) {
	var pair [2]*end
	defer func() {
		if err != nil {
			err = errors.Join(err, pair[0].discard(), pair[1].discard())
		}
	}()
	first := len(w.ends)
	for side, at := range [2]int{c.From, c.To} {
		e := &end{
			w: w, host: w.hosts[at], index: first + side, name: fmt.Sprintf("%d%c", first/2, 'a'+side),
			conn: c, plan: &c.Ends[side], budget: c.Ends[side].Messages,
		}
		pair[side] = e
		if crashed != nil && crashed.index%2 == side {
			e.inherited = crashed
		}
		if e.qp, err = e.host.cq.NewQP(w.config(e)); err != nil {
			return err
		}
	}
	pair[0].peer, pair[1].peer = pair[1], pair[0]
	var cards [2]*ibverbx.Card
	for side, e := range pair {
		if cards[side], err = e.qp.Card(); err != nil {
			return err
		}
	}
	for side, e := range pair {
		if err := e.qp.Connect(cards[1-side]); err != nil {
			return err
		}
	}
	for _, e := range pair {
		e.join()
	}
	return nil
}

// discard closes the VirtualQP of an unconnected end.
func (e *end) discard() error {
	if e == nil || e.qp == nil {
		return nil
	}
	return e.qp.Close()
}

// join adds an end to the world.
func (e *end) join() {
	e.allocate()
	if e.send = e.qp.PostSend; e.w.opts.wrapPost != nil {
		e.send = e.w.opts.wrapPost(e.send)
	}
	e.w.ends = append(e.w.ends, e)
	e.host.ends = append(e.host.ends, e)
	e.host.byQP[e.qp] = e
	for _, s := range e.w.activeFaults {
		if s.over > e.w.now && s.fault.Kind != FaultCrash && s.fault.Kind != FaultRestart {
			e.excuseFor(s.fault)
		}
	}
	e.topUp()
}

// config is the configuration of a VirtualQP.
func (w *world) config(e *end) ibverbx.Config {
	c, p := e.conn, e.plan
	cfg := ibverbx.Config{
		Lanes: c.Lanes, Scheme: c.Scheme, Policy: c.Policy, FragmentSize: c.Fragment,
		SendDepth: p.SendDepth, RecvDepth: p.RecvDepth, LaneDepth: p.LaneDepth, NotifyDepth: p.NotifyDepth,
		SignalInterval: p.SignalInterval, MaxInline: maxInline,
		Incarnation: w.plan.Seed%(1<<40)<<8 + uint64(e.index) + 1,
		Now:         func() int64 { return w.now },
	}
	if w.plan.Failover {
		w.failover(e, &cfg)
	}
	return cfg
}

// maxInline is the maximum length of an inline request in bytes.
const maxInline = 64

// librarySize is the size of library in bytes.
const librarySize = 16 << 10

// maxSend is the largest SEND and the length of a receive in bytes. It is not 0, because an empty
// receive would wait for notifications.
func (w *world) maxSend() int { return max(min(w.plan.Work.Sizes[1], 4<<10), 8) }

func (w *world) ringSize() int {
	return w.plan.Work.Room*(w.plan.Work.Sizes[1]+4*granule) + 64*granule
}

func (w *world) inboxSize(p *EndPlan) int { return (p.Receives + 4) * w.inboxSpan() }

// inboxSpan is the memory of a data receive in bytes.
func (w *world) inboxSpan() int { return w.maxSend() + 4*granule }

func (w *world) endSize(p *EndPlan) int {
	return 2*w.ringSize() + w.inboxSize(p) + librarySize
}

// allocate allocates the memory of an end.
func (e *end) allocate() {
	w, h := e.w, e.host
	e.out, e.in = h.newRing(w.ringSize()), h.newRing(w.ringSize())
	e.inbox = h.newRing(w.inboxSize(e.plan))
	for _, z := range []*ringAllocator{e.out, e.in, e.inbox} {
		z.lastRelease = w.released
	}
	e.library = h.newRing(librarySize).static(setOf(softnic.AccessRemoteRead), "library of "+e.name)
	e.libraryContent = uint32(w.rng.IntN(contentSpace))
	copy(e.library.bytes(), w.pool.content(e.libraryContent, librarySize))
	e.words = h.newRing(granule).static(setOf(softnic.AccessRemoteAtomic), "counters of "+e.name)
	clear(e.words.bytes())
	for i := range 4 {
		s := h.newRing(granule).static(0, "spare of "+e.name)
		s.len = 8
		e.spare[i/2][i%2] = s
	}
}
