package ibverbx

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"ibverbx/internal/clock"
	"ibverbx/internal/counter"
	"ibverbx/internal/debugcheck"
	"ibverbx/internal/heap"
	"ibverbx/internal/u32map"
	"ibverbx/verbs"
)

// CQConfig configures a VirtualCQ. The zero value is a good default.
type CQConfig struct {
	// Depth is the capacity of each rail's physical CQ, in completions. It must cover LaneDepth plus the
	// receive depth of every lane on the rail; NewQP checks that. Zero means 65536, or the smallest
	// limit of the devices, and lets NewQP enlarge the CQs up to the limits of their devices. Once a
	// CQ has QPs, only software NICs can enlarge it: set Depth for many VirtualQPs on other NICs.
	Depth int
	// SharedReceives is the size of a per-rail SRQ that supplies the engine's receives to the lanes of
	// all VirtualQPs, 2 to 65536. It makes thousands of lanes affordable, but provides no back-pressure:
	// the VirtualQP of a peer that sends more than this side has receives for fails. Zero means a queue
	// of NotifyDepth per lane.
	SharedReceives int
	// SharedData is the size of one pool of data receives for all VirtualQPs, 1 to 65536. VirtualCQ.PostRecv
	// fills it. Zero means that each VirtualQP has its own, posted with VirtualQP.PostRecv.
	SharedData int
	// Waker is woken when an armed rail has a completion. Nil means polling only: Wait, Serve and Arm
	// then return verbs.ErrNotSupported.
	Waker *verbs.Waker
}

// VirtualCQ is a completion queue that merges one CQ per rail. Several VirtualQPs can share it. Only one
// goroutine at a time may use a VirtualCQ and its VirtualQPs; Stats and VirtualQP.Err are safe for
// concurrent use.
type VirtualCQ struct {
	rails   *Rails
	num     uint32           // unique within the Rails
	clock   func() int64     // default clock of the VirtualQPs: a common one, because their timers share a heap
	guard   debugcheck.Guard // detects concurrent calls
	stats   cqCounters
	waker   *verbs.Waker // nil means polling only
	cqs     []verbs.CQ   // by rail
	depth   []int        // requested CQ depths, by rail
	grows   bool         // CQs of the default depth, which grow with the number of lanes
	inline  int          // maximum inline bytes of a QP on any rail; at most wantInline if unreported
	retired []io.Closer  // replaced CQs and SRQs that could not be closed yet
	// used is the maximum number of outstanding completions of a rail's lanes, by rail. It is at most the depth of
	// the rail's CQ.
	used []int
	// routes maps QP numbers, which are unique on a rail, to lanes, by rail.
	routes []u32map.Map[*lane]
	shared *sharedReceives // engine receives for all lanes; nil if every lane has its own
	pool   *dataPool       // data receives for all VirtualQPs; nil if each has its own

	qps         []*VirtualQP // open VirtualQPs, oldest first
	qpCount     uint32       // VirtualQPs ever created
	failed      []*VirtualQP // failed VirtualQPs not yet reported to the program
	ready       readyList    // VirtualQPs with pending failover work
	reportQueue []*VirtualQP // VirtualQPs for the next report; VirtualQP.reportQueued is set

	chain     [chainMax]verbs.SendWR // buffer for the physical requests of a doorbell
	recvChain [chainMax]verbs.RecvWR // buffer for the physical receives of a post

	buf   [pollBatch]verbs.WC // physical completions of the current batch
	kept  []WC                // completions that did not fit the caller's slice
	err   error               // returned by the next Poll without a completion
	next  int                 // first rail of the next Poll
	polls uint64              // number of polls
	idle  [MaxRails]uint64    // number of polls that emptied the rail's CQ

	events        []Event // unread events, at most maxEvents
	watchesEvents bool    // receives NIC events, because a VirtualQP has a Control
}

