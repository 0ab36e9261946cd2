package softnic

import (
	"fmt"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

func (q *qp) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.core.mu.Lock()
	defer q.core.mu.Unlock()
	err := q.usable()
	if err == nil {
		err = q.modify(attr, mask)
	}
	q.core.settle()
	return q.opError("modify QP", err)
}

// modify validates all values before it changes any.
func (q *qp) modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	to := q.state
	if mask&verbs.AttrState != 0 {
		to = attr.State
	}
	if mask&verbs.AttrCurState != 0 && attr.CurState != q.state {
		return fmt.Errorf("%w: the QP is in %s, but QPAttr.CurState is %s", verbs.ErrState, q.state, attr.CurState)
	}
	if err := verbs.CheckTransition(q.typ, q.state, to, mask); err != nil {
		return err
	}
	if err := q.checkAttr(&attr, mask); err != nil {
		return err
	}
	q.revoke()
	err := q.change(&attr, mask, to)
	q.core.grant(q)
	return err
}

// change applies a change validated by modify.
func (q *qp) change(attr *verbs.QPAttr, mask verbs.QPAttrMask, to verbs.QPState) error {
	if mask&verbs.AttrAV != 0 {
		if attr.AH.Seal != nil && attr.AH.Seal != q.pathConfig.Seal {
			return verbs.Invalidf("QPAttr.AH.Seal is not that of QPConfig.Path")
		}
		p, err := q.nic.newPath(attr.AH, false, q.sealing, q.assoc)
		if err != nil {
			return err
		}
		if q.path, q.from = p, nil; p.route != nil {
			q.assoc = p.route.assoc
		}
		q.switchBudget(p)
		if q.state == verbs.StateSQD {
			q.setLimit(maxWindow) // the windows of the new path
		}
		if q.core.udpNIC != nil {
			q.core.udpNIC.discoverPeer(q)
		}
	}
	if to == verbs.StateSQD && q.state == verbs.StateRTS {
		q.attr.SQDNotify = false // it must be requested each time
	}
	q.attr.Set(attr, mask)
	if mask&verbs.AttrState != 0 {
		q.enter(to)
	}
	return nil
}

// checkAttr validates the values selected by mask against the device's capabilities.
func (q *qp) checkAttr(a *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := a.Check(mask); err != nil {
		return err
	}
	for _, f := range [...]struct {
		bit   verbs.QPAttrMask
		bad   bool
		what  string
		value any
	}{
		{verbs.AttrPort, a.Port != 1, "Port: want 1", a.Port},
		{verbs.AttrPKeyIndex, a.PKeyIndex != 0, "PKeyIndex: want 0", a.PKeyIndex},
		{verbs.AttrAccess, a.Access&^verbs.AccessAll != 0, "Access: unknown flags", a.Access},
		{verbs.AttrPathMTU, a.PathMTU.Bytes() == 0 || a.PathMTU > q.mtu(), "PathMTU: not a code, or above the port's", a.PathMTU},
		{verbs.AttrMaxRdAtomic, a.MaxRdAtomic > maxRdAtomic, "MaxRdAtomic: above the device's limit", a.MaxRdAtomic},
		{verbs.AttrMaxDestRdAtomic, a.MaxDestRdAtomic > maxRdAtomic, "MaxDestRdAtomic: above the device's limit", a.MaxDestRdAtomic},
	} {
		if mask&f.bit != 0 && f.bad {
			return verbs.Invalidf("QPAttr.%s, not %v", f.what, f.value)
		}
	}
	return nil
}

