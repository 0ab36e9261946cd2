package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// Connect connects every lane to the lane of the same index of the peer. If one cannot be
// connected the VirtualQP can be connected again, with its receives still posted, and the
// error says which and why; its card must be taken anew then.
func (q *VirtualQP) Connect(remote *Card) error {
	if remote == nil {
		return q.setup.opError("connect", verbs.Invalidf("no card"))
	}
	if err := remote.validate(); err != nil {
		return q.setup.opError("connect", err)
	}
	return q.connect(remote, func(l *lane, to verbs.Endpoint) error { return l.qp.Connect(to) })
}

// connect checks that a card fits and takes all lanes to RTS, or leaves everything as it
// was.
func (q *VirtualQP) connect(remote *Card, one func(l *lane, to verbs.Endpoint) error) error {
	if q.failover.state != stateNew {
		return q.setup.opError("connect", fmt.Errorf("%w: it was connected or closed before", verbs.ErrState))
	}
	if err := q.fits(remote); err != nil {
		return q.setup.opError("connect", err)
	}
	for i, l := range q.setup.all {
		if err := one(l, remote.Lanes[i].endpoint()); err != nil {
			return q.setup.opError("connect", errors.Join(fmt.Errorf("lane %d on rail %d (%s): %w", i, l.rail, q.setup.rails.rails[l.rail].name, err), q.disconnect(i)))
		}
		l.remoteRail = uint8(remote.Lanes[i].Rail)
		l.life.remoteHome = l.remoteRail
	}
	q.setup.remoteRails = remote.Rails
	q.setup.peer = remote.Incarnation
	q.setup.maxMsg = uint32(min(uint64(q.setup.maxMsg), remote.MaxMsgSize))
	if q.setup.scheme != nil {
		q.recv.connected(q.setup.scheme.connected(remote))
	}
	q.failover.state = stateConnected
	if q.setup.cfg.Control != nil {
		q.failover.skipEvents()
		q.time.tick()
		q.setup.cq.driven = append(q.setup.cq.driven, q)
	}
	return nil
}

// fits checks that a peer's VirtualQP is made as this one.
func (q *VirtualQP) fits(remote *Card) error {
	special := func(l *lane) int {
		if l == nil {
			return -1
		}
		return int(l.index)
	}
	switch {
	case remote.Scheme != q.setup.cfg.Scheme:
		return verbs.Invalidf("the peer's scheme is %s, this side's %s", remote.Scheme, q.setup.cfg.Scheme)
	case len(remote.Lanes) != len(q.setup.all) || remote.DataLanes != len(q.setup.lanes):
		return verbs.Invalidf("the peer has %d lanes, %d of them for data, this side %d and %d",
			len(remote.Lanes), remote.DataLanes, len(q.setup.all), len(q.setup.lanes))
	case remote.MessageLane != special(q.setup.messageLane) || remote.NotifyLane != special(q.setup.notifyLane):
		return verbs.Invalidf("the peer's message and notify lanes are %d and %d, this side's %d and %d",
			remote.MessageLane, remote.NotifyLane, special(q.setup.messageLane), special(q.setup.notifyLane))
	}
	return nil
}

// disconnect takes the first n lanes, and the one that failed, back to where they were.
func (q *VirtualQP) disconnect(n int) error {
	var errs []error
	for _, l := range q.setup.all[:n+1] {
		if l.qp.State() == verbs.StateInit {
			continue // it never left
		}
		err := l.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState)
		if err == nil {
			err = q.recv.prepare(l)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