// CQStats are the counters of a VirtualCQ since its creation.
type CQStats struct {
	CQEs       uint64 // physical completions
	Stale      uint64 // completions from an earlier generation of a lane
	Unknown    uint64 // completions for an unknown QP
	EventsLost uint64 // events dropped because the event queue was full
	Refills    uint64 // posts to the SRQs of CQConfig.SharedReceives, one doorbell each
	Refilled   uint64 // receives posted by these refills
}

// misuse is the panic message of guard.
const misuse = "concurrent use of a VirtualCQ or its VirtualQPs"

// cqCounters are the CQStats, written by the goroutine that uses the VirtualCQ.
type cqCounters struct {
	cqes, stale, unknown, eventsLost, refills, refilled counter.Counter
}

// NewCQ creates a VirtualCQ with a physical CQ on every rail. A rail whose device has failed gets its CQ when
// a lane is rebuilt there. NewCQ returns verbs.ErrInvalid if SharedReceives or SharedData is out of range or
// exceeds Depth, verbs.ErrNotSupported if a device has no SRQ of that size, and otherwise the NIC's error with
// the rail.
func (r *Rails) NewCQ(cfg CQConfig) (*VirtualCQ, error) {
	if len(r.rails) == 0 {
		return nil, fmt.Errorf("make virtual CQ: %w", verbs.Invalidf("no rails: use NewRails"))
	}
	grows := cfg.Depth == 0
	if grows {
		cfg.Depth = min(1<<16, r.least(func(a *verbs.DeviceAttr) int { return a.MaxCQE }))
	}
	c := &VirtualCQ{
		rails: r, num: r.cqCount.Add(1), clock: clock.Monotonic(), waker: cfg.Waker, grows: grows, inline: wantInline,
		routes: make([]u32map.Map[*lane], len(r.rails)), used: make([]int, len(r.rails)),
	}
	usable := false
	for i := range r.rails {
		err := c.addCQ(i, cfg.Depth)
		usable = usable || err == nil
		if err != nil && (!errors.Is(err, verbs.ErrDeviceFatal) || (i == len(r.rails)-1 && !usable)) {
			return nil, errors.Join(fmt.Errorf("make virtual CQ: rail %d (%s): %w", i, r.rails[i].name, err), c.Close())
		}
	}
	if cfg.SharedReceives != 0 {
		if err := c.shareReceives(cfg.SharedReceives); err != nil {
			return nil, errors.Join(fmt.Errorf("make virtual CQ: %w", err), c.Close())
		}
	}
	if cfg.SharedData != 0 {
		if err := c.shareData(cfg.SharedData); err != nil {
			return nil, errors.Join(fmt.Errorf("make virtual CQ: %w", err), c.Close())
		}
	}
	return c, nil
}

// addCQ creates a rail's CQ, or an absentCQ if that fails.
func (c *VirtualCQ) addCQ(rail, depth int) error {
	c.depth = append(c.depth, depth)
	cq, err := c.rails.rails[rail].cfg.Context.CreateCQ(verbs.CQConfig{Depth: depth, Waker: c.waker})
	if err != nil {
		c.cqs = append(c.cqs, &absentCQ{depth})
		return err
	}
	c.cqs = append(c.cqs, cq)
	inline, err := c.rails.inline(rail, cq)
	c.inline = min(c.inline, inline)
	return err
}

// reserveAll reserves CQ space for n completions on every rail.
func (c *VirtualCQ) reserveAll(n int) error {
	for rail := range c.cqs {
		if err := c.reserve(rail, n); err != nil {
			return err
		}
	}
	return nil
}

// Rails returns the Rails that the VirtualCQ was created on.
func (c *VirtualCQ) Rails() *Rails { return c.rails }

// Num returns a number that is unique within the Rails. Together with VirtualQP.Num it identifies a
// VirtualQP. It is never sent to the peer.
func (c *VirtualCQ) Num() uint32 { return c.num }

