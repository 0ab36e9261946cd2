package cm

import (
	"syscall"
	"time"
)

// ackTimeout is the default acknowledgement timeout of QPs as a code: 0.27 s.
const ackTimeout = 16

// timewait is the delay of a TimewaitExit after a Disconnected.
const timewait = 500 * time.Millisecond

// maxRetry is the maximum retry count: a REQ has 3 bits for it. libfabric passes 15.
const maxRetry = 7

// side returns the description of this side of a connection, without parameters.
func (m *Manager) side(i *id) Side {
	s := Side{GID: i.device.GID, LID: i.device.LID, MTU: i.device.MTU, PSN: m.cfg.Random() & 0xffffff, Timeout: ackTimeout}
	if i.ackTimeout != 0 {
		s.Timeout = i.ackTimeout
	}
	return s
}

// setParam stores the parameters of this side. It returns EINVAL if the private data exceeds limit.
func (i *id) setParam(p *Param, data []byte, limit int) error {
	q := *p
	if err := q.Private.set(data, limit); err != nil {
		return err
	}
	q.QPN &= 0xffffff
	q.Retry, q.RNRRetry = min(q.Retry, maxRetry), min(q.RNRRetry, maxRetry)
	i.own.Param, i.depth, i.resources = q, q.InitiatorDepth, q.ResponderResources
	return nil
}

// Connect requests a connection. data is the private data, at most 56 bytes. ConnectResponse, Rejected or Unreachable follows. For
// datagrams, the limit is 180 bytes, and Established or Unreachable follows.
func (f *File) Connect(number uint32, p *Param, data []byte) error {
	return f.with(number, func(i *id) error {
		if i.state != stateRouted {
			return syscall.EINVAL
		}
		i.own = i.m.side(i)
		if err := i.setParam(p, data, int(i.limits().request)); err != nil {
			return err
		}
		i.m.report("rdma_cm: connects from %s to %s", i.local, i.remote)
		i.state, i.retry = stateRequested, i.own.Param.Retry
		i.conn = i.port.Connect(&Message{Kind: REQ, Space: i.space, Port: i.local.Port(), Side: i.own}, i)
		return nil
	})
}

// Accept accepts the request behind a passive id, which the program calls uid from now on. data is the private data, at most 196
// bytes (136 for datagrams). Established follows, but not for datagrams, which are complete.
func (f *File) Accept(number uint32, uid uint64, p *Param, data []byte) error {
	return f.with(number, func(i *id) error {
		if i.state != stateIncoming {
			return syscall.EINVAL
		}
		if err := i.setParam(p, data, int(i.limits().response)); err != nil {
			return err
		}
		i.m.report("rdma_cm: accepts a connection from %s at %s", i.remote, i.local)
		i.uid, i.state = uid, stateAccepted
		i.own.MTU = min(i.own.MTU, i.peer.MTU)
		if i.space == SpaceUDP {
			i.acceptDatagrams()
			return nil
		}
		i.conn.Send(&Message{Kind: REP, Side: i.own})
		return nil
	})
}

// Confirm completes an active connection after a ConnectResponse.
func (f *File) Confirm(number uint32) error {
	return f.with(number, func(i *id) error {
		if i.state != stateReplied {
			return syscall.EINVAL
		}
		i.state = stateConnected
		i.conn.Send(&Message{Kind: RTU})
		return nil
	})
}

// Reject refuses a request, or a response. data is the private data, at most 148 bytes.
func (f *File) Reject(number uint32, reason uint8, data []byte) error {
	return f.with(number, func(i *id) error {
		if i.state != stateIncoming && i.state != stateReplied {
			return syscall.EINVAL
		}
		m := &Message{Kind: REJ, Reason: RejectConsumer}
		if reason != 0 {
			m.Reason = uint16(reason)
		}
		if err := m.Side.Param.Private.set(data, privateREJ); err != nil {
			return err
		}
		i.conn.Send(m)
		i.setOver()
		return nil
	})
}

// Disconnect closes a connection. Disconnected follows, on both sides. A closed or unestablished
// connection is not affected.
func (f *File) Disconnect(number uint32) error {
	return f.with(number, func(i *id) error {
		switch i.state {
		case stateConnected:
			i.state = stateLeaving
			i.conn.Send(&Message{Kind: DREQ})
		case stateLeaving, stateOver, stateRequested, stateReplied, stateIncoming, stateAccepted:
		default:
			return syscall.EINVAL
		}
		return nil
	})
}

