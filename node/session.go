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

// Bounds of the time that a peer takes to make a session.
const (
	helloTime = 10 * time.Second
	joinTime  = 10 * time.Second
)

// session is a connection with a peer's process, from hello until its end. One goroutine runs it.
type session struct {
	peer *Peer
	conn *bootstrap.Conn
	// route is the one that this side has dialed; nil if the peer has.
	route *route
	// id is a random number that the dialer gives the session.
	id uint64
	// number counts the sessions of the Peer.
	number uint64
	// incarnation is that of the peer's process.
	incarnation uint64

	// ctx ends with the session. Its cause is why.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// done is closed when the VirtualQP is closed, and nothing of this session is posted or lands any more.
	done chan struct{}

	// services are those of both sides.
	services services
	// early are the immediates that wait for Up. The lock of the shard guards them.
	early []early

	// mu guards the two below.
	mu sync.Mutex
	// rouse ends the wait for a message. It is nil if no wait is under way.
	rouse context.CancelFunc
	// poked means that the next wait for a message ends at once.
	poked bool

	// park means that the session shall be parked.
	park atomic.Bool
	// parking means that this side has sent a park and has no answer. Only the session's goroutine uses it.
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
	defer context.AfterFunc(s.ctx, cancel)() // the end of the session waits for Handlers that send
	err := s.conn.Send(both, bootstrap.KindService, append([]byte{byte(id)}, body...))
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, bootstrap.ErrTooLong):
		return err
	case s.ctx.Err() != nil:
		err = context.Cause(s.ctx)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

func (s *session) say(m message) error {
	return s.conn.Send(s.ctx, bootstrap.KindService, m.encode())
}

// poke makes the goroutine of the session look at what it has to do. It never blocks.
func (s *session) poke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.poked = true
	if s.rouse != nil {
		s.rouse()
	}
}

// errPoked ends a wait for a message.
var errPoked = errors.New("poked")

// next returns the next message of a service, errPoked, or why the session has ended.
func (s *session) next() ([]byte, error) {
	s.mu.Lock()
	poked := s.poked
	s.poked = false
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	s.rouse = cancel
	s.mu.Unlock()
	if poked {
		return nil, errPoked
	}
	m, err := s.conn.Recv(ctx)
	s.mu.Lock()
	s.rouse = nil
	s.mu.Unlock()
	switch {
	case s.ctx.Err() != nil:
		return nil, context.Cause(s.ctx)
	case err != nil && ctx.Err() != nil:
		return nil, errPoked
	case err != nil:
		return nil, err
	case m.Kind != bootstrap.KindService || len(m.Body) == 0:
		return nil, violation("a message of kind %d and %d bytes in a session", m.Kind, len(m.Body))
	}
	return m.Body, nil
}

// run makes the VirtualQP and attends to the session until it ends. It returns why.
func (s *session) run() error {
	for {
		made, err := s.join()
		if err != nil {
			return err
		}
		err = s.attend()
		s.part()
		err = errors.Join(err, made.Close())
		if !errors.Is(err, errParked) {
			return err
		}
		s.peer.node.parked(s)
		if err := s.rest(); err != nil {
			return err
		}
	}
}

// join makes the VirtualQP with the peer and begins to use it.
func (s *session) join() (*ibpeer.Session, error) {
	p := s.peer
	n := p.node
	cfg := n.peerConfig(p)
	cfg.OnServiceMessage = func(body []byte) {
		if s.ctx.Err() != nil {
			return
		}
		if err := s.aside(body); err != nil {
			s.End(err)
			_ = s.conn.CloseWith(err.Error()) // ends Connect, which reports another error
		}
	}
	made, err := ibpeer.Connect(s.ctx, s.conn, s.dialed(), cfg)
	if err != nil {
		return nil, cmp.Or(context.Cause(s.ctx), err)
	}
	if s.ctx.Err() != nil {
		return nil, errors.Join(context.Cause(s.ctx), made.Close())
	}
	s.raise()
	n.ready(s, made)
	p.shard.do(func() { p.queue.install(made.QP, made.Agreed.SendDepth-1) })
	return made, nil
}

// partTime is how long a VirtualQP that has failed may take to say which request has.
const partTime = 100 * time.Millisecond

// part stops using the VirtualQP. Completions that are there are taken first: notifications among them would be lost, and one may say which
// operation is to blame.
func (s *session) part() {
	p := s.peer
	q := &p.queue
	for limit := time.Now().Add(partTime); ; time.Sleep(100 * time.Microsecond) {
		waits := false
		p.shard.do(func() {
			for range rounds {
				if p.shard.turn() == 0 {
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
	p.node.unready(s)
}

// attend handles messages while there is a VirtualQP.
func (s *session) attend() error {
	for {
		s.raise()
		if err := s.suggestPark(); err != nil {
			return err
		}
		if err := s.handleNext(s.parkMessage); err != nil {
			return err
		}
	}
}

// handleNext waits for a message and handles it. It also returns after poke.
func (s *session) handleNext(other func(messageKind) error) error {
	body, err := s.next()
	switch {
	case errors.Is(err, errPoked):
		return nil
	case err != nil:
		return err
	}
	return s.handle(body, other)
}

// handle handles a message: it calls other for messages of this package that are not a hello.
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

// aside takes a message that arrives while a VirtualQP is made.
func (s *session) aside(body []byte) error {
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

// finish ends a session that was admitted.
func (s *session) finish(cause error) {
	p := s.peer
	s.cancel(cause)
	cause = context.Cause(s.ctx)
	s.lower(cause)
	p.node.lost(s, cause)
	close(s.done)
}

// peerConfig is how VirtualQPs with a Peer are made.
func (n *Node) peerConfig(p *Peer) ibpeer.Config {
	return ibpeer.Config{
		SharedCQ: p.shard.on, PeerNetworks: n.cfg.PeerNetworks, Unsealed: n.cfg.Unsealed, Timeout: joinTime,
		Schemes: []ibverbx.Scheme{ibverbx.Tally},
		QP: ibverbx.Config{
			Lanes: p.realm.lanes, SendDepth: sendDepth, RecvDepth: recvDepth, LaneDepth: laneDepth, NotifyDepth: notifyDepth,
			Now: p.shard.now,
		},
		Minimum: ibpeer.Limits{SendDepth: minDepth, LaneDepth: minDepth, RecvDepth: recvDepth},
	}
}
