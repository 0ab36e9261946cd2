package softnic

import (
	"fmt"

	"ibverbx/verbs"
)

// injected is what a test or a simulation has planned for a QP.
type injected struct {
	send, recv refusal
}

// refusal is a post that is to be refused: err after so many more requests were taken.
// Without an error nothing is planned.
type refusal struct {
	after int
	err   error
}

// limit returns how many of n requests may be posted before one is refused, and whether
// one is.
func (r *refusal) limit(n int) (int, bool) {
	if r.err == nil || r.after >= n {
		return n, false
	}
	return r.after, true
}

// took notes that n requests were posted; if that was all before the one to refuse, the
// refusal is used up and its error comes back.
func (r *refusal) took(n int, refused bool) (err error) {
	if r.err == nil {
		return nil
	}
	r.after -= n
	if refused && r.after == 0 {
		err, r.err = r.err, nil
	}
	return err
}

// RefuseSend makes a QP refuse one send: when after more sends have been taken, in however
// many posts, the post that brings the next one stops in front of it with err. A nil err
// means verbs.ErrQueueFull, which is ordinary back-pressure; any other is what a broken
// device says. It replaces a refusal that was planned before.
func (n *NIC) RefuseSend(qpn uint32, after int, err error) error {
	return n.plan("refuse send", qpn, after, func(q *qp) { q.injected.send = newRefusal(after, err) })
}

// RefuseRecv is RefuseSend for receives that are posted to the QP itself.
func (n *NIC) RefuseRecv(qpn uint32, after int, err error) error {
	return n.plan("refuse receive", qpn, after, func(q *qp) { q.injected.recv = newRefusal(after, err) })
}

func newRefusal(after int, err error) refusal {
	if err == nil {
		err = verbs.ErrQueueFull
	}
	return refusal{after: after, err: err}
}

func (n *NIC) plan(op string, qpn uint32, after int, f func(q *qp)) error {
	return n.inject(op, qpn, func(q *qp) error {
		if after < 0 {
			return verbs.Invalidf("after %d requests: want at least 0", after)
		}
		if q.injected == nil {
			q.injected = &injected{}
		}
		f(q)
		return nil
	})
}

// inject runs f on an open QP, with the lock held, and settles.
func (n *NIC) inject(op string, qpn uint32, f func(q *qp) error) error {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	q := n.qps.get(qpn)
	if q == nil {
		return verbs.NewOpError(op, n.name, qpn, fmt.Errorf("%w: no such QP is open", verbs.ErrNotFound))
	}
	err := f(q)
	n.core.settle()
	return verbs.NewOpError(op, n.name, qpn, err)
}

// FailQP ends a QP as an error of the device does: it goes to the error state, everything
// outstanding on it is flushed, and its context gets EventQPFatal. A QP that is in RESET or
// in the error state stays as it is.
func (n *NIC) FailQP(qpn uint32) error {
	return n.inject("fail QP", qpn, func(q *qp) error {
		q.fatal()
		return nil
	})
}

// FailCQ ends a CQ of the NIC as an overrun does: its context gets EventCQErr, the QPs on
// it go to the error state with EventQPFatal, and once it is empty Poll returns
// verbs.ErrCQOverrun.
func (n *NIC) FailCQ(v verbs.CQ) error {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	c, ok := v.(*cq)
	if !ok || c == nil || c.ctx.nic != n || c.closed {
		return verbs.NewOpError("fail CQ", n.name, 0, verbs.Invalidf("the CQ is nil, closed or of another NIC"))
	}
	c.overflow()
	n.core.settle()
	return nil
}

// postSendInjected is postSend of a QP for which something is planned.
func (q *qp) postSendInjected(wrs []verbs.SendWR) (int, error) {
	r := &q.injected.send
	limit, refused := r.limit(len(wrs))
	n, err := q.postSend(wrs[:limit])
	planned := r.took(n, refused && err == nil)
	if err == nil {
		err = planned
	}
	return n, err
}

// postRecvInjected is recvQueue.post of a QP for which something is planned.
func (q *qp) postRecvInjected(wrs []verbs.RecvWR) (int, error) {
	r := &q.injected.recv
	limit, refused := r.limit(len(wrs))
	n, err := q.rq.post(wrs[:limit])
	planned := r.took(n, refused && err == nil)
	if err == nil {
		err = planned
	}
	return n, err
}
