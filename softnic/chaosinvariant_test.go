package softnic

import (
	"slices"

	"ibverbx/verbs"
)

// sent checks a send completion. Each signaled send completes once, after all earlier signaled sends; an
// unsignaled send completes only if it failed.
func (c *chaos) sent(a *actor, wc verbs.WC) {
	if !a.pending[wc.WRID] && wc.Status == verbs.StatusSuccess {
		c.failf("send %d succeeded again, or without having asked for a completion", wc.WRID)
	}
	i := slices.Index(a.order, wc.WRID)
	if i < 0 {
		c.failf("send %d completed twice", wc.WRID)
	}
	for _, id := range a.order[:i] {
		if a.pending[id] && !a.q.sendCQ.overrun {
			c.failf("send %d completed before %d", wc.WRID, id)
		}
		delete(a.pending, id)
	}
	a.order = a.order[i+1:]
	delete(a.pending, wc.WRID)
}

// received checks a receive completion. Each receive completes once and, on a QP without an SRQ, in posting
// order.
func (c *chaos) received(a *actor, wc verbs.WC) {
	if !c.recvs[wc.WRID] {
		c.failf("receive %#x completed, but is not outstanding", wc.WRID)
	}
	delete(c.recvs, wc.WRID)
	if a.q.srq == nil && wc.WRID <= a.lastRecv {
		c.failf("receive %#x completed after %#x", wc.WRID, a.lastRecv)
	}
	a.lastRecv = wc.WRID
}

// verify checks the invariants that hold between any two calls:
//
//   - the work lists contain only QPs that wait for time or space;
//   - cursors are in order, head <= next <= max <= tail, and una <= snd <= maxPSN;
//   - the counts of READs and atomics in flight are correct;
//   - every used slot is a waiting request or an unpolled completion;
//   - a QP with pending work has a timer or waits for space on a full link.
func (c *chaos) verify() {
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	for name, l := range map[string]*workList{
		"acks": &c.core.lists.acks, "tx": &c.core.lists.tx, "broken": &c.core.lists.broken, "failing": &c.core.lists.failing,
	} {
		if !l.empty() {
			c.failf("list %s is not empty between calls", name)
		}
	}
	unpolled := c.unpolled()
	for _, a := range c.actors {
		c.verifySends(a.q, unpolled)
		c.verifyRecvs(a.q, unpolled)
		if a.typ == verbs.RC {
			c.verifyReliable(a.q)
		}
		c.verifyRoom(a.q)
	}
	for _, s := range c.srqs {
		c.verifySRQ(s, unpolled)
	}
}

// unpolled counts the slots held by unpolled completions.
func (c *chaos) unpolled() map[*slotCount]uint32 {
	slots := map[*slotCount]uint32{}
	for _, s := range c.rigs {
		q := s.cq.(*cq)
		for i := q.head; i != q.tail; i++ {
			cr := q.slots[int(i)&(len(q.slots)-1)]
			slots[cr.used] += cr.n
		}
	}
	return slots
}

// used returns the number of occupied slots.
func used(s *slotCount) uint32 { return s.taken - s.freed - s.shared.Load() }

func (c *chaos) verifySends(q *qp, unpolled map[*slotCount]uint32) {
	waits := q.sqTail - q.sqHead
	if used(q.sqUsed) != waits+q.withoutCQE+unpolled[q.sqUsed] {
		c.failf("QP %#x, %v: %d send slots in use, but %d wait, %d are unreported and %d unpolled",
			q.num, q.typ, used(q.sqUsed), waits, q.withoutCQE, unpolled[q.sqUsed])
	}
	if q.sqNext-q.sqHead > q.sqMax-q.sqHead || q.sqMax-q.sqHead > waits || waits > uint32(len(q.sq)) {
		c.failf("QP %#x: cursors head %d, next %d, max %d, tail %d", q.num, q.sqHead, q.sqNext, q.sqMax, q.sqTail)
	}
}

func (c *chaos) verifyRecvs(q *qp, unpolled map[*slotCount]uint32) {
	if q.srq != nil {
		return
	}
	want := uint32(q.rq.ring.Len()) + unpolled[q.rq.used]
	if q.hasCur {
		want++
	}
	if used(q.rq.used) != want {
		c.failf("QP %#x: %d receive slots in use, want %d", q.num, used(q.rq.used), want)
	}
}

func (c *chaos) verifySRQ(s *srq, unpolled map[*slotCount]uint32) {
	want := uint32(s.ring.Len()) + unpolled[s.used]
	for _, a := range c.actors {
		if a.q.srq == s && a.q.hasCur {
			want++
		}
	}
	if used(s.used) != want {
		c.failf("SRQ: %d slots in use, want %d", used(s.used), want)
	}
}

func (c *chaos) verifyReliable(q *qp) {
	if q.snd.Sub(q.una) < 0 || q.maxPSN.Sub(q.snd) < 0 {
		c.failf("QP %#x: una %d, snd %d, maxPSN %d", q.num, q.una, q.snd, q.maxPSN)
	}
	var reads uint8
	for i := q.sqHead; i != q.sqNext; i++ {
		if q.sq[int(i)&(len(q.sq)-1)].isRequest() {
			reads++
		}
	}
	if reads != q.reads {
		c.failf("QP %#x: %d READs and atomics counted, there are %d", q.num, q.reads, reads)
	}
	if q.timerIdx >= 0 || q.lists&onWaiting != 0 {
		return
	}
	if q.una != q.snd && (q.state == verbs.StateRTS || q.state == verbs.StateSQD) {
		c.failf("QP %#x: no timer, with packets unacknowledged from %d to %d", q.num, q.una, q.snd)
	}
	if q.state == verbs.StateRTS && q.sqHead != q.sqTail {
		c.failf("QP %#x is stuck: head %d, next %d, max %d, tail %d, una %d, snd %d, RNR wait %v",
			q.num, q.sqHead, q.sqNext, q.sqMax, q.sqTail, q.una, q.snd, q.rnrWait)
	}
}

// verifyRoom checks that a QP waiting for space is on the waiting list, and that a packet in flight will free
// space on arrival.
func (c *chaos) verifyRoom(q *qp) {
	listed := slices.Contains(q.nic.waiting.qps[q.nic.waiting.head:], q)
	waits := q.lists&onWaiting != 0
	if listed != waits {
		c.failf("QP %#x: waits for room %v, on the list of waiting QPs %v", q.num, waits, listed)
	}
	if waits && q.nic.queued == 0 {
		c.failf("QP %#x waits for room, and nothing is under way", q.num)
	}
}
