package transfer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"

	"ibverbx/internal/broadcast"
	"ibverbx/internal/rpc"
	"ibverbx/internal/service"
	"ibverbx/node"
	"ibverbx/verbs"
)

// Engine moves memory between this process and its peers. All methods are safe for concurrent use.
type Engine struct {
	// Lock order: a shard's lock, then a Peer's mu, then mu or the inbox's mu. Methods of package service are called without the last
	// three.

	cfg     Config
	service service.Node
	// workers limits the number of goroutines computing digests.
	workers  rpc.Limit
	states   sync.Pool // of *batchState
	waiters  sync.Pool // of *waiter
	stages   sync.Pool // of *[maxRange]byte, for digests of device memory
	inbox    inbox
	peers    service.Peers[*handler]
	registry statsRegistry
	// done is closed when Close starts.
	done chan struct{}
	// closing serializes Close.
	closing rpc.Limit

	mu       sync.Mutex
	closed   bool
	segments map[string]*Segment
	all      map[*Segment]struct{} // including unnamed segments
	grants   uint32                // the number of the last grant
	// generation is the newest named segment's.
	generation uint64
}

// maxWorkers is the maximum number of goroutines computing digests.
const maxWorkers = 4

// Classes of immediates.
const (
	classNotification = 1
	classCredit       = 5
)

// New attaches an Engine to cfg.Node. It returns verbs.ErrInvalid for an invalid Config, verbs.ErrBusy if the Node already has an Engine,
// and ErrClosed if the Node is closed.
func New(cfg Config) (*Engine, error) {
	if cfg.Node == nil {
		return nil, newError("new", nil, "", verbs.Invalidf("Config.Node is not set"))
	}
	if cfg.MaxOutstanding < 0 || cfg.MaxOutstanding > maxOutstanding {
		return nil, newError("new", nil, "", verbs.Invalidf("MaxOutstanding %d: want 0 to %d", cfg.MaxOutstanding, maxOutstanding))
	}
	if cfg.MaxOutstanding == 0 {
		cfg.MaxOutstanding = defaultOutstanding
	}
	n := cfg.Node.Service()
	e := &Engine{
		cfg: cfg, service: n,
		workers:  make(rpc.Limit, max(1, min(runtime.GOMAXPROCS(0)/2, maxWorkers))),
		inbox:    inbox{more: make(chan struct{}, 1)},
		done:     make(chan struct{}),
		closing:  make(rpc.Limit, 1),
		segments: map[string]*Segment{}, all: map[*Segment]struct{}{},
	}
	e.states.New = func() any { return &batchState{} }
	e.stages.New = func() any { return new([maxRange]byte) }
	e.waiters.New = func() any { return &waiter{wake: make(chan struct{}, 1)} }
	e.peers.Init(service.TransferID, func(s service.Peer) *handler { return (*handler)(newPeer(e, s)) })
	if err := n.Attach(service.Service{ID: service.TransferID, Version: version, Classes: 1<<classNotification | 1<<classCredit, Handler: &e.peers}); err != nil {
		return nil, newError("new", nil, "", err)
	}
	return e, nil
}

// Peer connects to the peer listening at addr, see node.Node.Peer, and waits until that peer has an Engine or ctx is done. It returns
// ErrClosed after Close, ErrMismatch if the protocol versions differ, and the errors of node.Node.Peer.
func (e *Engine) Peer(ctx context.Context, addr string) (*Peer, error) {
	if !e.isOpen() {
		return nil, newError("connect", nil, "", ErrClosed)
	}
	np, err := e.cfg.Node.Peer(ctx, addr)
	if err != nil {
		return nil, newError("connect", nil, "", err)
	}
	p := e.Of(np)
	if _, err := p.link.Ready(ctx); err != nil {
		return nil, newError("connect", p, "", err)
	}
	return p, nil
}

// isOpen reports whether New returned the Engine. A nil or zero Engine counts as closed.
func (e *Engine) isOpen() bool { return e != nil && e.done != nil }

// Node returns Config.Node.
func (e *Engine) Node() *node.Node { return e.cfg.Node }

// Of returns the Peer for p; for nil, a Peer that counts as closed. Unlike Peer, it never blocks, and the peer may not have an Engine yet.
func (e *Engine) Of(p *node.Peer) *Peer {
	if !e.isOpen() || p == nil || p.Node() == nil {
		return &Peer{}
	}
	return (*Peer)(e.peers.Of(p.Service()))
}

