package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/internal/printable"
	"ibverbx/verbs"
)

// maxDuplicates limits the attempts rejected as duplicates before the first session.
const maxDuplicates = 8

// backoff computes the delay before redialing.
type backoff struct {
	// least is the part of the delay that Peer.redial does not shorten.
	least time.Duration
	// first and most bound the delay, which doubles with every attempt.
	first, most time.Duration
	// health is the session duration that resets the delay.
	health time.Duration
}

// delay returns the delay after a number of consecutive failures: 0.5 to 1.5 times the nominal one, for random in [0, 1).
func (b *backoff) delay(attempts int, random float64) time.Duration {
	d := b.most
	if attempts < 32 {
		d = min(b.most, b.first<<attempts)
	}
	return time.Duration((0.5 + random) * float64(d))
}

// route is an address that a goroutine dials whenever the session with its peer is lost.
type route struct {
	addr string
	// peer is the Peer at the address; nil until known. The Node's lock guards peer and err.
	peer *Peer
	// err is the error of the first attempt.
	err error
	// known is closed when peer or err is set.
	known chan struct{}
	// wanted is closed by the first Peer.redial since the last attempt began; nil until peer is known. Only the route's goroutine
	// uses it.
	wanted <-chan struct{}
	// ctx is canceled when the route is closed.
	ctx    context.Context
	cancel context.CancelFunc
}

// Peer returns the peer listening at addr, "host:port" or "host" for DefaultPort, and connects to
// it if necessary. It returns once the peer is ready or parked. If the first attempt fails, Peer
// returns its error immediately, such as ErrRefused, ErrVersion or an error of package bootstrap.
// Afterwards the Node redials whenever the session is lost, until Peer.Close. Peer makes it redial
// a lost peer as soon as the last attempt is 1 s old, and blocks until the peer returns or ctx is
// done. After Close or Shutdown it returns ErrClosed.
func (n *Node) Peer(ctx context.Context, addr string) (*Peer, error) {
	if !n.isOpen() {
		return nil, ErrClosed
	}
	if ctx == nil {
		return nil, verbs.Invalidf("the Context is nil")
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		addr = net.JoinHostPort(strings.Trim(addr, "[]"), DefaultPort)
	}
	r, err := n.route(addr)
	if err != nil {
		return nil, err
	}
	select {
	case <-r.known:
	case <-ctx.Done():
		return nil, printable.Error(fmt.Errorf("peer at %s: %w", addr, ctx.Err()))
	}
	p, err := n.peerAt(ctx, r)
	if err != nil {
		return nil, printable.Error(fmt.Errorf("peer at %s: %w", addr, err))
	}
	return p, nil
}

// peerAt waits for a session with the Peer at a known route.
func (n *Node) peerAt(ctx context.Context, r *route) (p *Peer, err error) {
	for {
		last := p
		n.mu.Lock()
		p = r.peer
		if r.err != nil || p == last { // otherwise the route has moved to another Peer meanwhile
			err = cmp.Or(err, r.err)
			n.mu.Unlock()
			return p, err
		}
		n.mu.Unlock()
		if err = p.wait(ctx); err == nil {
			return p, nil
		}
	}
}

