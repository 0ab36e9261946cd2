package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/closer"
	"ibverbx/internal/service"
	ibpeer "ibverbx/peer"
	"ibverbx/verbs"
)

// maxHandshakes limits incoming connections without a session. Further ones wait in the listener.
const maxHandshakes = 256

// Node is one process on the fabric: its NICs, its listening port and its peers. All methods are safe for concurrent use.
type Node struct {
	cfg  Config
	auth bootstrap.Config
	log  *slog.Logger
	// backoff applies to all routes.
	backoff backoff
	// listener is nil if the Node does not listen.
	listener *bootstrap.Listener
	opened   closer.Stack // the NICs and the Dialer
	services atomic.Pointer[serviceTable]
	// sharesMemory is set if sessions may use shared memory.
	sharesMemory bool
	slots        chan struct{} // holds one token per connection without a session

	// ctx is canceled when the Node closes.
	ctx        context.Context
	cancel     context.CancelFunc
	goroutines sync.WaitGroup
	// creating serializes the creation of realms and of the Dialer.
	creating sync.Mutex
	// dialer dials all peers; nil until the first dial. creating guards it.
	dialer *bootstrap.Dialer
	// once runs close once.
	once sync.Once

	// mu guards everything below, and the state of Peers and routes. It is never held together with a shard's lock, so a busy
	// shard does not block the others.
	mu     sync.Mutex
	peers  map[string]*Peer  // by identity
	routes map[string]*route // by address
	realms map[string]*realm
	memory map[*memory]struct{}
	// callers are the Peers with possible Handler calls, including closed ones (see adjustCallers).
	callers map[*Peer]int
	counts  Stats // without Totals
	// hosts holds the counters of StatsByHost, without the known peers.
	hosts service.ByHost[Totals]
	// leaving is set when the Node no longer accepts peers.
	leaving bool
}

// New opens the NICs and, if Config.Listen is set, starts listening. ctx only bounds the call. New returns verbs.ErrInvalid for an invalid
// Config, and the errors of Config.Open and of package bootstrap.
func New(ctx context.Context, cfg Config) (*Node, error) {
	cfg, err := cfg.withDefaults()
	if ctx == nil {
		err = verbs.Invalidf("the Context is nil")
	}
	if err != nil {
		return nil, fmt.Errorf("new node: %w", err)
	}
	n := &Node{
		cfg: cfg, log: cfg.Log, backoff: backoff{least: time.Second, first: 100 * time.Millisecond, most: 30 * time.Second, health: 10 * time.Second},
		slots: make(chan struct{}, maxHandshakes), peers: map[string]*Peer{}, routes: map[string]*route{}, realms: map[string]*realm{},
		memory: map[*memory]struct{}{}, callers: map[*Peer]int{}, hosts: service.ByHost[Totals]{},
	}
	n.services.Store(&serviceTable{})
	n.ctx, n.cancel = context.WithCancel(context.WithoutCancel(ctx))
	n.auth = cfg.Auth
	if cfg.Authorize != nil {
		n.auth.Authorize = func(p bootstrap.Peer) error {
			_, err := cfg.Authorize(p)
			return err
		}
	}
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("new node: %w", err), n.Close())
	}
	return n, nil
}

// open opens the NICs, creates the default realm and starts listening.
func (n *Node) open(ctx context.Context) error {
	nics, err := n.cfg.openNICs()
	if err != nil {
		return fmt.Errorf("open NICs: %w", err)
	}
	if nics.Close != nil {
		n.opened.Add(nics.Close)
	}
	rails, err := ibverbx.NewRails(nics.Rails...)
	if err != nil {
		return err
	}
	n.sharesMemory = n.cfg.Link != ibpeer.LinkUDP && sharable(nics.Rails)
	if n.cfg.Lanes == 0 {
		n.cfg.Lanes = max(2, rails.Len())
	}
	first, err := newRealm("", rails, n.cfg.Shards, n.cfg.Lanes, n.cfg.cqDepth)
	if err != nil {
		return err
	}
	n.realms[""] = first
	if n.cfg.IdleAfter > 0 {
		n.goroutines.Go(n.parkIdle)
	}
	if n.cfg.Listen == "" {
		_, err := n.sharedDialer()
		return err
	}
	if n.listener, err = bootstrap.Listen(ctx, n.cfg.Listen, n.auth); err != nil {
		return err
	}
	n.goroutines.Go(n.accept)
	return nil
}

// sharable reports whether all rails are software NICs that can share memory with other processes.
func sharable(rails []ibverbx.RailConfig) bool {
	return !slices.ContainsFunc(rails, func(r ibverbx.RailConfig) bool {
		attr, err := r.Context.QueryDevice()
		return err != nil || attr.Provider != "softnic" || attr.Link != "udp"
	})
}

// isOpen reports whether New returned the Node. A nil or zero Node counts as closed.
func (n *Node) isOpen() bool { return n != nil && n.ctx != nil }

