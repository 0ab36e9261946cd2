package sim

import (
	"slices"
	"time"
)

// crash kills the process of an end. At restart another process replaces it, with a new connection. If it inherits the control channel, it
// responds to the old peer. Otherwise the old channel is cut.
func (w *world) crash(e *end, restart int64, inherits bool) {
	if e.crashed {
		return
	}
	if w.plan.Failover && !inherits {
		for i := range w.channelOf(e).pair.ways {
			w.channelOf(e).pair.ways[i].faults[FaultControlCut] = never
		}
	}
	e.host.takeEvents() // Events after the crash are an error.
	e.crashed, e.failed, e.ended = true, true, true
	e.closeSilently()
	e.host.ends = slices.DeleteFunc(e.host.ends, func(other *end) bool { return other == e })
	e.releaseMemory()
	w.eventQueue.add(restart, func() { w.restart(e, inherits, 0) })
}

// closeSilently closes a VirtualQP and loses the datagrams with which Close would inform the peer.
func (e *end) closeSilently() {
	way := &controlWay{}
	if e.w.plan.Failover {
		way = &e.w.channelOf(e).pair.ways[e.index%2]
	}
	way.mute = true
	if err := e.qp.Close(); err != nil {
		e.fail("leaks", "cannot close a VirtualQP in use: %v", err)
	}
	way.mute = false
}

// releaseMemory releases the memory of a crashed end. NICs may no longer access it. Packets in flight may still arrive at the peer.
func (e *end) releaseMemory() {
	for _, r := range slices.Concat(e.sends[e.head:], e.backlog) {
		if r.local != nil {
			r.local.end()
			r.local = nil
		}
	}
	e.head, e.backlog, e.budget = len(e.sends), nil, 0
	for k := range e.receives {
		q := &e.receives[k]
		for i := range q.posted[q.head:] {
			if s := q.posted[q.head+i].span; s != nil {
				s.end()
			}
		}
		q.head = len(q.posted)
	}
	for _, r := range e.peer.sends {
		e.peer.settle(r) // This end no longer receives notifications.
	}
}

const (
	// restartEvery is the time between two attempts to connect again. NICs may be down.
	restartEvery = 10 * time.Millisecond
	// restartTries is the number of attempts after the first.
	restartTries = 200
)

// restart connects the process that replaces a crashed one.
func (w *world) restart(e *end, inherits bool, try int) {
	c, from := e.conn, (*end)(nil)
	if inherits {
		from = e
	}
	err := w.connect(c, from)
	switch {
	case err == nil:
		if inherits {
			e.peer.replaced = w.now
		}
		w.wake()
	case w.hosts[c.From].cqFailed || w.hosts[c.To].cqFailed:
		// A host whose CQ has failed cannot create QPs.
	case try == restartTries:
		w.fail("world", "", "a restarted process could not connect: %v", err)
	default:
		at := w.now + int64(restartEvery)
		w.healed = max(w.healed, at)
		w.eventQueue.add(at, func() { w.restart(e, inherits, try+1) })
	}
}
