package ibverbx

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"ibverbx/internal/heap"
)

// readyList finds the VirtualQPs of a VirtualCQ whose failover has something to do: their Control has a message,
// a NIC had an event, their time has come, or they have lanes out of service. The others cost a poll nothing.
type readyList struct {
	// marks says that marked is not empty.
	marks  atomic.Bool
	mu     sync.Mutex
	marked []*VirtualQP // whose Control has something: VirtualQP.marked is set; guarded by mu
	taken  []*VirtualQP // the other buffer of marked

	// qps are those that a poll drives. VirtualQP.ready is set. They stay while they are restless.
	qps    []*VirtualQP
	timers heap.Heap[*VirtualQP] // when to look at those with requests outstanding
	events uint64                // watch.changes when the events of the NICs were last looked at
}

// wake makes the next poll drive the VirtualQP, and wakes a goroutine that sleeps in Wait. Any goroutine may
// call it at any time.
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

// add puts q on the list.
func (r *readyList) add(q *VirtualQP) {
	if !q.ready {
		q.ready = true
		r.qps = append(r.qps, q)
	}
}

// takeMarks puts the marked VirtualQPs on the list. Marks from here on count again.
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

// takeDue puts the VirtualQPs on the list whose time has come.
func (r *readyList) takeDue() {
	for r.timers.Len() > 0 && r.timers.Front().setup.cfg.Now() >= r.timers.Next() {
		r.add(r.timers.Pop())
	}
}

// setTimer makes a poll drive q at a time, by its clock.
func (r *readyList) setTimer(q *VirtualQP, at int64) {
	if r.timers.Moved == nil {
		r.timers.Moved = func(q *VirtualQP, index int) { q.timer = index + 1 }
	}
	r.timers.Push(at, uint64(q.setup.num), q)
}

// forget drops q from the list and the timers. A mark may come after that: driving q does nothing then.
func (r *readyList) forget(q *VirtualQP) {
	if q.timer > 0 {
		r.timers.Remove(q.timer - 1)
	}
	if q.ready {
		q.ready = false
		r.qps = slices.DeleteFunc(r.qps, func(other *VirtualQP) bool { return other == q })
	}
}

// due returns the earliest time at which a VirtualQP must be driven. Timers of requests that have ended are
// put off or dropped first.
func (r *readyList) due() int64 {
	due := int64(math.MaxInt64)
	for _, q := range r.qps {
		if !q.failover.restless() {
			return q.time.now // polls found completions, so it was not driven yet
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

// drive lets the VirtualQPs on the list do what is due: after an empty poll, every driveEvery polls, and when
// driveDue.
func (c *VirtualCQ) drive(dst []WC, n int) int {
	r, w := &c.ready, c.rails.watch
	w.look()
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
		if q.ready = q.failover.restless(); q.ready {
			keep = append(keep, q)
		}
	}
	clear(r.qps[len(keep):])
	r.qps = keep
	return c.report(dst, n)
}

// driveDue reports whether it is time for a VirtualQP on the list to be driven although polls find
// completions. Those that have just had completions know the time.
func (c *VirtualCQ) driveDue() bool {
	for _, q := range c.ready.qps {
		if q.time.now >= q.failover.nextDrive {
			return true
		}
	}
	return false
}

// restless reports whether every empty poll must drive the VirtualQP: lanes are out of service or away from
// home, or a deadline has passed.
func (f *failover) restless() bool {
	return f.state == stateConnected && (f.out > 0 || f.away || f.watchdog.late)
}
