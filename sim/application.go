package sim

import (
	"errors"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// receive is a receive that is posted.
type receive struct {
	id   uint64
	span *span // nil of a notification receive
	wr   ibverbx.RecvWR
}

// recvQueue are the receives of one kind that have not ended, in posting order.
type recvQueue struct {
	posted []receive
	head   int
	made   uint64
}

func (q *recvQueue) waiting() int { return len(q.posted) - q.head }

// messageQueue are the requests that the peer is to be told of, in posting order.
type messageQueue struct {
	sent []*request
	head int // the first that the peer was not told of
}

// IDs of receives have the highest bit, and the next one says of which kind they are.
const (
	recvID = 1 << 63
	dataID = 1 << 62
)

// turn lets a host do what it can now, and reports whether it did anything.
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
		if n < h.batch || h.w.failure != nil {
			break
		}
	}
	h.takeEvents()
	for _, e := range h.ends {
		progress = e.topUp() || progress
		progress = e.work() || progress
	}
	return progress
}

// topUp posts receives until as many wait as the application wants.
func (e *end) topUp() (progress bool) {
	if e.failed || e.w.now < e.starved || e.w.failure != nil {
		return false
	}
	for kind := range e.receives {
		if kind == kindNotify && e.straight() {
			continue // one queue for everything
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
		r.span.label, r.span.id, r.span.allow = "receive of "+e.name, r.id&^(recvID|dataID), setOf(softnic.TouchScatter)
		r.wr.SetSGE(e.host.region.SGE(uint64(r.span.off), uint32(r.span.len)))
		if r.span.len > 8 && e.w.rng.IntN(4) == 0 {
			cut := uint32(1 + e.w.rng.IntN(r.span.len-1))
			r.wr.SetSGE(e.host.region.SGE(uint64(r.span.off), cut), e.host.region.SGE(uint64(r.span.off)+uint64(cut), uint32(r.span.len)-cut))
		}
	}
	r.wr.WRID = r.id
	n, err := e.qp.PostRecv([]ibverbx.RecvWR{r.wr})
	if n == 1 {
		q.made++
		q.posted = append(q.posted, r)
	} else if r.span != nil {
		r.span.end()
	}
	if err != nil && !errors.Is(err, verbs.ErrQueueFull) && !e.excused() {
		e.fail("completions", "a receive was refused: %v", err)
	}
	return n == 1
}

// work makes requests and posts them, and reports whether any was taken.
func (e *end) work() bool {
	w := e.w
	if w.failure != nil {
		return false
	}
	if len(e.backlog) == 0 {
		if e.budget == 0 || w.now < e.nextBurst || e.failed {
			return false
		}
		n := 1 + w.rng.IntN(w.plan.Work.Burst)
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
			// Nobody tells when the ranges of unsignaled requests are free: ask.
			e.backlog = append(e.backlog, e.last(spareAsk))
		}
		if gap := int64(w.plan.Work.Gap); gap > 0 {
			e.nextBurst = w.now + w.rng.Int64N(gap) + 1
			w.agenda.add(e.nextBurst, nil)
		}
	}
	return len(e.backlog) > 0 && e.mayPost() && e.post()
}

// mayPost spares a VirtualQP that is full another look at what it has no room for, as long
// as nothing of it has ended and something else goes on.
func (e *end) mayPost() bool {
	if e.blocked > 0 && e.w.still == 0 {
		e.blocked--
		return false
	}
	return true
}

// blockedTurns is how many turns a VirtualQP that is full is spared.
const blockedTurns = 16

// silent reports whether requests are outstanding and none of them will say that it ended.
func (e *end) silent() bool {
	for _, r := range e.sends[e.head:] {
		if r.signaled() {
			return false
		}
	}
	return e.head < len(e.sends)
}

// post posts the backlog and takes note of what was taken.
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
		e.w.stats.messages++
		e.w.stats.bytes += r.length
		e.w.trace.post(e, r)
		if r.wr.Flags&verbs.SendInline != 0 { // the bytes were taken
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
	if e.w.phase == phaseWork { // later on requests share their ranges
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

// drop gives up what was made and not taken: the VirtualQP refuses it for good.
func (e *end) drop() {
	for _, r := range e.backlog {
		for _, s := range []*span{r.local, r.remote} {
			if s != nil {
				s.end()
			}
		}
		if r.pin != nil {
			r.pin.pinned = false
			e.settle(r.pin)
		}
	}
	e.backlog, e.budget = nil, 0
}

// kindOf is the kind of receive that a message takes.
func (e *end) kindOf(r *request) int {
	if r.message() || e.straight() {
		return kindData
	}
	return kindNotify
}
