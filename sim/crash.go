package sim

import (
	"slices"
	"time"
)

// crash ends the process of an end: its VirtualQP is gone. When the time has come another
// process takes its place, with a new connection. If it inherits the control channel it gets
// what the old peer sends, and answers; otherwise the peer hears nothing more.
func (w *world) crash(e *end, restart int64, inherits bool) {
	if e.crashed {
		return
	}
	if w.plan.Failover && !inherits {
		for i := range w.channelOf(e).pair.ways {
			w.channelOf(e).pair.ways[i].faults[FaultControlCut] = never
		}
	}
	e.host.takeEvents() // what it was told before: nothing may come of it afterwards
	e.crashed, e.failed, e.ended = true, true, true
	e.die()
	e.host.ends = slices.DeleteFunc(e.host.ends, func(other *end) bool { return other == e })
	e.bury()
	w.agenda.add(restart, func() { w.restart(e, inherits, 0) })
}

// die ends a VirtualQP without a word: what Close would say to the peer is lost.
func (e *end) die() {
	var way *controlWay
	if e.w.plan.Failover {
		way = &e.w.channelOf(e).pair.ways[e.index%2]
		way.mute = true
	}
	if err := e.qp.Close(); err != nil {
		e.fail("leaks", "a VirtualQP in use could not be closed: %v", err)
	}
	if way != nil {
		way.mute = false
	}
}

// bury takes back the memory of an end that is gone: from here on no NIC may touch it. What
// is under way to the peer may still arrive there.
func (e *end) bury() {
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
		e.peer.settle(r) // nobody waits for this end to be told any more
	}
}

// Attempts to connect again, while NICs are out of order.
const (
	restartEvery = 10 * time.Millisecond
	restartTries = 200
)

// restart makes the connection anew, for the process that takes the place of one that
// crashed.
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
		// No QP can be made on a host whose CQ has failed.
	case try == restartTries:
		w.fail("world", "", "a process that came back could not connect: %v", err)
	default:
		at := w.now + int64(restartEvery)
		w.healed = max(w.healed, at)
		w.agenda.add(at, func() { w.restart(e, inherits, try+1) })
	}
}