// NotifyEstablished reports that data has arrived on an accepted connection's QP, so the peer is
// connected.
func (f *File) NotifyEstablished(number uint32) error {
	return f.with(number, func(i *id) error {
		switch i.state {
		case stateAccepted:
			i.state = stateConnected
			i.post(Established, 0, Param{})
		case stateConnected:
			return syscall.EISCONN
		default:
			return syscall.EINVAL
		}
		return nil
	})
}

// Received implements Handler. Messages that do not match the state are ignored.
func (i *id) Received(m *Message) {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	switch m.Kind {
	case REQ: // only the first message
	case REP:
		switch {
		case i.state != stateRequested:
		case i.space == SpaceUDP:
			i.datagramsAccepted(m)
		default:
			i.replied(m)
		}
	case RTU:
		if i.state == stateAccepted {
			i.state = stateConnected
			i.post(Established, 0, Param{})
		}
	case REJ:
		if i.handshaking() {
			i.rejected(m.Reason, m.Side.Param.Private)
		}
	case DREQ:
		if i.state == stateReplied || i.state == stateAccepted || i.state == stateConnected || i.state == stateLeaving {
			i.conn.Send(&Message{Kind: DREP})
			i.left()
		}
	case DREP:
		if i.state == stateLeaving {
			i.disconnected()
		}
	}
}

func (i *id) handshaking() bool {
	return i.state == stateRequested || i.state == stateReplied || i.state == stateIncoming || i.state == stateAccepted
}

// replied handles a REP.
func (i *id) replied(m *Message) {
	i.state, i.peer = stateReplied, m.Side
	i.own.MTU = min(i.own.MTU, i.peer.MTU)
	p := m.Side.Param
	i.depth, i.resources = p.ResponderResources, p.InitiatorDepth
	p.ResponderResources, p.InitiatorDepth = p.InitiatorDepth, p.ResponderResources
	p.Private = p.Private.padded(privateREP)
	i.post(ConnectResponse, 0, p)
}

// A program may poll a connection's completions for up to pollGrace before it is notified of the
// peer's disconnection; pollCheck is the interval between checks. With hardware, a DREQ arrives
// long after the preceding acknowledgements. Here, both may wait for a process to be scheduled, and
// programs such as libfabric discard successful requests if DISCONNECTED arrives first.
const (
	pollGrace = 100 * time.Millisecond
	pollCheck = time.Millisecond
)

// left completes a disconnection by the peer.
func (i *id) left() {
	if i.state == stateLeaving || i.m.cfg.Unreported == nil {
		i.disconnected()
		return
	}
	i.setOver()
	i.leaveIn(0, pollGrace)
}

// leaveIn reports a disconnection after wait, or after up to grace while completions are not
// polled.
func (i *id) leaveIn(wait, grace time.Duration) {
	qpn := i.own.Param.QPN
	i.stopTimer = i.m.cfg.Later(wait, func() {
		unreported := grace > 0 && i.m.cfg.Unreported(qpn)
		i.m.mu.Lock()
		defer i.m.mu.Unlock()
		switch {
		case i.state != stateOver:
		case unreported:
			i.leaveIn(pollCheck, grace-pollCheck)
		default:
			i.disconnected()
		}
	})
}

// disconnected reports a disconnection.
func (i *id) disconnected() {
	i.setOver()
	i.post(Disconnected, 0, Param{})
	i.stopTimer = i.m.cfg.Later(timewait, func() {
		i.m.mu.Lock()
		defer i.m.mu.Unlock()
		if i.state == stateOver {
			i.post(TimewaitExit, 0, Param{})
		}
	})
}

// Lost implements Handler. For a killed process, the kernel would destroy its ids, so a program
// receives the same events here.
func (i *id) Lost(why syscall.Errno) {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	switch {
	case i.state == stateConnected || i.state == stateLeaving:
		i.left()
	case !i.handshaking():
	case why != 0:
		i.setOver()
		i.post(Unreachable, -int32(why), Param{})
	default:
		i.rejected(RejectConsumer, Private{})
	}
}

// rejected completes a refused request.
func (i *id) rejected(reason uint16, data Private) {
	i.setOver()
	switch {
	case i.space != SpaceUDP:
		i.post(Rejected, int32(reason), Param{Private: data.padded(privateREJ)})
	case reason == RejectNoListener:
		i.post(Unreachable, sidrUnsupported, Param{})
	default:
		i.post(Unreachable, sidrReject, Param{})
	}
}
