package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/service"
	ibpeer "ibverbx/peer"
)

// Timeouts for establishing a session.
const (
	helloTime = 10 * time.Second
	joinTime  = 10 * time.Second
)

// session is a connection with a peer's process, from hello until loss. One goroutine runs it.
type session struct {
	peer *Peer
	conn *bootstrap.Conn
	// route is the dialed route; nil if the peer dialed.
	route *route
	// id is a random number chosen by the dialer.
	id uint64
	// number counts the Peer's sessions.
	number uint64
	// incarnation identifies the peer's process.
	incarnation uint64

	// ctx is canceled when the session is lost; its cause is the reason.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// done is closed once the VirtualQP is closed, so that the session can neither post nor receive.
	done chan struct{}

	// services records the services of both sides.
	services services
	// earlyImmediate holds immediates waiting for Up. The shard's lock guards it.
	early []earlyImmediate

	// mu guards the next two fields.
	mu sync.Mutex
	// interrupt interrupts the wait for a message; nil while not waiting.
	interrupt context.CancelFunc
	// woken makes the next wait for a message return immediately.
	woken bool

	// park is set when the session is due for parking.
	park atomic.Bool
	// parking is set while a sent park is unanswered. Only the session's goroutine uses it.
	parking bool
}

func newSession(ctx context.Context, conn *bootstrap.Conn, r *route, id uint64) *session {
	s := &session{conn: conn, route: r, id: id, incarnation: conn.Peer().Incarnation, done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	return s
}

// dialed reports whether this side has dialed.
func (s *session) dialed() bool { return s.route != nil }

// End implements service.Session.
func (s *session) End(cause error) { s.cancel(cause) }

// Peer implements service.Session.
func (s *session) Peer() service.Peer { return servicePeer{s.peer} }

// Number implements service.Session.
func (s *session) Number() uint64 { return s.number }

// Incarnation implements service.Session.
func (s *session) Incarnation() uint64 { return s.incarnation }

// Send implements service.Session.
func (s *session) Send(ctx context.Context, id service.ID, body []byte) error {
	if s.ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrLost, context.Cause(s.ctx))
	}
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)() // closing the session waits for Handlers that are sending
	err := s.conn.Send(both, bootstrap.KindService, append([]byte{byte(id)}, body...))
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, bootstrap.ErrTooLong):
		return err
	case s.ctx.Err() != nil:
		err = context.Cause(s.ctx)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

func (s *session) send(m message) error {
	return s.conn.Send(s.ctx, bootstrap.KindService, m.encode())
}

// wake wakes the session's goroutine to check for work. It never blocks.
func (s *session) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.woken = true
	if s.interrupt != nil {
		s.interrupt()
	}
}

// errWoken interrupts a wait for a message.
var errWoken = errors.New("poked")

// next returns the next service message, errWoken, or the reason for the session's loss.
func (s *session) next() ([]byte, error) {
	s.mu.Lock()
	poked := s.woken
	s.woken = false
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	s.interrupt = cancel
	s.mu.Unlock()
	if poked {
		return nil, errWoken
	}
	m, err := s.conn.Recv(ctx)
	s.mu.Lock()
	s.interrupt = nil
	s.mu.Unlock()
	switch {
	case s.ctx.Err() != nil:
		return nil, context.Cause(s.ctx)
	case err != nil && ctx.Err() != nil:
		return nil, errWoken
	case err != nil:
		return nil, err
	case m.Kind != bootstrap.KindService || len(m.Body) == 0:
		return nil, violation("a message of kind %d and %d bytes in a session", m.Kind, len(m.Body))
	}
	return m.Body, nil
}

// run creates the VirtualQP and runs the session. It returns the reason for its loss.
func (s *session) run() error {
	for {
		made, err := s.joinQP()
		if err != nil {
			return err
		}
		err = s.serve()
		s.detachQP()
		if orderly(context.Cause(s.ctx)) { // the peer finds out from the connection, before its requests fail
			s.conn.Farewell()
		}
		err = errors.Join(err, made.Close())
		if !errors.Is(err, errParked) {
			return err
		}
		s.peer.node.sessionParked(s)
		if err := s.waitParked(); err != nil {
			return err
		}
	}
}

