package sim

import (
	"errors"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// receive is a posted receive.
type receive struct {
	id   uint64
	span *span // its bytes, nil for a notification
	wr   ibverbx.RecvWR
}

// recvQueue holds the receives of one kind in posting order.
type recvQueue struct {
	posted []receive
	head   int    // index of the oldest one that has not completed
	made   uint64 // receives posted so far
}

func (q *recvQueue) waiting() int { return len(q.posted) - q.head }

// recvPool holds the data receives that the VirtualQPs of a host share.
type recvPool struct {
	free   []*span             // memory of unposted receives
	posted map[uint64]*receive // by WRID
	made   uint64              // receives posted so far
}

// topUp posts all unposted receives of a pool.
func (p *recvPool) topUp(h *host) (progress bool) {
	for len(p.free) > 0 && !h.w.failed() {
		last := len(p.free) - 1
		r := &receive{id: recvID | dataID | p.made, span: p.free[last]}
		r.span.off, r.span.len = r.span.ring.at*granule+h.w.rng.IntN(64), h.w.maxSend()
		h.scatter(r, r.span.label)
		if n, err := h.cq.PostRecv([]ibverbx.RecvWR{r.wr}); n != 1 {
			h.w.fail("completions", "", "host %d: VirtualCQ.PostRecv with %d of %d receives posted: %v", h.index, len(p.posted), h.w.plan.Pool, err)
			return true
		}
		p.free, p.posted[r.id], progress = p.free[:last], r, true
		p.made++
	}
	return progress
}

// completed takes a receive out of the pool, or returns nil if it is not posted.
func (p *recvPool) completed(id uint64) *receive {
	r := p.posted[id]
	if r == nil {
		return nil
	}
	delete(p.posted, id)
	p.free = append(p.free, r.span)
	return r
}

// scatter describes the memory of a receive, sometimes as two elements.
func (h *host) scatter(r *receive, label string) {
	r.span.label, r.span.id, r.span.allow = label, r.id&^(recvID|dataID), setOf(softnic.AccessScatter)
	r.wr.WRID = r.id
	r.wr.SetSGE(h.region.SGE(uint64(r.span.off), uint32(r.span.len)))
	if r.span.len > 8 && h.w.rng.IntN(4) == 0 {
		cut := uint32(1 + h.w.rng.IntN(r.span.len-1))
		r.wr.SetSGE(h.region.SGE(uint64(r.span.off), cut), h.region.SGE(uint64(r.span.off)+uint64(cut), uint32(r.span.len)-cut))
	}
}

// messageQueue holds the requests that notify the peer, in posting order.
type messageQueue struct {
	sent []*request
	head int // index of the first one without a completed receive at the peer
}

// Bits of a WRID: recvID marks a receive, dataID one of kind kindData.
const (
	recvID = 1 << 63
	dataID = 1 << 62
)

// turn polls, handles events and posts. It reports whether it did anything.
func (h *host) turn() (progress bool) {
	if h.w.now < h.paused {
		return false
	}
	for range 64 {
		n, err := h.poll(h.wcs[:h.batch])
		if err != nil {
			h.checkPollError(err)
		}
		for i := range h.wcs[:n] {
			h.completed(&h.wcs[i])
		}
		progress = progress || n > 0
		if n < h.batch || h.w.failed() {
			break
		}
	}
	progress = h.takeEvents() || progress // Requests may have been flushed meanwhile.
	progress = h.pool.topUp(h) || progress
	for _, e := range h.ends {
		progress = e.topUp() || progress
		progress = e.work() || progress
	}
	return progress
}

// topUp posts receives up to the number in the plan.
func (e *end) topUp() (progress bool) {
	if e.failed || e.w.now < e.starved || e.w.failed() {
		return false
	}
	for kind := range e.receives {
		if (kind == kindNotify && e.straight()) || (kind == kindData && e.w.plan.Pool > 0) {
			continue // One queue receives everything, or the pool does.
		}
		for q := &e.receives[kind]; q.waiting() < e.plan.Receives; {
			if !e.postRecv(kind) {
				break
			}
			progress = true
		}
	}
	return progress
}

func (e *end) postRecv(kind int) bool {
	q := &e.receives[kind]
	r := receive{id: recvID | q.made}
	if kind == kindData {
		r.id |= dataID
		if r.span = e.inbox.alloc(e.w.maxSend(), e.w.rng.IntN(64)); r.span == nil {
			return false
		}
		e.host.scatter(&r, "receive of "+e.name)
	}
	r.wr.WRID = r.id
	n, err := e.qp.PostRecv([]ibverbx.RecvWR{r.wr})
	if n == 1 {
		q.made++
		q.posted = append(q.posted, r)
	} else if r.span != nil {
		r.span.end()
	}
	if err != nil && !errors.Is(err, verbs.ErrQueueFull) && !e.mayFail {
		e.fail("completions", "PostRecv: %v", err)
	}
	return n == 1
}

// work creates requests and posts them. It reports whether it posted any.
func (e *end) work() bool {
	w := e.w
	if w.failed() {
		return false
	}
	if len(e.backlog) == 0 {
		if e.budget == 0 || w.now < e.nextBurst || e.failed {
			return false
		}
		n := 1 + w.rng.IntN(w.plan.Work.Burst)
		if e.burstOp, e.burstSize = 0, -1; w.rng.IntN(2) == 0 {
			if e.burstOp = w.drawOp(); w.rng.IntN(2) == 0 {
				e.burstSize = w.drawSize(e.burstOp, 2)
			}
		}
		for range min(n, e.budget) {
			r := e.makeRequest()
			if r == nil {
				break
			}
			e.budget--
			e.backlog = append(e.backlog, r)
			if e.silentRun++; r.signaled() {
				e.silentRun = 0
			}
		}
		if len(e.backlog) == 0 && e.silent() {
			// A signaled request shows that the unsignaled ones before it are complete.
			e.backlog = append(e.backlog, e.last(spareAsk))
		}
		if gap := int64(w.plan.Work.Gap); gap > 0 {
			e.nextBurst = w.now + w.rng.Int64N(gap) + 1
			w.eventQueue.add(e.nextBurst, nil)
		}
	}
	return len(e.backlog) > 0 && e.mayPost() && e.post()
}

// mayPost reports whether to try a post. After a refusal it skips some turns, unless a request completes or the world is idle.
func (e *end) mayPost() bool {
	if e.blocked > 0 && e.w.still == 0 {
		e.blocked--
		return false
	}
	return true
}

// blockedTurns is the number of turns without a post after a refusal.
const blockedTurns = 16

// silent reports whether only unsignaled requests are outstanding.
func (e *end) silent() bool {
	for _, r := range e.sends[e.head:] {
		if r.signaled() {
			return false
		}
	}
	return e.head < len(e.sends)
}

// post posts the backlog and records the accepted requests.
func (e *end) post() bool {
	wrs := e.wrs[:0]
	for _, r := range e.backlog {
		wrs = append(wrs, r.wr)
	}
	e.wrs = wrs
	failed := e.qp.Err() != nil
	n, err := e.send(wrs)
	if err != nil {
		e.blocked = blockedTurns
	}
	e.checkPosted(n, len(wrs), err)
	for _, r := range e.backlog[:n] {
		r.posted, r.late = e.w.now, failed
		if e.index%2 == 0 {
			e.w.meter.begin(e.w.now)
		}
		e.sends = append(e.sends, r)
		e.worked = e.worked || (r != e.barrier && e.w.phase == phaseWork)
		e.w.report.Messages++
		e.w.report.Bytes += r.length
		e.w.trace.post(e, r)
		if r.wr.Flags&verbs.SendInline != 0 { // The bytes have been copied.
			copy(r.local.bytes(), e.w.pool.content((r.content+7777)%contentSpace, r.length))
			r.local.allow = 0
		}
		if r.bad && r.writes() && e.bad == nil {
			e.bad = r
		}
		if r.imm() || r.message() {
			q := &e.messages[e.kindOf(r)]
			q.sent = append(q.sent, r)
		}
	}
	if e.w.phase == phaseWork { // In later phases requests share their ranges.
		for _, r := range e.backlog[n:] {
			e.checkUntouched(r)
		}
	}
	e.backlog = append(e.backlog[:0], e.backlog[n:]...)
	if err != nil && !errors.Is(err, verbs.ErrQueueFull) {
		e.drop()
	}
	return n > 0
}

// drop abandons the backlog after a permanent error.
func (e *end) drop() {
	for _, r := range e.backlog {
		for _, s := range []*span{r.local, r.remote} {
			if s != nil {
				s.end()
			}
		}
		e.unpin(r)
	}
	e.backlog, e.budget = nil, 0
}

// kindOf is the kind of receive that a message completes.
func (e *end) kindOf(r *request) int {
	if r.message() || e.straight() {
		return kindData
	}
	return kindNotify
}