// Addr returns the listening address, or nil if the Node does not listen.
func (n *Node) Addr() net.Addr {
	if !n.isOpen() || n.listener == nil {
		return nil
	}
	return n.listener.Addr()
}

// accept serves incoming connections, each in its own goroutine.
func (n *Node) accept() {
	for {
		select {
		case n.slots <- struct{}{}:
		case <-n.ctx.Done():
			return
		}
		conn, err := n.listener.Accept(n.ctx)
		if err != nil {
			return // the Node or the Listener is closed
		}
		n.goroutines.Go(func() {
			s, err := n.greet(n.ctx, conn, nil)
			<-n.slots
			if err != nil {
				n.log.Info("peer refused", append(about(conn.Peer()), "cause", err)...)
				return
			}
			_ = n.runSession(s) // it was logged
		})
	}
}

// runSession runs a session until it is lost, and closes its connection.
func (n *Node) runSession(s *session) error {
	err := s.run()
	s.finish(err)
	err = context.Cause(s.ctx)
	return errors.Join(err, s.conn.CloseWith(reason(err)))
}

// sessionReady records that a session has a VirtualQP.
func (n *Node) sessionReady(s *session, made *ibpeer.Session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := s.peer
	if p.current != s || p.state == StateClosed {
		return
	}
	if p.state == StateConnecting {
		n.logEstablished(p, made)
	}
	n.found(s.route, p)
	p.tally.open(made.QP)
	p.agreed, p.link, p.linkReason, p.idleChecks = made.Agreed, made.Link, made.LinkReason, 0
	p.setState(StateReady, nil)
}

// sessionLost records the loss of a session. Its VirtualQP is closed. The next session waits for this one, so the queue and the Peer can be
// updated one after the other.
func (n *Node) sessionLost(s *session, cause error) {
	p := s.peer
	var waiting bool
	p.shard.do(func() {
		q := &p.queue
		if q.session == s {
			q.sessionLost(cause)
		}
		if q.refuse != nil {
			q.refuseAll(q.refuse)
		}
		waiting = q.ops > 0
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.adjustCallers(p, -1)
	made := p.current == s && (p.state == StateReady || p.state == StateParked)
	if p.current == s {
		p.current = nil
		if p.state != StateClosed {
			p.setState(StateLost, cause)
			if waiting {
				p.redial.Raise()
			}
			if n.cfg.LostTimeout > 0 {
				p.giveUp = time.AfterFunc(n.cfg.LostTimeout, func() { n.giveUp(p) })
			}
		}
	}
	if made {
		n.logLoss(s, cause)
	}
}

// Shutdown stops accepting and dialing peers, waits for outstanding operations until ctx is done, and closes the Node. If ctx is done
// first, the remaining operations fail with ErrClosed and Shutdown returns the error of ctx.
func (n *Node) Shutdown(ctx context.Context) error {
	if !n.isOpen() {
		return ErrClosed
	}
	if ctx == nil {
		return verbs.Invalidf("shut down: the Context is nil")
	}
	n.mu.Lock()
	n.leaving = true
	n.mu.Unlock()
	if n.listener != nil {
		_ = n.listener.Close() // Close reports it again
	}
	for busy := true; busy; {
		busy = false
		for _, p := range n.Peers() {
			p.shard.do(func() {
				p.shard.takeInbox()
				busy = busy || p.queue.ops > 0
			})
		}
		if busy && !waitFor(ctx, time.Millisecond) {
			return errors.Join(ctx.Err(), n.Close())
		}
	}
	return n.Close()
}

// Close closes the Node immediately. Outstanding operations fail with ErrClosed, and all memory is deregistered. Later calls return nil. A
// Node that New did not return is closed: Close returns ErrClosed.
func (n *Node) Close() (err error) {
	if !n.isOpen() {
		return ErrClosed
	}
	n.once.Do(func() { err = n.close() })
	return err
}

func (n *Node) close() error {
	n.mu.Lock()
	n.leaving = true
	n.mu.Unlock()
	for _, p := range n.Peers() {
		n.closePeer(p, ErrClosed)
	}
	n.cancel()
	var errs []error
	if n.listener != nil {
		errs = append(errs, n.listener.Close())
	}
	n.goroutines.Wait()
	n.mu.Lock()
	all := n.memory
	n.memory = nil
	n.mu.Unlock()
	for m := range all {
		errs = append(errs, m.close())
	}
	for name, r := range n.realms {
		if name != "" {
			errs = append(errs, r.close())
		}
	}
	if first := n.realms[""]; first != nil {
		errs = append(errs, first.close())
	}
	return errors.Join(append(errs, n.opened.Close())...)
}

// Service is for packages of this module, such as transfer. Other programs cannot use the result.
func (n *Node) Service() service.Node { return serviceNode{n} }