// Stats returns the counters. It is safe for concurrent use.
func (c *VirtualCQ) Stats() CQStats {
	s := &c.stats
	return CQStats{
		CQEs: s.cqes.Load(), Stale: s.stale.Load(), Unknown: s.unknown.Load(), EventsLost: s.eventsLost.Load(),
		Refills: s.refills.Load(), Refilled: s.refilled.Load(),
	}
}

// Close destroys the physical CQs. Receives of CQConfig.SharedData are dropped without a completion. While
// VirtualQPs are open, Close only returns verbs.ErrBusy.
func (c *VirtualCQ) Close() error {
	if c.rails == nil {
		return fmt.Errorf("close virtual CQ: %w", verbs.ErrClosed)
	}
	if len(c.qps) > 0 {
		return fmt.Errorf("close virtual CQ %d: %w: %d virtual QPs are open", c.num, verbs.ErrBusy, len(c.qps))
	}
	c.rails.watch.leave(c)
	var errs []error
	if c.shared != nil {
		if err := c.shared.close(); err != nil {
			return fmt.Errorf("close virtual CQ %d: %w", c.num, err)
		}
		c.shared = nil
	}
	errs = append(errs, c.pool.close(), c.closeRetired())
	for _, cq := range c.cqs {
		errs = append(errs, cq.Close())
	}
	return errors.Join(errs...)
}

// join subscribes to the events of the NICs.
func (c *VirtualCQ) join() error {
	if c.watchesEvents {
		return nil
	}
	if err := c.rails.watch.join(c); err != nil {
		c.rails.watch.leave(c)
		return err
	}
	c.watchesEvents = true
	return nil
}

// renewCQ replaces a failed CQ of a rail. Its QPs are lost; their lanes' next generations use the new CQ. Its
// completions are lost too, and their receives with them, so revive creates another SRQ for shared receives. The old
// objects are closed once their last QP has been replaced, or with the VirtualCQ.
func (c *VirtualCQ) renewCQ(rail int) error {
	r := &c.rails.rails[rail]
	cq, err := r.cfg.Context.CreateCQ(verbs.CQConfig{Depth: c.depth[rail], Waker: c.waker})
	if err != nil {
		return fmt.Errorf("replace the CQ of rail %d (%s): %w", rail, r.name, err)
	}
	c.retired = append(c.retired, c.cqs[rail])
	c.cqs[rail] = cq
	if c.pool != nil {
		c.pool.rails[rail] = nil // its receives return once the last lane has left it
	}
	if c.shared != nil && c.shared.rails[rail].srq != nil {
		c.retired = append(c.retired, c.shared.rails[rail].srq)
		c.shared.rails[rail] = sharedRail{}
	}
	return nil
}

// closeRetired closes unused replaced CQs and SRQs.
func (c *VirtualCQ) closeRetired() (err error) {
	c.retired = slices.DeleteFunc(c.retired, func(old io.Closer) bool {
		e := old.Close()
		err = errors.Join(err, e)
		return e == nil
	})
	return err
}

// reserve reserves CQ space for n completions on a rail. release releases it.
func (c *VirtualCQ) reserve(rail, n int) error {
	if err := c.fit(rail, n); err != nil {
		return err
	}
	c.used[rail] += n
	return nil
}

// fit ensures that a rail's CQ has space for n more completions. It enlarges a CQ of the default depth: the NIC does
// so if it can, otherwise a larger CQ replaces one without QPs.
func (c *VirtualCQ) fit(rail, n int) error {
	r, old, want := &c.rails.rails[rail], c.cqs[rail], c.used[rail]+n
	if have := old.Depth(); want <= have {
		return nil
	} else if !c.grows {
		return verbs.Invalidf("CQConfig.Depth: rail %d (%s) has %d completions, its lanes need %d", rail, r.name, have, want)
	}
	if want > r.attr.MaxCQE {
		return verbs.Invalidf("rail %d (%s): the lanes need %d completions, a CQ of the device has at most %d", rail, r.name, want, r.attr.MaxCQE)
	}
	if can, ok := old.(interface{ Resize(depth int) error }); ok {
		if err := can.Resize(want); err != nil && !errors.Is(err, verbs.ErrDeviceFatal) { // the device's next CQ has this depth
			return fmt.Errorf("rail %d (%s): %w", rail, r.name, err)
		}
	} else {
		cq, err := r.cfg.Context.CreateCQ(verbs.CQConfig{Depth: want, Waker: c.waker})
		if err != nil {
			return fmt.Errorf("rail %d (%s): %w", rail, r.name, err)
		}
		if old.Close() != nil {
			err = verbs.Invalidf("rail %d (%s): the lanes need %d completions, and the CQ is in use: set CQConfig.Depth", rail, r.name, want)
			return errors.Join(err, cq.Close())
		}
		c.cqs[rail] = cq
	}
	c.depth[rail] = want
	return nil
}

