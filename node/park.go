package node

import "errors"

// An idle session is parked: both sides close its VirtualQP and keep the connection. See wire.go for the messages.

// parkIdle parks idle sessions: those without activity in two consecutive checks.
func (n *Node) parkIdle() {
	for waitFor(n.ctx, n.cfg.IdleAfter/2) {
		n.mu.Lock()
		for _, p := range n.peers {
			if activity := p.queue.counts.activity.Load(); activity != p.seenActivity {
				p.seenActivity, p.idleChecks = activity, 0
			} else if p.idleChecks++; p.idleChecks >= 2 && p.state == StateReady {
				p.current.park.Store(true)
				p.current.wake()
			}
		}
		n.mu.Unlock()
	}
}

// sessionParked records that a session is parked.
func (n *Node) sessionParked(s *session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.peer.current == s && s.peer.state == StateReady {
		s.peer.setState(StateParked, nil)
	}
}

// idle reports whether the Peer was unused since the Node's last check.
func (p *Peer) idle() bool {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	return p.queue.counts.activity.Load() == p.seenActivity && p.node.cfg.IdleAfter > 0
}

// errParked makes attend return, so that the VirtualQP is closed.
var errParked = errors.New("parked")

// parkMessage handles a message about parking while the VirtualQP exists.
func (s *session) parkMessage(kind messageKind) error {
	switch {
	case kind == kindPark && s.parking, kind == kindParked && s.parking:
		return errParked
	case kind == kindPark:
		if !s.peer.idle() || !s.pause() {
			return s.send(message{kind: kindBusy})
		}
		if err := s.send(message{kind: kindParked}); err != nil {
			return err
		}
		return errParked
	case kind == kindBusy && s.parking:
		s.parking = false
		s.peer.shard.do(s.peer.queue.resume)
		return nil
	}
	return violation("a message of type %d in a session that is not parked", kind)
}

// pause stops posting if no operation is outstanding.
func (s *session) pause() (paused bool) {
	s.peer.shard.do(func() { paused = s.peer.queue.pause() })
	return paused
}

// suggestPark proposes parking to the peer if parking is due and no operation is outstanding.
func (s *session) suggestPark() error {
	if !s.park.Swap(false) || s.parking || !s.pause() {
		return nil
	}
	s.parking = true
	return s.send(message{kind: kindPark})
}

// waitParked handles messages while the session is parked.
func (s *session) waitParked() error {
	s.parking = false
	for asked, woken := false, false; !woken; {
		s.bringUp()
		wanted := false
		s.peer.shard.do(func() { wanted = s.peer.queue.ops > 0 })
		if wanted && !asked {
			asked = true
			if err := s.send(message{kind: kindWake}); err != nil || s.dialed() {
				return err
			}
		}
		err := s.handleNext(func(kind messageKind) error {
			if kind != kindWake {
				return violation("a message of type %d in a session that is parked", kind)
			}
			if woken = true; s.dialed() {
				return s.send(message{kind: kindWake})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// pause stops posting if no operation is queued, and reports whether it did.
func (q *queue) pause() bool {
	if q.ops > 0 || q.qp == nil || q.broken {
		return false
	}
	q.paused = true
	return true
}

// resume posts again after a pause.
func (q *queue) resume() {
	q.paused = false
	if q.broken {
		q.session.End(ErrLost)
	}
	q.schedule()
}
