package transfer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"

	"ibverbx/internal/service"
	"ibverbx/node"
	"ibverbx/verbs"
)

// Engine moves memory between this process and its peers.
//
// Locks: a shard's lock, then a Peer's mu, then mu or the inbox's mu. No method of package service is called with one of the latter three.
type Engine struct {
	cfg     Config
	service service.Node
	// workers bounds how many goroutines compute digests.
	workers chan struct{}
	loads   sync.Pool // of *load
	waiters sync.Pool // of *waiter
	stages  sync.Pool // of *[maxRange]byte, for digests of memory of devices
	inbox   inbox
	// done is closed when Close begins.
	done chan struct{}

	mu       sync.Mutex
	closed   bool
	segments map[string]*Segment
	all      map[*Segment]struct{} // those without a name too
	peers    map[service.Peer]*Peer
	grants   uint32 // the number of the last grant
}

// maxWorkers is how many goroutines compute digests at most.
const maxWorkers = 4

// Classes of immediates.
const (
	classNote   = 1
	classCredit = 5
)

// New returns an Engine on a Node.
func New(cfg Config) (*Engine, error) {
	if cfg.Node == nil {
		return nil, newError("new", nil, "", verbs.Invalidf("Config.Node is not set"))
	}
	return newEngine(cfg, cfg.Node.Service())
}

func newEngine(cfg Config, n service.Node) (*Engine, error) {
	if cfg.Queue < 0 || cfg.Queue > maxQueue {
		return nil, newError("new", nil, "", verbs.Invalidf("Queue %d: want 0 to %d", cfg.Queue, maxQueue))
	}
	if cfg.Queue == 0 {
		cfg.Queue = defaultQueue
	}
	e := &Engine{
		cfg: cfg, service: n,
		workers:  make(chan struct{}, max(1, min(runtime.GOMAXPROCS(0)/2, maxWorkers))),
		inbox:    inbox{more: make(chan struct{}, 1)},
		done:     make(chan struct{}),
		segments: map[string]*Segment{}, all: map[*Segment]struct{}{}, peers: map[service.Peer]*Peer{},
	}
	e.loads.New = func() any { return &load{} }
	e.stages.New = func() any { return new([maxRange]byte) }
	e.waiters.New = func() any { return &waiter{wake: make(chan struct{}, 1)} }
	if err := n.Attach(service.Service{ID: service.TransferID, Version: version, Classes: 1<<classNote | 1<<classCredit, Handler: e}); err != nil {
		return nil, newError("new", nil, "", err)
	}
	return e, nil
}

// Peer returns the peer that listens at addr, see node.Node.Peer. It waits until the peer has an Engine.
func (e *Engine) Peer(ctx context.Context, addr string) (*Peer, error) {
	np, err := e.cfg.Node.Peer(ctx, addr)
	if err != nil {
		return nil, newError("connect", nil, "", err)
	}
	p := e.peer(np.Service())
	if np.State() == node.StateClosed { // Gone may have been called before p was there
		p.gone(np.Err())
	}
	if _, err := p.link.Ready(ctx); err != nil {
		return nil, newError("connect", p, "", err)
	}
	return p, nil
}

// Node returns Config.Node.
func (e *Engine) Node() *node.Node { return e.cfg.Node }

// Of returns the Peer of a peer of the Node. Unlike Peer it does not wait until the peer has an Engine.
func (e *Engine) Of(p *node.Peer) *Peer { return e.peer(p.Service()) }

// peer returns the Peer for a service.Peer and creates it if it is new.
func (e *Engine) peer(s service.Peer) *Peer {
	if p := e.known(s); p != nil {
		return p
	}
	fresh := newPeer(e, s)
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.peers[s]
	if p == nil {
		p = fresh
		e.peers[s] = p
	}
	return p
}

// known returns the Peer for a service.Peer, or nil. It may be called with the shard's lock.
func (e *Engine) known(s service.Peer) *Peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.peers[s]
}