// joinQP creates the VirtualQP with the peer and starts using it.
func (s *session) joinQP() (*ibpeer.Session, error) {
	p := s.peer
	n := p.node
	cfg := n.peerConfig(p)
	cfg.OnServiceMessage = func(body []byte) {
		if s.ctx.Err() != nil {
			return
		}
		if err := s.handleWhileJoining(body); err != nil {
			s.End(err)
			_ = s.conn.CloseWith(err.Error()) // makes Connect return, with another error
		}
	}
	made, err := ibpeer.Connect(s.ctx, s.conn, s.dialed(), cfg)
	if err != nil {
		return nil, cmp.Or(context.Cause(s.ctx), err)
	}
	if s.ctx.Err() != nil {
		return nil, errors.Join(context.Cause(s.ctx), made.Close())
	}
	s.bringUp()
	n.sessionReady(s, made)
	p.shard.do(func() { p.queue.install(made.QP, made.Agreed.SendDepth-1) })
	return made, nil
}

// partTime bounds the wait for the completion that identifies the failed request.
const partTime = 100 * time.Millisecond

// detachQP stops using the VirtualQP. It polls first: completions may carry notifications, which would be lost, or identify the failed
// operation.
func (s *session) detachQP() {
	p := s.peer
	q := &p.queue
	for limit := time.Now().Add(partTime); ; time.Sleep(100 * time.Microsecond) {
		waits := false
		p.shard.do(func() {
			for range rounds {
				if p.shard.postAndPoll() == 0 {
					break
				}
			}
			waits = q.broken && !q.settled && q.ledger.Len() > 0
		})
		if !waits || time.Now().After(limit) {
			break
		}
	}
	p.shard.do(q.detach)
	p.tally.close()
}

// serve handles messages while the VirtualQP exists.
func (s *session) serve() error {
	for {
		s.bringUp()
		if err := s.suggestPark(); err != nil {
			return err
		}
		if err := s.handleNext(s.parkMessage); err != nil {
			return err
		}
	}
}

// handleNext waits for a message and handles it. It also returns after wake.
func (s *session) handleNext(other func(messageKind) error) error {
	body, err := s.next()
	switch {
	case errors.Is(err, errWoken):
		return nil
	case err != nil:
		return err
	}
	return s.handle(body, other)
}

// handle handles a message. It calls other for this package's messages except hello.
func (s *session) handle(body []byte, other func(messageKind) error) error {
	if service.ID(body[0]) != service.NodeID {
		s.dispatch(body)
		return nil
	}
	m, err := decode(body)
	switch {
	case err != nil:
		return err
	case m.kind == kindHello:
		return s.meet(&m)
	}
	return other(m.kind)
}

// handleWhileJoining handles a message that arrives during joinQP.
func (s *session) handleWhileJoining(body []byte) error {
	if len(body) == 0 {
		return violation("a message without bytes")
	}
	return s.handle(body, func(kind messageKind) error {
		if kind != kindWake || !s.dialed() {
			return violation("a message of type %d while connecting", kind)
		}
		return nil
	})
}

// finish closes an admitted session.
func (s *session) finish(cause error) {
	p := s.peer
	s.cancel(cause)
	cause = context.Cause(s.ctx)
	s.bringDown(cause)
	p.node.sessionLost(s, cause)
	close(s.done)
}

// peerConfig returns the configuration of VirtualQPs with a Peer.
func (n *Node) peerConfig(p *Peer) ibpeer.Config {
	return ibpeer.Config{
		SharedCQ: p.shard.withCQ, Fabric: n.cfg.Opened(), Timeout: joinTime,
		Schemes: []ibverbx.Scheme{ibverbx.Tally},
		QP: ibverbx.Config{
			Lanes: p.realm.lanes, SendDepth: sendDepth, RecvDepth: recvDepth, LaneDepth: laneDepth, NotifyDepth: notifyDepth,
			Now: p.shard.now, Log: n.laneLog(),
		},
		Minimum: ibpeer.Limits{SendDepth: minDepth, LaneDepth: minDepth, RecvDepth: recvDepth},
	}
}
