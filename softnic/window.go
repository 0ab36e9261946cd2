package softnic

const (
	// fairShare is how many packets a QP may have unacknowledged however many its NIC
	// has: one peer that does not answer must not stop the way to others.
	fairShare = 16

	// peerShare is how many it may have however many others have to the same peer: one
	// keeps it going, and the peer's buffer need not hold more than that for every QP.
	peerShare = 1
)

// budget is a window that several QPs share.
type budget struct {
	limit    uint32   // packets that may be unacknowledged, 0 without limit
	inFlight uint32   // those that are
	starved  workList // QPs that wait for that to fall
}

// inFlight is how many packets are sent and not acknowledged.
func (q *qp) inFlight() uint32 { return uint32(q.snd.Sub(q.una)) }

// holder returns the budget that keeps a QP with f packets unacknowledged from sending another,
// nil if none does.
func (q *qp) holder(f uint32) *budget {
	if b := &q.nic.budget; f >= fairShare && b.inFlight-q.charged+f >= b.limit {
		return b
	}
	if b := q.to; b != nil && f >= peerShare && b.inFlight-q.charged+f >= b.limit {
		return b
	}
	return nil
}

// mayAdd reports whether a QP that has f packets unacknowledged may send another. If not, the
// QP goes on when others have been answered.
func (q *qp) mayAdd(f uint32) bool {
	b := q.holder(f)
	if b == nil {
		return true
	}
	if !q.starved {
		q.starved = true
		b.starved.push(q)
	}
	return false
}

// charge brings the counts of unacknowledged packets up to date with this QP's.
func (q *qp) charge() {
	if q.nic.budget.limit == 0 {
		return
	}
	f := q.inFlight()
	change := f - q.charged
	q.charged = f
	q.nic.budget.add(q.core, change)
	if q.to != nil {
		q.to.add(q.core, change)
	}
}

// add adds packets, or takes some away, and lets others go on if it can. A window that is full
// wakes nobody, however short it is: who cannot go on would be woken again and again.
func (b *budget) add(c *core, change uint32) {
	b.inFlight += change
	if !b.starved.empty() && b.inFlight < b.limit && b.inFlight <= b.limit-b.limit/4 {
		b.wake(c)
	}
}

// wake lets all go on that wait. Who may not, waits again.
func (b *budget) wake(c *core) {
	for s := b.starved.pop(); s != nil; s = b.starved.pop() {
		s.starved = false
		c.schedule(s)
	}
}

// headFor makes the QP's packets count as those of another path.
func (q *qp) headFor(p *path) {
	if q.to != nil {
		q.to.add(q.core, -q.charged)
		if q.starved {
			q.to.wake(q.core) // or it would wait there for a window that is no longer its own
		}
		q.to = nil
	}
	if p != nil && p.way != nil && p.way.budget != nil {
		q.to = p.way.budget
		q.to.add(q.core, q.charged)
	}
}
