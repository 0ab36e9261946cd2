package sim

import (
	"errors"
	"fmt"

	"ibverbx"
	"ibverbx/softnic"
)

// end is one end of a connection: a VirtualQP, the application that uses it, and what is
// known of everything that it has posted.
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

	// out holds what this end sends and fetches, in what the peer writes to it, inbox its
	// data receives. library is what the peer may read, words what it does atomics on.
	out, in, inbox *zone
	library, words *span
	libraryContent uint32
	// spare are, by kind, where a request of this end comes from that needs no room, and
	// where one of the peer goes to.
	spare   [2][2]*span
	atomics [2]history

	sends []*request // in posting order
	head  int        // the first that has not ended
	// backlog are requests that were made and not taken.
	backlog   []*request
	wrs       []ibverbx.SendWR
	blocked   int // turns for which it does not try to post
	budget    int // requests still to be made
	nextBurst int64
	silentRun int
	receives  [2]recvQueue
	messages  [2]messageQueue // to the peer
	starved   int64           // until then no receives are posted
	badKey    bool            // the next request names a wrong key
	refused   bool            // a post is refused at some time

	mayFail bool     // a fault gave it reason to
	reasons int      // how many did, wrong keys and crashes not counted
	bereft  bool     // it or its peer has crashed
	bad     *request // the oldest WRITE with a wrong key
	failed  bool     // an event said so
	err     error
	barrier *request
	ended   bool // the barrier has ended
	crashed bool // its process is gone
	// inherited is the end that crashed whose control channel this one also hears, nil if
	// there is none; replaced is when a process came in the place of the peer and answers.
	inherited *end
	replaced  int64
}

// kinds of receives. A VirtualQP that passes everything through has only the second.
const (
	kindNotify = iota
	kindData
)

// connect makes both ends of a connection and connects them. The one that takes the place of
// an end that crashed inherits its control channel, if one is named. If that fails nothing of
// it is left.
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

// discard closes the VirtualQP of an end that never came to be.
func (e *end) discard() error {
	if e == nil || e.qp == nil {
		return nil
	}
	return e.qp.Close()
}

// join makes an end part of the world.
func (e *end) join() {
	e.layOut()
	if e.send = e.qp.PostSend; e.w.opts.meddle != nil {
		e.send = e.w.opts.meddle(e.send)
	}
	e.w.ends = append(e.w.ends, e)
	e.host.ends = append(e.host.ends, e)
	e.host.byQP[e.qp] = e
	for _, s := range e.w.struck {
		if s.over > e.w.now && s.fault.Kind != FaultCrash && s.fault.Kind != FaultRestart {
			e.excuseFor(s.fault)
		}
	}
	e.topUp()
}

// config is what a VirtualQP is made of.
func (w *world) config(e *end) ibverbx.Config {
	c, p := e.conn, e.plan
	cfg := ibverbx.Config{
		Lanes: c.Lanes, TrackSingleLane: c.TrackSingleLane, Scheme: c.Scheme, Policy: c.Policy, FragmentSize: c.Fragment,
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

// maxInline is how many bytes an inline request may carry.
const maxInline = 64

// Sizes of an end's zones.
const librarySize = 16 << 10

// maxSend is how many bytes a SEND has at the most: receives are so long, and never empty,
// because those would wait for notifications.
func (w *world) maxSend() int { return max(min(w.plan.Work.Sizes[1], 4<<10), 8) }

func (w *world) ringSize() int {
	return w.plan.Work.Room*(w.plan.Work.Sizes[1]+4*granule) + 64*granule
}

func (w *world) inboxSize(p *EndPlan) int { return (p.Receives + 4) * (w.maxSend() + 4*granule) }

func (w *world) endSize(p *EndPlan) int {
	return 2*w.ringSize() + w.inboxSize(p) + librarySize
}

// layOut gives the end its zones.
func (e *end) layOut() {
	w, h := e.w, e.host
	e.out, e.in = h.newZone(w.ringSize()), h.newZone(w.ringSize())
	e.inbox = h.newZone(w.inboxSize(e.plan))
	for _, z := range []*zone{e.out, e.in, e.inbox} {
		z.lastRelease = w.released
	}
	e.library = h.newZone(librarySize).static(setOf(softnic.TouchRemoteRead), "library of "+e.name)
	e.libraryContent = uint32(w.rng.IntN(contentSpace))
	copy(e.library.bytes(), w.pool.content(e.libraryContent, librarySize))
	e.words = h.newZone(granule).static(setOf(softnic.TouchRemoteAtomic), "counters of "+e.name)
	clear(e.words.bytes())
	for i := range 4 {
		s := h.newZone(granule).static(0, "spare of "+e.name)
		s.len = 8
		e.spare[i/2][i%2] = s
	}
}