// route returns the route to an address, and starts it if necessary.
func (n *Node) route(addr string) (*route, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r := n.routes[addr]; r != nil {
		return r, nil
	}
	if n.ctx.Err() != nil || n.leaving {
		return nil, printable.Error(fmt.Errorf("peer at %s: %w", addr, ErrClosed))
	}
	r := &route{addr: addr, known: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancel(n.ctx)
	n.routes[addr] = r
	n.goroutines.Go(func() { n.dialLoop(r) })
	return r, nil
}

// found records the Peer at a route's address once it has a session. The lock is held.
func (n *Node) found(r *route, p *Peer) {
	if r == nil || r.peer == p || r.ctx.Err() != nil {
		return
	}
	switch old := r.peer; {
	case old == nil:
		close(r.known)
	case old.current != nil:
		return // both processes are alive
	default: // a process without a name was restarted, and has dialed first
		old.routes--
		n.goroutines.Go(func() { n.closePeer(old, ErrRestarted) })
	}
	r.peer, r.wanted = p, p.redial.Next()
	p.routes++
}

// dialLoop keeps dialing an address.
func (n *Node) dialLoop(r *route) {
	defer n.closeRoute(r)
	for attempts := 0; ; {
		began := time.Now()
		err := n.dial(r)
		n.mu.Lock()
		p := r.peer
		if p == nil && (!duplicate(err) || attempts == maxDuplicates) {
			r.err = err
		}
		if p != nil && errors.Is(err, ErrOther) {
			p.setOther(err)
		}
		failed := r.err != nil
		n.mu.Unlock()
		if failed || r.ctx.Err() != nil {
			return
		}
		if time.Since(began) >= n.backoff.health {
			attempts = 0
		}
		wait := n.backoff.delay(attempts, rand.Float64())
		if attempts++; n.pause(r, wait) {
			attempts = 0
		}
		alone := func() bool {
			r.wanted = p.redial.Next()
			return p.current == nil
		}
		if p != nil && p.waitUntil(r.ctx, alone) != nil || r.ctx.Err() != nil {
			return
		}
	}
}

// pause waits for d, or only for backoff.least if the Peer is wanted, which it reports. It returns early if the route is closed.
func (n *Node) pause(r *route, d time.Duration) (wanted bool) {
	least := min(d, n.backoff.least)
	if !waitFor(r.ctx, least) || least == d {
		return false
	}
	timer := time.NewTimer(d - least)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.ctx.Done():
	case <-r.wanted:
		return true
	}
	return false
}

// sharedDialer returns the Dialer for all peers, and creates it if necessary. After an error, such as a missing token file, the next call
// tries again.
func (n *Node) sharedDialer() (*bootstrap.Dialer, error) {
	n.creating.Lock()
	defer n.creating.Unlock()
	if n.dialer != nil {
		return n.dialer, nil
	}
	d, err := bootstrap.NewDialer(n.auth)
	if err != nil {
		return nil, err
	}
	n.opened.Add(d.Close)
	n.dialer = d
	return d, nil
}

// dial establishes a session and runs it. It returns the reason why it was lost.
func (n *Node) dial(r *route) error {
	d, err := n.sharedDialer()
	if err != nil {
		return err
	}
	conn, err := d.Dial(r.ctx, r.addr)
	if err != nil {
		return err
	}
	s, err := n.greet(r.ctx, conn, r)
	if err != nil {
		return err
	}
	return n.runSession(s)
}

// duplicate reports whether err means that another session exists.
func duplicate(err error) bool {
	var refused *refusedError
	return errors.Is(err, errReplaced) || (errors.As(err, &refused) && refused.code == refusedDuplicate)
}

// closeRoute closes a route.
func (n *Node) closeRoute(r *route) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r.cancel()
	if n.routes[r.addr] == r {
		delete(n.routes, r.addr)
	}
	if r.peer != nil {
		r.peer.routes--
		return
	}
	if r.err == nil {
		r.err = ErrClosed
	}
	close(r.known)
}

// remove removes a Peer and all routes to it, and reports whether it was known. The lock is held. The caller closes the session.
func (n *Node) remove(p *Peer, err error) bool {
	if p.state == StateClosed {
		return false
	}
	if p.current != nil && (p.state == StateReady || p.state == StateParked) {
		n.hosts[p.host].Closed++ // sessionLost does not count it, because the Peer is closed by then
	}
	p.setState(StateClosed, err)
	delete(n.peers, p.key)
	if p.giveUp != nil {
		p.giveUp.Stop()
	}
	for addr, r := range n.routes {
		if r.peer == p {
			delete(n.routes, addr)
			r.cancel()
		}
	}
	p.realm.release(p.shard)
	return true
}

// closePeer closes a Peer.
func (n *Node) closePeer(p *Peer, err error) {
	p.shard.do(func() {
		p.queue.closed = true
		p.queue.refuseAll(err)
	})
	n.mu.Lock()
	known, s := n.remove(p, err), p.current
	if known {
		n.adjustCallers(p, 1)
	}
	n.mu.Unlock()
	if s != nil {
		s.End(err)
		<-s.done
	}
	if !known {
		return
	}
	p.calling.Lock()
	p.callGone(err)
	p.calling.Unlock()
	n.mu.Lock()
	n.adjustCallers(p, -1)
	n.mu.Unlock()
}

// Peers returns all known peers, in any state except closed and in no particular order, no matter which side dialed.
func (n *Node) Peers() []*Peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make([]*Peer, 0, len(n.peers))
	for _, p := range n.peers {
		all = append(all, p)
	}
	return slices.Clip(all)
}
