package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/verbs"
)

// maxPeers limits the number of known peers. Lost ones are removed after Config.LostTimeout.
const maxPeers = 1 << 12

// errReplaced closes a session that the peer has replaced.
var errReplaced = fmt.Errorf("%w: a newer one replaces it", ErrLost)

// greet exchanges hellos on a connection and decides whether it becomes a session. r is the route of a dialed connection, nil otherwise. On
// error it closes the connection.
func (n *Node) greet(ctx context.Context, conn *bootstrap.Conn, r *route) (s *session, err error) {
	ctx, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	if r != nil {
		s, err = n.dialHello(ctx, conn, r)
	} else {
		s, err = n.acceptHello(ctx, conn)
	}
	if err == nil {
		return s, nil
	}
	if s != nil && s.ctx.Err() != nil {
		err = context.Cause(s.ctx)
	}
	n.mu.Lock()
	if duplicate(err) {
		n.counts.Duplicates++
	} else {
		n.counts.Refused++
	}
	n.mu.Unlock()
	err = fmt.Errorf("session with %v: %w", conn.Peer().Addr, err)
	if s != nil {
		s.finish(err)
	}
	return nil, errors.Join(err, conn.CloseWith(reason(err)))
}

// dialHello is the dialer's part of greet. It closes an existing session with the peer before
// sending the hello, so that no data of that session can land in the next one.
func (n *Node) dialHello(ctx context.Context, conn *bootstrap.Conn, r *route) (*session, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := newSession(n.ctx, conn, r, rand.Uint64N(1<<63)+1)
	resume, err := n.admit(s, 0)
	if err != nil {
		s.cancel(err)
		return nil, err
	}
	defer context.AfterFunc(s.ctx, cancel)() // another session may replace this one
	hello := s.hello(nil)
	hello.resume = resume
	if err := conn.Send(ctx, bootstrap.KindService, hello.encode()); err != nil {
		return s, err
	}
	m, err := recvMessage(ctx, conn)
	if err == nil {
		err = s.welcomed(&m)
	}
	if err != nil {
		return s, err
	}
	return s, s.sendServices(ctx)
}

// welcomed processes the response to the dialer's hello.
func (s *session) welcomed(m *message) error {
	switch {
	case m.kind == kindRefuse && m.code == refusedVersion:
		m.lowest, m.highest = silentVersion, silentVersion
	case m.kind == kindRefuse:
		return &refusedError{code: m.code, byPeer: true}
	case m.kind != kindHello:
		return violation("the response to a hello is of type %d", m.kind)
	}
	if err := agree(m); err != nil {
		return err
	}
	return s.meet(m)
}

// acceptHello is the listener's part of greet.
func (n *Node) acceptHello(ctx context.Context, conn *bootstrap.Conn) (*session, error) {
	m, err := recvMessage(ctx, conn)
	switch {
	case err != nil:
		return nil, err
	case m.kind != kindHello:
		return nil, violation("the first message is of type %d, want a hello", m.kind)
	}
	s := newSession(n.ctx, conn, nil, m.session)
	if err = agree(&m); err == nil {
		_, err = n.admit(s, m.resume)
	} else if m.highest > silentVersion { // older peers get the reason when the connection closes
		hello := s.hello(nil)
		_ = conn.Send(ctx, bootstrap.KindService, hello.encode()) // err is returned anyway
	}
	var refused *refusedError
	if errors.As(err, &refused) {
		_ = conn.Send(ctx, bootstrap.KindService, (&message{kind: kindRefuse, code: refused.code}).encode()) // err is returned anyway
	}
	if err != nil {
		s.cancel(err)
		return nil, err
	}
	if err := s.meet(&m); err != nil {
		return s, err
	}
	return s, s.sendServices(ctx)
}

// recvMessage receives a message of this package.
func recvMessage(ctx context.Context, conn *bootstrap.Conn) (message, error) {
	m, err := conn.Recv(ctx)
	if err != nil {
		return message{}, err
	}
	if m.Kind != bootstrap.KindService {
		return message{}, violation("a message of kind %d, want a hello", m.Kind)
	}
	return decode(m.Body)
}

// admit makes s its Peer's session and returns the id of the previous one, after waiting for it to
// close. On error, s is not a session. resume is the hello's field if the peer dialed.
func (n *Node) admit(s *session, resume uint64) (last uint64, err error) {
	id := s.conn.Peer()
	realm, err := n.realmOf(id)
	if err != nil {
		return 0, err
	}
	n.mu.Lock()
	p, err := n.peerOf(id, realm, s.route)
	if err == nil && p == nil {
		p, err = n.newPeer(id, realm, s.route)
	}
	var old *session
	if err == nil {
		if old, last, err = p.replaceSession(s, n.auth.Incarnation, resume); err != nil {
			n.found(s.route, p)
		}
	}
	n.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if old != nil {
		old.End(errReplaced)
		<-old.done
	}
	p.shard.do(func() { p.queue.attach(s) })
	return last, nil
}