// Peers returns the connected peers that have an Engine, in no particular order, no matter which side dialed.
func (e *Engine) Peers() []*Peer {
	return slices.DeleteFunc(e.allPeers(), func(p *Peer) bool {
		p.link.Mu.Lock()
		defer p.link.Mu.Unlock()
		return !p.link.Connected()
	})
}

// allPeers returns all peers.
func (e *Engine) allPeers() []*Peer {
	var list []*Peer
	for _, h := range e.peers.All() {
		list = append(list, (*Peer)(h))
	}
	return list
}

// Close cancels all transfers, closes all segments (see Segment.Close) and sessions, and detaches the Engine from its Node. Peers are
// notified and reconnect. If transfers are still running when ctx is done, it returns an error without freeing their memory, and can be
// called again. Of concurrent calls, one closes and the others wait for it.
func (e *Engine) Close(ctx context.Context) error {
	if !e.isOpen() {
		return newError("close", nil, "", ErrClosed)
	}
	if err := checkContext(ctx); err != nil {
		return newError("close", nil, "", err)
	}
	if !e.closing.Try() { // the only caller proceeds even if its context is done
		if err := e.closing.Take(ctx); err != nil {
			return newError("close", nil, "", err)
		}
	}
	defer e.closing.Give()
	return e.closeAll(ctx)
}

func (e *Engine) closeAll(ctx context.Context) error {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		close(e.done)
	}
	segments := slices.Collect(maps.Keys(e.all))
	e.mu.Unlock()
	peers := e.allPeers()
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
	e.revoke(ctx, peers, func(l *grantedSegment) bool { return l.number != mailboxGrant })
	e.revoke(ctx, peers, func(*grantedSegment) bool { return true })
	for _, p := range peers {
		errs = append(errs, p.leave(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if e.service.Attached(service.TransferID) == service.Handler(&e.peers) { // after an earlier Close, the Node may have another Engine
		e.service.Detach(service.TransferID)
	}
	for _, s := range segments {
		errs = append(errs, s.free())
	}
	for _, h := range e.peers.Clear() { // including peers that connected meanwhile
		p := (*Peer)(h)
		p.link.Forget(ErrClosed).end(ErrClosed)
		errs = append(errs, p.mailbox.free())
	}
	return errors.Join(errs...)
}

// leave closes the session, so that a later Engine starts with a new one.
func (p *Peer) leave(ctx context.Context) error {
	p.link.Mu.Lock()
	s := p.link.Session
	p.link.Mu.Unlock()
	if s != nil {
		s.End(fmt.Errorf("transfer: the engine is closed: %w", service.ErrDetached))
	}
	return p.drain(ctx, true)
}

// handler is a Peer as a service.PeerHandler.
type handler Peer

// Hello implements service.PeerHandler.
func (h *handler) Hello(s service.Session) ([]byte, bool, error) {
	m, err := (*Peer)(h).hello(s)
	if m == nil {
		return nil, false, err
	}
	return m.encode(), true, nil
}

// Up implements service.PeerHandler.
func (h *handler) Up(s service.Session, body []byte) error {
	m, err := decodeHello(body)
	if err != nil {
		return err
	}
	h.engine.registry.add((*Peer)(h))
	return (*Peer)(h).up(s, m)
}

// Down implements service.PeerHandler.
func (h *handler) Down(s service.Session, _ error) { h.link.Down(s) }

// Gone implements service.PeerHandler. It fails everything waiting for a peer that is unlikely to
// return soon.
func (h *handler) Gone(cause error, forgotten bool) {
	h.link.Forget(cause).end(cause)
	if !forgotten {
		return
	}
	h.engine.registry.remove((*Peer)(h))
	if err := h.mailbox.free(); err != nil {
		h.engine.service.Log().Error("transfer: a mailbox cannot be freed", "peer", (*Peer)(h).String(), "error", err)
	}
}

// Message implements service.PeerHandler.
func (h *handler) Message(s service.Session, body []byte) error {
	m, err := decode(body)
	if err != nil {
		return err
	}
	return (*Peer)(h).message(s, m)
}

// Immediate implements service.PeerHandler.
func (h *handler) Immediate(s service.Session, imm, length uint32) error {
	switch arg := imm & service.ArgMask; service.Class(imm) {
	case classNotification:
		return (*Peer)(h).notificationArrived(s, arg, length)
	default:
		return (*Peer)(h).credited(s, arg)
	}
}

// isClosed reports whether Close has started.
func (e *Engine) isClosed() bool { return broadcast.Closed(e.done) }