// enter moves the QP to a state validated by modify.
func (q *qp) enter(to verbs.QPState) {
	from := q.state
	switch to {
	case verbs.StateReset:
		q.reset()
		q.attr = verbs.QPAttr{}
		q.firstPSN = q.nic.randomPSN()
	case verbs.StateErr:
		q.enterError()
	case verbs.StateRTR:
		q.readyToReceive()
	case verbs.StateRTS:
		if from == verbs.StateRTR {
			q.snd = roce.PSN(q.attr.SQPSN)
			q.una, q.maxPSN = q.snd, q.snd
			q.retryLeft, q.rnrLeft = q.attr.RetryCount, q.attr.RNRRetry
		}
		q.state = to
		q.core.lists.tx.push(q)
	case verbs.StateSQD:
		if from != verbs.StateSQD {
			q.state, q.drained = to, false
		}
		q.checkDrained()
	default:
		q.state = to
	}
}

func (q *qp) readyToReceive() {
	q.state = verbs.StateRTR
	c := q.core
	switch {
	case q.typ == verbs.UD:
		q.seg = uint32(q.mtu().Bytes())
	case c.traits.immediate:
		q.seg = maxMsgSize
	default:
		q.seg = uint32(q.attr.PathMTU.Bytes())
	}
	q.window, q.longWindow = c.traits.windows(q.path, q.seg)
	q.setPace()
	q.setAckRequests()
	q.timed = q.typ == verbs.RC && !c.traits.immediate && c.traits.shm == nil
	q.epsn, q.unackedPSNs = roce.PSN(q.attr.RQPSN), 0
	if q.typ == verbs.RC {
		// Sized for the highest limit, because SQD may raise it later. responses grows.
		q.responses.Drop(q.responses.Len())
		q.replay = make([]atomicResult, maxRdAtomic)
		q.answered = make([]servedRead, maxRdAtomic)
	}
}

// checkDrained raises an event, once per SQD, when the last request that began before SQD has completed.
func (q *qp) checkDrained() {
	if q.drained || q.sqHead != q.sqMax || q.landings.defers(asRequester) || (q.path != nil && q.path.movedBytes > 0) {
		return
	}
	q.drained = true
	if q.attr.SQDNotify {
		q.raise(verbs.EventSQDrained)
	}
}

func (q *qp) Query() (verbs.QPAttr, error) {
	q.core.mu.hold()
	defer q.core.mu.Unlock()
	if err := q.usable(); err != nil {
		return verbs.QPAttr{}, q.opError("query QP", err)
	}
	a := q.attr
	a.State, a.CurState = q.state, q.state
	return a, nil
}

func (q *qp) Endpoint() (verbs.Endpoint, error) {
	q.core.mu.hold()
	defer q.core.mu.Unlock()
	if err := q.usable(); err != nil {
		return verbs.Endpoint{}, q.opError("query endpoint", err)
	}
	return q.endpoint(), nil
}

func (q *qp) endpoint() verbs.Endpoint {
	e := verbs.Endpoint{QPN: q.num, PSN: uint32(q.firstPSN), GID: q.nic.gids[q.sgidIndex].GID, MTU: q.mtu()}
	if u := q.port(); u != nil {
		e.LID, e.Extra = u.lid(), u.extra(q.sealing)
	}
	switch q.typ {
	case verbs.RC:
		e.MaxRdAtomic, e.MaxDestRdAtomic = maxRdAtomic, maxRdAtomic
	case verbs.UD:
		e.QKey = verbs.DefaultQKey
		if q.state != verbs.StateReset {
			e.QKey = q.attr.QKey
		}
	case verbs.UC:
	}
	return e
}

func (q *qp) Connect(remote verbs.Endpoint) error {
	if q.typ != verbs.UD {
		if err := remote.Validate(); err != nil {
			return q.opError("connect QP", err)
		}
	}
	local, err := q.Endpoint()
	if err != nil {
		return err
	}
	if u := q.port(); u != nil {
		q.core.mu.Lock()
		err := q.learn(u, &remote)
		q.core.mu.Unlock()
		if err != nil {
			return q.opError("connect QP", err)
		}
	}
	attr := verbs.ConnectAttr(local, remote, 1, q.sgidIndex)
	q.pathConfig.Apply(&attr)
	return verbs.ConnectWith(q, attr)
}
