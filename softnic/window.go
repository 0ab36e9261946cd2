package softnic

const (
	// fairShare is how many packets a QP may have unacknowledged however many its NIC has. A peer
	// that does not answer must not block traffic to others.
	fairShare = 16

	// peerShare is how many packets a QP may have unacknowledged however many other QPs have to
	// the same peer. One keeps it going, and the peer's buffer needs no more than that per QP.
	peerShare = 1
)

// budget is a window that several QPs share.
type budget struct {
	// limit is how many packets may be unacknowledged. 0 is no limit.
	limit uint32
	// full is the same for another packet of a whole MTU, at most limit.
	full uint32
	// inFlight is how many packets are unacknowledged.
	inFlight uint32
	// starved are QPs that wait for inFlight to fall.
	starved workList
}

func newBudget() budget { return budget{starved: workList{bit: onStarved}} }

// set sets the two limits.
func (b *budget) set(limit, full uint32) { b.limit, b.full = limit, min(limit, full) }

// most returns how many packets may be unacknowledged before another one leaves.
func (b *budget) most(full bool) uint32 {
	if full {
		return b.full
	}
	return b.limit
}

// inFlight returns how many packets are sent and not acknowledged.
func (q *qp) inFlight() uint32 { return uint32(q.snd.Sub(q.una)) }

// holder returns the budget that keeps a QP with f unacknowledged packets from sending another
// one, nil if none does. full says that the packet has a whole MTU.
func (q *qp) holder(f uint32, full bool) *budget {
	if b := &q.nic.budget; f >= fairShare && b.inFlight-q.charged+f >= b.most(full) {
		return b
	}
	if b := q.to; b != nil && f >= peerShare && b.inFlight-q.charged+f >= b.most(full) {
		return b
	}
	return nil
}

// mayAdd reports whether a QP with f unacknowledged packets may send another one. If not, the QP
// is scheduled when packets of others have been acknowledged.
func (q *qp) mayAdd(f uint32, full bool) bool {
	b := q.holder(f, full)
	if b != nil {
		b.starved.push(q)
	}
	return b == nil
}

// charge updates the budgets with the number of this QP's unacknowledged packets.
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

// add adds packets, or removes some if change is negative, and wakes waiting QPs. A full window
// wakes none, however short it is: a QP that cannot send would be woken again and again. Therefore
// the lower limit counts.
func (b *budget) add(c *core, change uint32) {
	b.inFlight += change
	if !b.starved.empty() && b.inFlight < b.full && b.inFlight <= b.full-b.full/4 {
		b.wake(c)
	}
}

// wake schedules all waiting QPs. Those that still may not send wait again.
func (b *budget) wake(c *core) {
	for q := b.starved.pop(); q != nil; q = b.starved.pop() {
		c.lists.tx.push(q)
	}
}

// headFor makes the QP's packets count for the budget of another path.
func (q *qp) headFor(p *path) {
	if q.to != nil {
		q.to.add(q.core, -q.charged)
		if q.lists&onStarved != 0 {
			q.to.wake(q.core) // the QP must not wait for a budget that is no longer its own
		}
		q.to = nil
	}
	if p != nil && p.way != nil && p.way.budget != nil {
		q.to = p.way.budget
		q.to.add(q.core, q.charged)
	}
}
