package softnic

// fairShare is how many packets a QP may have unacknowledged however many its NIC has: one
// peer that does not answer must not stop the way to others.
const fairShare = 16

// inFlight is how many packets are sent and not acknowledged.
func (q *qp) inFlight() uint32 { return uint32(q.snd.Sub(q.una)) }

// mayAdd reports whether the NIC lets a QP that has f packets unacknowledged send another. If
// not, the QP goes on when others have been answered.
func (q *qp) mayAdd(f uint32) bool {
	n := q.nic
	if f < fairShare || n.inFlight-q.charged+f < n.limit {
		return true
	}
	if !q.starved {
		q.starved = true
		n.starved.push(q)
	}
	return false
}

// charge brings the NIC's count of unacknowledged packets up to date with this QP's.
func (q *qp) charge() {
	n := q.nic
	if n.limit == 0 {
		return
	}
	f := q.inFlight()
	n.inFlight += f - q.charged
	q.charged = f
	if n.starved.empty() || n.inFlight > n.limit-n.limit/4 {
		return
	}
	for s := n.starved.pop(); s != nil; s = n.starved.pop() {
		s.starved = false
		q.core.schedule(s)
	}
}