func (c *VirtualCQ) release(rail, n int) { c.used[rail] -= n }

// forget removes a closing VirtualQP from all lists, with its kept completions and events.
func (c *VirtualCQ) forget(q *VirtualQP) {
	is := func(other *VirtualQP) bool { return other == q }
	c.qps = slices.DeleteFunc(c.qps, is)
	c.failed = slices.DeleteFunc(c.failed, is)
	c.ready.forget(q)
	c.reportQueue = slices.DeleteFunc(c.reportQueue, is)
	c.kept = slices.DeleteFunc(c.kept, func(wc WC) bool {
		if wc.QP == q {
			c.pool.dropped(&wc)
		}
		return wc.QP == q
	})
	c.events = slices.DeleteFunc(c.events, func(e Event) bool { return e.QP == q })
	q.reportQueued = false
}

// barrier is a point in the polling of a rail's CQ. It is passed when the CQ has been found empty twice since: the
// first of these polls may have been in progress already, and the second proves that all completions older than
// the barrier have been polled.
//
// Its value is the count of empty polls at which it is passed. The zero barrier is passed.
type barrier uint64

// barriers holds one barrier per rail.
type barriers [MaxRails]barrier

// barrier sets a barrier on a rail.
func (c *VirtualCQ) barrier(rail uint8) barrier { return barrier(c.idle[rail] + 2) }

// passed reports whether a barrier on a rail is passed.
func (c *VirtualCQ) passed(rail uint8, b barrier) bool { return c.idle[rail] >= uint64(b) }

// barriers sets a barrier on every rail.
func (c *VirtualCQ) barriers() (all barriers) {
	for rail := range c.cqs {
		all[rail] = c.barrier(uint8(rail))
	}
	return all
}

// passedAll reports whether the barriers of all rails are passed.
func (c *VirtualCQ) passedAll(all *barriers) bool {
	for rail := range c.cqs {
		if !c.passed(uint8(rail), all[rail]) {
			return false
		}
	}
	return true
}

// readyList finds the VirtualQPs with pending failover work: a control message, a NIC event, an expired timer, or
// lanes out of service. Other VirtualQPs cost a poll nothing.
type readyList struct {
	// marks is set while marked is not empty.
	marks  atomic.Bool
	mu     sync.Mutex
	marked []*VirtualQP // VirtualQPs with control messages; VirtualQP.marked is set; guarded by mu
	taken  []*VirtualQP // second buffer of marked

	// qps are the VirtualQPs that polls drive; VirtualQP.ready is set. They stay while needsDriving.
	qps    []*VirtualQP
	timers heap.Heap[*VirtualQP] // wake-up times of VirtualQPs with outstanding requests
	events uint64                // watch.changes at the last check
}

// wake makes the next poll drive the VirtualQP, and wakes a goroutine in Wait. It is safe for concurrent use.
func (q *VirtualQP) wake() {
	c := q.setup.cq
	c.ready.mark(q)
	if c.waker != nil {
		c.waker.Wake()
	}
}

// mark makes the next poll drive q.
func (r *readyList) mark(q *VirtualQP) {
	if q.marked.Swap(true) {
		return
	}
	r.mu.Lock()
	r.marked = append(r.marked, q)
	r.marks.Store(true)
	r.mu.Unlock()
}