// peerOf returns the Peer with an identity, or nil. The lock is held.
func (n *Node) peerOf(id bootstrap.Peer, realm *realm, r *route) (*Peer, error) {
	key, base := identify(id)
	p := n.peers[key]
	switch {
	case n.leaving, r != nil && r.ctx.Err() != nil:
		return nil, ErrClosed // a closed Peer must not return
	case id.Incarnation == n.auth.Incarnation:
		return nil, fmt.Errorf("%w: the address belongs to this Node", ErrRefused)
	case r != nil && r.peer != nil && r.peer.base != base:
		return nil, fmt.Errorf("%w: at %s is %w", ErrRefused, r.addr, ErrOther)
	case p == nil && r != nil && r.peer != nil && r.peer.state != StateClosed:
		p = r.peer // a process without a name was restarted
		delete(n.peers, p.key)
		p.key = key
		n.peers[key] = p
	case p == nil && len(n.peers) >= maxPeers:
		return nil, &refusedError{code: refusedLimit}
	}
	if p != nil && p.realm != realm {
		return nil, &refusedError{code: refusedRealm}
	}
	return p, nil
}

// newPeer creates a Peer, unless another goroutine does so meanwhile. The lock is held, but released while a shard is chosen.
func (n *Node) newPeer(id bootstrap.Peer, realm *realm, r *route) (*Peer, error) {
	n.mu.Unlock()
	on, err := realm.reserve()
	n.mu.Lock()
	if err != nil {
		return nil, errors.Join(err, &refusedError{code: refusedLimit})
	}
	if p, err := n.peerOf(id, realm, r); p != nil || err != nil {
		realm.release(on)
		return p, err
	}
	p := &Peer{node: n, realm: realm, shard: on}
	p.key, p.base = identify(id)
	p.host, _ = n.hosts.Of(id.Addr)
	p.queue = queue{shard: on, window: n.cfg.Window}
	n.peers[p.key] = p
	return p, nil
}

// replaceSession makes s the current session, unless it is a duplicate. It returns the session it replaces, and the id of the newest one. The lock is
// held. mine is the local incarnation.
//
// A peer that dials again has lost its session. If both sides have dialed and both hellos are out, the connection dialed by the smaller
// incarnation survives. An established session survives too, unless the peer reports it as lost. This side does not send a hello while it
// has a session or is establishing one.
func (p *Peer) replaceSession(s *session, mine, resume uint64) (old *session, last uint64, err error) {
	old, last = p.current, p.last
	made := p.state == StateReady || p.state == StateParked
	switch {
	case old == nil || old.incarnation != s.incarnation:
	case s.route != nil, old.route != nil && resume != old.id && (made || mine < s.incarnation):
		err = &refusedError{code: refusedDuplicate}
	}
	if err != nil {
		return nil, 0, err
	}
	p.sessions++
	p.node.adjustCallers(p, 1)
	s.peer, s.number = p, p.sessions
	p.current, p.last, p.identity, p.idleChecks = s, s.id, s.conn.Peer(), 0
	if p.giveUp != nil {
		p.giveUp.Stop()
		p.giveUp = nil
	}
	if !s.dialed() { // if this session is lost soon, the peer can probably be dialed
		p.redial.Raise()
	}
	p.setState(StateConnecting, p.err)
	return old, last, nil
}

// realmOf returns the realm a peer is admitted to, and creates it if necessary.
func (n *Node) realmOf(id bootstrap.Peer) (*realm, error) {
	var a Grant
	if n.cfg.Authorize != nil {
		var err error
		if a, err = n.cfg.Authorize(id); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	n.creating.Lock()
	defer n.creating.Unlock()
	n.mu.Lock()
	r, count := n.realms[a.Realm], len(n.realms)
	n.mu.Unlock()
	switch {
	case r != nil:
		return r, nil
	case count >= maxRealms:
		return nil, errors.Join(&refusedError{code: refusedLimit}, fmt.Errorf("%w: there are %d realms", verbs.ErrLimit, maxRealms))
	case len(a.Realm) > maxRealmName:
		return nil, fmt.Errorf("%w: %w", ErrRefused, verbs.Invalidf("the name of a realm has %d bytes, want at most %d", len(a.Realm), maxRealmName))
	}
	rails, err := n.realms[""].rails.Fork()
	if err != nil {
		return nil, err
	}
	if r, err = newRealm(a.Realm, rails, 1, n.cfg.Lanes, n.cfg.cqDepth); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.realms[a.Realm] = r
	return r, nil
}

// giveUp fails the operations of a Peer after LostTimeout, and removes a Peer that this side cannot dial.
func (n *Node) giveUp(p *Peer) {
	p.calling.Lock() // so that Up of the next session follows Gone
	defer p.calling.Unlock()
	n.mu.Lock()
	lost, sessions, cause := p.state == StateLost && p.current == nil, p.sessions, p.err
	if !lost {
		n.mu.Unlock()
		return
	}
	n.adjustCallers(p, 1)
	n.mu.Unlock()
	err := fmt.Errorf("%w: %w", ErrPeerGone, cause)
	p.shard.do(func() {
		if p.queue.session == nil && !p.queue.closed {
			p.queue.refuseAll(err)
		}
	})
	n.mu.Lock()
	if p.sessions == sessions && p.routes == 0 {
		n.remove(p, err)
	}
	n.mu.Unlock()
	p.callGone(err)
	n.mu.Lock()
	n.adjustCallers(p, -1)
	n.mu.Unlock()
}

// waitFor waits for d. It returns false if ctx is done first.
func waitFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