// Peers returns the peers that are connected and have an Engine, in no order: those that this side has dialed, and those that have dialed
// this side.
func (e *Engine) Peers() []*Peer {
	e.mu.Lock()
	all := e.peerList()
	e.mu.Unlock()
	return slices.DeleteFunc(all, func(p *Peer) bool {
		p.link.Mu.Lock()
		defer p.link.Mu.Unlock()
		return !p.link.Connected()
	})
}

// peerList returns all peers. mu must be held.
func (e *Engine) peerList() []*Peer {
	list := make([]*Peer, 0, len(e.peers))
	for _, p := range e.peers {
		list = append(list, p)
	}
	return list
}

// Close cancels all transfers, takes back all segments (see Segment.Close), ends the sessions and detaches the Engine from its Node. Peers are
// told, and connect again. If transfers do not end before ctx does, it returns an error, frees nothing that they use, and
// can be called again.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		close(e.done)
	}
	peers := e.peerList()
	segments := slices.Collect(maps.Keys(e.all))
	e.mu.Unlock()
	for _, p := range peers {
		p.cancelRunning(func(*Transfer) bool { return true }, ErrClosed)
	}
	var errs []error
	for _, s := range segments {
		errs = append(errs, s.stop(ctx, peers))
	}
	for _, p := range peers {
		errs = append(errs, p.drain(ctx, false))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	e.revoke(ctx, peers, func(l *lending) bool { return l.number != mailboxGrant })
	e.revoke(ctx, peers, func(*lending) bool { return true })
	for _, p := range peers {
		errs = append(errs, p.leave(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	e.service.Detach(service.TransferID)
	for _, s := range segments {
		errs = append(errs, s.free())
	}
	e.mu.Lock()
	peers = e.peerList() // others may have come
	e.mu.Unlock()
	for _, p := range peers {
		p.link.Forget(ErrClosed).end(ErrClosed)
		errs = append(errs, p.mailbox.free())
	}
	return errors.Join(errs...)
}

// leave ends the session, so that another Engine never begins in the middle of one.
func (p *Peer) leave(ctx context.Context) error {
	p.link.Mu.Lock()
	s := p.link.Session
	p.link.Mu.Unlock()
	if s != nil {
		s.End(errors.New("transfer: the engine is closed"))
	}
	return p.drain(ctx, true)
}

// Hello implements service.Handler.
func (e *Engine) Hello(s service.Session) ([]byte, bool) {
	m, err := e.peer(s.Peer()).hello(s)
	if e.check(s, err); m == nil {
		return nil, false
	}
	return m.encode(), true
}

// Up implements service.Handler.
func (e *Engine) Up(s service.Session, body []byte) {
	m, err := decodeHello(body)
	if err == nil {
		err = e.peer(s.Peer()).up(s, m)
	}
	e.check(s, err)
}

// check ends a session because of an error.
func (e *Engine) check(s service.Session, err error) {
	if err != nil {
		s.End(fmt.Errorf("transfer: %w", err))
	}
}

// Down implements service.Handler.
func (e *Engine) Down(s service.Session, cause error) {
	_ = cause
	if p := e.known(s.Peer()); p != nil {
		p.link.Down(s)
	}
}

// Gone implements service.Handler.
func (e *Engine) Gone(s service.Peer, cause error) {
	if p := e.known(s); p != nil {
		p.gone(cause)
	}
}

// Message implements service.Handler.
func (e *Engine) Message(s service.Session, body []byte) {
	p := e.known(s.Peer())
	if p == nil {
		return
	}
	m, err := decode(body)
	if err == nil {
		err = p.message(s, m)
	}
	e.check(s, err)
}

// Immediate implements service.Handler.
func (e *Engine) Immediate(s service.Session, imm, length uint32) {
	p := e.known(s.Peer())
	if p == nil {
		return
	}
	switch arg := imm & service.ArgMask; service.Class(imm) {
	case classNote:
		e.check(s, p.noteArrived(s, arg, length))
	case classCredit:
		e.check(s, p.credited(s, arg))
	}
}

// node returns the node.Peer behind a service.Peer, or nil in tests without a Node.
func (e *Engine) node(s service.Peer) *node.Peer {
	if e.cfg.Node == nil {
		return nil
	}
	return node.Of(s)
}

// isClosed says that Close has begun.
func (e *Engine) isClosed() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}
