package sim

import (
	"fmt"
	"strings"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// This file checks that every request ends, that every notification arrives, and that work continues
// when faults have healed. The last request of every end is fenced, so its completion shows that all
// before it have ended.

// postBarrier posts the last request of an end.
func (e *end) postBarrier() {
	if e.crashed {
		return
	}
	r := e.last(spareEnd)
	r.wr.Flags |= verbs.SendFence
	e.barrier = r
	e.backlog = append(e.backlog, r)
	e.post()
	e.ended = e.mayFail && len(e.backlog) == 0 && e.sends[len(e.sends)-1] != r
}

// lateEnd is the tolerance for deadlines. The engine waits at most 1 s for unpolled completions, and hosts poll at least every 20 ms unless
// paused.
const lateEnd = 2 * time.Second

// checkDeadline checks that a request has ended by its deadline, with failover.
func (e *end) checkDeadline(r *request) {
	if !e.w.plan.Failover {
		return
	}
	limit := deadline + lateEnd
	for _, s := range e.w.activeFaults {
		if s.fault.Kind == FaultPause {
			limit += s.fault.For
		}
	}
	if took := time.Duration(e.w.now - r.posted); took > limit {
		e.fail("deadline", "%v ended after %v, but its deadline is %v", r, took, deadline)
	}
}

// Requests with dedicated ranges. At most one of each is outstanding.
const (
	spareEnd = iota // the last request of an end
	spareAsk        // a signaled request, whose completion shows that earlier ones are complete
)

// last creates a signaled WRITE between spare ranges.
func (e *end) last(kind int) *request {
	r := &request{id: uint64(len(e.sends)), length: 8, content: uint32(e.w.rng.IntN(contentSpace))}
	r.local, r.remote = e.spare[kind][0], e.peer.spare[kind][1]
	for _, s := range []*span{r.local, r.remote} {
		s.label, s.id, s.ended, s.known, s.touches = e.name, r.id, false, false, 0
	}
	copy(r.local.bytes(), e.w.pool.content(r.content, r.length))
	r.local.allow, r.remote.allow = setOf(softnic.AccessGather), setOf(softnic.AccessRemoteWrite)
	r.wr.WRID, r.wr.Opcode, r.wr.Flags = r.id, verbs.OpRDMAWrite, verbs.SendSignaled
	r.wr.SetSGE(e.host.region.SGE(uint64(r.local.off), 8))
	r.wr.Remote, r.wr.RemoteOffset = e.peer.host.remote, uint64(r.remote.off)
	return r
}

// over reports whether all requests of an end have ended and the peer got all notifications.
func (e *end) over() bool {
	if e.crashed {
		return true
	}
	if !e.ended || (e.head < len(e.sends) && !e.mayFail) {
		return false
	}
	if e.failed && e.receives[kindNotify].waiting()+e.receives[kindData].waiting() > 0 {
		return false // They will be flushed.
	}
	if e.lost() {
		return true
	}
	for k := range e.messages {
		if q := &e.messages[k]; q.head < len(q.sent) {
			return false
		}
	}
	return true
}

// outstanding lists the unfinished work of each end.
func (w *world) outstanding() string {
	var s []string
	for _, e := range w.ends {
		if e.crashed {
			continue
		}
		if e.head < len(e.sends) {
			s = append(s, fmt.Sprintf("end %s waits for %v of %d", e.name, e.sends[e.head], len(e.sends)))
		}
		if len(e.backlog) > 0 {
			s = append(s, fmt.Sprintf("end %s cannot post %v", e.name, e.backlog[0]))
		}
		for k := range e.messages {
			if q := &e.messages[k]; q.head < len(q.sent) && !e.lost() {
				s = append(s, fmt.Sprintf("end %s got no notification of %v", e.peer.name, q.sent[q.head]))
			}
		}
		if e.budget > 0 && !e.failed {
			s = append(s, fmt.Sprintf("end %s has %d requests left to make", e.name, e.budget))
		}
		if n := e.receives[kindNotify].waiting() + e.receives[kindData].waiting(); n > 0 && e.failed {
			s = append(s, fmt.Sprintf("end %s waits for %d receives to be flushed", e.name, n))
		}
		if err := e.qp.Err(); err != nil {
			s = append(s, fmt.Sprintf("end %s has failed: %v", e.name, err))
		}
	}
	return strings.Join(s, "; ")
}
