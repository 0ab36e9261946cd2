//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"fmt"

	"ibverbx/verbs"
)

// State queries the device, because errors change the state without notice.
func (q *qp) State() verbs.QPState {
	state, err := withResult(q.do, "query QP", q.deviceState)
	if err != nil {
		q.send.mu.Lock()
		defer q.send.mu.Unlock()
		return q.send.state
	}
	return state
}

func (q *qp) deviceState() (verbs.QPState, error) {
	s, errno := cQPState(q.pd.ctx.lib, q.h)
	return s, errnoErr(errno)
}

// Query returns the attributes as last set. Drivers report current values for some, such as the
// next PSN, and omit others.
func (q *qp) Query() (verbs.QPAttr, error) {
	return withResult(q.do, "query QP", func() (verbs.QPAttr, error) {
		s, err := q.deviceState()
		attr := q.attr
		attr.State, attr.CurState = s, 0
		return attr, err
	})
}

func (q *qp) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	return q.do("modify QP", func() error { return q.modify(attr, mask) })
}

// modify checks everything before it calls the device.
func (q *qp) modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	x := q.pd.ctx
	from, err := q.deviceState()
	if err != nil {
		return err
	}
	to := from
	if mask&verbs.AttrState != 0 {
		to = attr.State
	}
	if mask&verbs.AttrCurState != 0 && attr.CurState != from {
		return fmt.Errorf("%w: CurState is %s, but the QP is in %s", verbs.ErrState, attr.CurState, from)
	}
	if err := verbs.CheckTransition(q.typ, from, to, mask); err != nil {
		return err
	}
	if to == verbs.StateSQD && x.capabilities()&verbs.CapSQD == 0 {
		return fmt.Errorf("%w: the device does not drain a send queue (SQD)", verbs.ErrNotSupported)
	}
	global, err := q.checkAttr(&attr, mask)
	if err != nil {
		return err
	}
	if to == verbs.StateReset && mask&verbs.AttrState != 0 {
		return q.reset(&attr, mask)
	}
	if errno := cModifyQP(x.lib, q.h, &attr, global, mask); errno != 0 {
		return fmt.Errorf("from %s to %s: %w", from, to, errnoErr(errno))
	}
	q.attr.Set(&attr, mask)
	q.reached(to)
	return nil
}

// reset moves the QP to RESET and removes all traces of its earlier requests.
func (q *qp) reset(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	before := q.send.state
	q.stop(false)
	unlock := q.lockCQs()
	errno := cModifyQP(q.pd.ctx.lib, q.h, attr, false, mask)
	if errno == 0 {
		q.discardCompletions()
	}
	unlock()
	if errno != 0 {
		q.reached(before)
		return errnoErr(errno)
	}
	q.attr = verbs.QPAttr{}
	q.psn = randomPSN()
	q.reached(verbs.StateReset)
	return nil
}

// reached makes the queues accept what the state allows.
func (q *qp) reached(s verbs.QPState) {
	q.send.mu.Lock()
	q.send.state = s
	q.send.ready = s >= verbs.StateRTS && q.send.depth > 0
	q.gate(sendGate, q.send.ready)
	q.send.mu.Unlock()
	q.recv.mu.Lock()
	q.recv.ready = s != verbs.StateReset && q.recv.depth > 0 && q.srq == nil
	q.gate(recvGate, q.recv.ready)
	q.recv.mu.Unlock()
}

// checkAttr checks the attributes in mask, and reports whether packets on the path carry a
// GRH.
func (q *qp) checkAttr(a *verbs.QPAttr, mask verbs.QPAttrMask) (global bool, err error) {
	x := q.pd.ctx
	if mask&verbs.AttrAV != 0 {
		if global, err = x.checkAV(&a.AH); err != nil {
			return false, err
		}
	}
	for _, f := range [...]struct {
		bit   verbs.QPAttrMask
		bad   bool
		what  string
		value any
	}{
		{verbs.AttrPort, x.checkPort(int(a.Port)) != nil, "Port: the device has no such port", a.Port},
		{verbs.AttrAccess, a.Access&^verbs.AccessAll != 0, "Access: unknown flags", a.Access},
		{verbs.AttrPathMTU, a.PathMTU.Bytes() == 0, "PathMTU: want a code of 1 to 5", a.PathMTU},
		{verbs.AttrDestQPN, a.DestQPN == 0 || a.DestQPN >= 1<<24, "DestQPN: want 24 bits above 0", a.DestQPN},
		{verbs.AttrRQPSN, a.RQPSN >= 1<<24, "RQPSN: want 24 bits", a.RQPSN},
		{verbs.AttrSQPSN, a.SQPSN >= 1<<24, "SQPSN: want 24 bits", a.SQPSN},
		{verbs.AttrMaxRdAtomic, int(a.MaxRdAtomic) > x.attr.MaxQPInitRdAtomic, "MaxRdAtomic: above the device's limit", a.MaxRdAtomic},
		{verbs.AttrMaxDestRdAtomic, int(a.MaxDestRdAtomic) > x.attr.MaxQPRdAtomic, "MaxDestRdAtomic: above the device's limit", a.MaxDestRdAtomic},
		{verbs.AttrMinRNRTimer, a.MinRNRTimer > 31, "MinRNRTimer: want at most 31", a.MinRNRTimer},
		{verbs.AttrTimeout, a.Timeout > 31, "Timeout: want at most 31", a.Timeout},
		{verbs.AttrRetryCount, a.RetryCount > 7, "RetryCount: want at most 7", a.RetryCount},
		{verbs.AttrRNRRetry, a.RNRRetry > 7, "RNRRetry: want at most 7", a.RNRRetry},
	} {
		if mask&f.bit != 0 && f.bad {
			return false, verbs.Invalidf("QPAttr.%s, not %v", f.what, f.value)
		}
	}
	return global, nil
}

func (q *qp) Endpoint() (verbs.Endpoint, error) { return withResult(q.do, "endpoint", q.endpoint) }

func (q *qp) endpoint() (verbs.Endpoint, error) {
	x := q.pd.ctx
	port, err := x.port(int(q.port))
	if err != nil {
		return verbs.Endpoint{}, err
	}
	e := verbs.Endpoint{QPN: q.num, PSN: q.psn, LID: port.LID, GID: q.gid.GID, MTU: port.ActiveMTU}
	switch q.typ {
	case verbs.RC:
		e.MaxRdAtomic = uint8(min(x.attr.MaxQPInitRdAtomic, 255))
		e.MaxDestRdAtomic = uint8(min(x.attr.MaxQPRdAtomic, 255))
	case verbs.UC:
	case verbs.UD:
		e.QKey = verbs.DefaultQKey
		if q.attr.QKey != 0 {
			e.QKey = q.attr.QKey
		}
	}
	return e, nil
}

// Connect moves the QP to RTS with Modify. The path MTU is the smaller one of both ports.
func (q *qp) Connect(remote verbs.Endpoint) error {
	local, err := q.Endpoint()
	if err != nil {
		return err
	}
	if q.typ != verbs.UD {
		if err := remote.Validate(); err != nil {
			return q.opError("connect QP", err)
		}
	}
	attr := verbs.ConnectAttr(local, remote, q.port, q.gid.Index)
	q.path.Apply(&attr)
	return verbs.ConnectWith(q, attr)
}
