package sim

import (
	"slices"
	"time"
)

// crash ends the process of an end: its VirtualQP is gone, and the peer hears nothing more.
// When the time has come another process takes its place.
func (w *world) crash(e *end, restart int64) {
	if e.crashed {
		return
	}
	if w.plan.Failover {
		for i := range w.channelOf(e).pair.ways {
			w.channelOf(e).pair.ways[i].faults[FaultControlCut] = never
		}
	}
	e.crashed, e.failed, e.ended = true, true, true
	if err := e.qp.Close(); err != nil {
		e.fail("leaks", "a VirtualQP in use could not be closed: %v", err)
	}
	e.host.ends = slices.DeleteFunc(e.host.ends, func(other *end) bool { return other == e })
	e.bury()
	w.agenda.add(restart, func() { w.restart(e.conn, 0) })
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
func (w *world) restart(c *ConnectPlan, try int) {
	err := w.connect(c)
	switch {
	case err == nil:
		w.wake()
	case w.hosts[c.From].cqFailed || w.hosts[c.To].cqFailed:
		// No QP can be made on a host whose CQ has failed.
	case try == restartTries:
		w.fail("world", "", "a process that came back could not connect: %v", err)
	default:
		at := w.now + int64(restartEvery)
		w.healed = max(w.healed, at)
		w.agenda.add(at, func() { w.restart(c, try+1) })
	}
}