// add appends q to the list unless it is listed already.
func (r *readyList) add(q *VirtualQP) {
	if !q.ready {
		q.ready = true
		r.qps = append(r.qps, q)
	}
}

// takeMarks moves the marked VirtualQPs to the list.
func (r *readyList) takeMarks() {
	r.mu.Lock()
	r.marked, r.taken = r.taken[:0], r.marked
	r.marks.Store(false)
	r.mu.Unlock()
	for i, q := range r.taken {
		r.taken[i] = nil
		q.marked.Store(false)
		r.add(q)
	}
}

// takeDue adds the VirtualQPs with expired timers to the list.
func (r *readyList) takeDue() {
	for r.timers.Len() > 0 && r.timers.Front().setup.cfg.Now() >= r.timers.Next() {
		r.add(r.timers.Pop())
	}
}

// setTimer makes a poll drive q at the time at on its clock.
func (r *readyList) setTimer(q *VirtualQP, at int64) {
	if r.timers.Moved == nil {
		r.timers.Moved = func(q *VirtualQP, index int) { q.timer = index + 1 }
	}
	r.timers.Push(at, uint64(q.setup.num), q)
}

// forget removes q from the list and the timers. A later mark is harmless, because drive ignores a closed VirtualQP.
func (r *readyList) forget(q *VirtualQP) {
	if q.timer > 0 {
		r.timers.Remove(q.timer - 1)
	}
	if q.ready {
		q.ready = false
		r.qps = slices.DeleteFunc(r.qps, func(other *VirtualQP) bool { return other == q })
	}
}

// due returns the earliest time at which a VirtualQP must be driven. Timers of completed requests are postponed or
// removed first.
func (r *readyList) due() int64 {
	due := int64(math.MaxInt64)
	for _, q := range r.qps {
		if !q.failover.needsDriving() {
			return q.clock.now // not driven yet, because polls found completions
		}
		due = min(due, q.failover.due())
	}
	for r.timers.Len() > 0 {
		q := r.timers.Front()
		at := q.failover.requestDue()
		if at <= r.timers.Next() {
			break
		}
		if at == math.MaxInt64 {
			r.timers.Pop().failover.watchdog.probing = false
		} else {
			r.timers.Move(0, at)
		}
	}
	return min(due, r.timers.Next())
}

// drive drives the VirtualQPs on the list: after an empty poll, every driveEvery polls, and when driveDue.
func (c *VirtualCQ) drive(dst []WC, n int) int {
	r, w := &c.ready, c.rails.watch
	w.readPending()
	if changes := w.changes.Load(); changes != r.events {
		r.events = changes
		for _, q := range c.qps {
			if q.setup.cfg.Control != nil {
				r.add(q)
			}
		}
	}
	if r.marks.Load() {
		r.takeMarks()
	}
	c.polls++
	busy := n > 0 && c.polls%driveEvery != 0
	if !busy {
		r.takeDue()
	}
	if len(r.qps) == 0 || (busy && !c.driveDue()) {
		return n
	}
	keep := r.qps[:0]
	for _, q := range r.qps {
		q.failover.drive()
		if q.ready = q.failover.needsDriving(); q.ready {
			keep = append(keep, q)
		}
	}
	clear(r.qps[len(keep):])
	r.qps = keep
	return c.report(dst, n)
}

// driveDue reports whether a VirtualQP must be driven even though polls find completions. Completions keep
// the cached clock of a VirtualQP current.
func (c *VirtualCQ) driveDue() bool {
	for _, q := range c.ready.qps {
		if q.clock.now >= q.failover.nextDrive {
			return true
		}
	}
	return false
}

// needsDriving reports whether every empty poll must drive the VirtualQP: lanes are out of service or away from home,
// a deadline has passed, or the peer is gone.
func (f *failover) needsDriving() bool {
	return f.state == stateConnected && (f.out > 0 || f.displaced || f.watchdog.late || f.peerExit.cause != nil)
}
