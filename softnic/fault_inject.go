package softnic

import (
	"fmt"

	"ibverbx/verbs"
)

// injected holds the refusals planned for a QP by a test or a simulation.
type injected struct {
	send, recv refusal
}

// refusal refuses one post with err, after the given number of accepted requests. A nil err disables
// it.
type refusal struct {
	after int
	err   error
}

// post posts n requests, up to the one to be refused, by calling post with the number of requests
// before that one. The refusal is used up once all requests before it have been accepted.
func (r *refusal) post(n int, post func(limit int) (int, error)) (int, error) {
	planned := r.err != nil && r.after < n
	if planned {
		n = r.after
	}
	taken, err := post(n)
	if r.err != nil {
		r.after -= taken
	}
	if planned && err == nil && r.after == 0 {
		err, r.err = r.err, nil
	}
	return taken, err
}

// RefuseSend makes a QP reject one send. The QP accepts after more sends, in any number of posts; the
// post of the next send then fails with err. A nil err means verbs.ErrQueueFull, ordinary back-pressure;
// any other error simulates a broken device. A new call replaces an earlier plan.
func (n *NIC) RefuseSend(qpn uint32, after int, err error) error {
	return n.plan("refuse send", qpn, after, func(q *qp) { q.injected.send = newRefusal(after, err) })
}

// RefuseRecv is RefuseSend for receives posted to the QP's own receive queue.
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
			return verbs.Invalidf("refusal after %d requests: want at least 0", after)
		}
		if q.injected == nil {
			q.injected = &injected{}
		}
		f(q)
		return nil
	})
}

// inject runs f on an open QP under the lock, and settles.
func (n *NIC) inject(op string, qpn uint32, f func(q *qp) error) error {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	q := n.qps.get(qpn)
	if q == nil {
		return verbs.NewOpError(op, n.name, qpn, fmt.Errorf("%w: no open QP has this number", verbs.ErrNotFound))
	}
	err := f(q)
	n.core.settle()
	return verbs.NewOpError(op, n.name, qpn, err)
}

// FailQP fails a QP like a device error: the QP enters the error state, its outstanding requests are
// flushed, and its context gets EventQPFatal. A QP in RESET or in the error state is not changed.
func (n *NIC) FailQP(qpn uint32) error {
	return n.inject("fail QP", qpn, func(q *qp) error {
		q.fatal()
		return nil
	})
}

// FailCQ fails a CQ like an overrun: its context gets EventCQErr, its QPs enter the error state with
// EventQPFatal, and Poll returns verbs.ErrCQOverrun once the CQ is empty.
func (n *NIC) FailCQ(v verbs.CQ) error {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	c, ok := v.(*cq)
	if !ok || c == nil || c.ctx.nic != n || c.closed {
		return verbs.NewOpError("fail CQ", n.name, 0, verbs.Invalidf("the CQ is nil, closed or belongs to another NIC"))
	}
	c.overflow()
	n.core.settle()
	return nil
}
