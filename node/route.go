package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"time"
)

// maxDuplicates is how often a peer may say that there is a session before there is one.
const maxDuplicates = 8

// backoff is how long a Node waits before it dials again.
type backoff struct {
	// first and most bound the wait, which doubles with every attempt.
	first, most time.Duration
	// health is how long a session must last for the wait to be short again.
	health time.Duration
}

// after returns the wait after a number of failed attempts in a row, from half to one and a half of the nominal one, drawn with a
// random number below 1.
func (b *backoff) after(attempts int, random float64) time.Duration {
	d := b.most
	if attempts < 32 {
		d = min(b.most, b.first<<attempts)
	}
	return time.Duration((0.5 + random) * float64(d))
}

// route is an address that this side dials whenever there is no session with the peer behind it. One goroutine does that.
type route struct {
	addr string
	// peer is the Peer behind the address; nil until it is known. The lock of the Node guards it, and err.
	peer *Peer
	// err is why the first attempt failed.
	err error
	// known is closed when peer or err is set.
	known chan struct{}
	// ctx ends when the address is no longer dialed.
	ctx    context.Context
	cancel context.CancelFunc
}

// Peer returns the peer that listens at addr, "host:port" or "host" for the DefaultPort, and connects to it if it is not
// connected. It returns when the peer is ready. An error of the first attempt is returned at once. Later the Node
// connects again whenever the session is lost, until Peer.Close, and Peer waits for that until ctx ends.
func (n *Node) Peer(ctx context.Context, addr string) (*Peer, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		addr = net.JoinHostPort(addr, DefaultPort)
	}
	r, err := n.route(addr)
	if err != nil {
		return nil, err
	}
	select {
	case <-r.known:
	case <-ctx.Done():
		return nil, fmt.Errorf("peer at %s: %w", addr, ctx.Err())
	}
	n.mu.Lock()
	p, err := r.peer, r.err
	n.mu.Unlock()
	if err == nil {
		err = p.wait(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("peer at %s: %w", addr, err)
	}
	return p, nil
}

// route returns the route to an address, and begins one if there is none.
func (n *Node) route(addr string) (*route, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r := n.routes[addr]; r != nil {
		return r, nil
	}
	if n.ctx.Err() != nil || n.leaving {
		return nil, fmt.Errorf("peer at %s: %w", addr, ErrClosed)
	}
	r := &route{addr: addr, known: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancel(n.ctx)
	n.routes[addr] = r
	n.work.Go(func() { n.travel(r) })
	return r, nil
}

// found notes the Peer behind a route, when there is a session with it. The lock is held.
func (n *Node) found(r *route, p *Peer) {
	if r == nil || r.peer != nil || r.ctx.Err() != nil {
		return
	}
	r.peer = p
	p.routes++
	close(r.known)
}

// travel dials an address again and again.
func (n *Node) travel(r *route) {
	defer n.abandon(r)
	for attempts := 0; ; {
		began := time.Now()
		err := n.dial(r)
		n.mu.Lock()
		p := r.peer
		if p == nil && (!duplicate(err) || attempts == maxDuplicates) {
			r.err = err
		}
		if p != nil && errors.Is(err, ErrOther) {
			p.other(err)
		}
		failed := r.err != nil
		n.mu.Unlock()
		if failed || r.ctx.Err() != nil {
			return
		}
		if time.Since(began) >= n.backoff.health {
			attempts = 0
		}
		wait := n.backoff.after(attempts, rand.Float64())
		attempts++
		if !waitFor(r.ctx, wait) || p != nil && p.until(r.ctx, func() bool { return p.current == nil }) != nil || r.ctx.Err() != nil {
			return
		}
	}
}

// dial makes a session and attends to it until it ends. It returns why.
func (n *Node) dial(r *route) error {
	d, err := n.dialer()
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
	return n.attend(s)
}

// duplicate reports whether there is no session because there is another one.
func duplicate(err error) bool {
	var refused *refusedError
	return errors.Is(err, errReplaced) || (errors.As(err, &refused) && refused.code == refusedDuplicate)
}

// abandon ends a route.
func (n *Node) abandon(r *route) {
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

// remove makes the Node forget a Peer, and all routes to it. It reports whether the Node knew it. The lock is held. The caller ends the
// session.
func (n *Node) remove(p *Peer, err error) bool {
	if p.state == StateClosed {
		return false
	}
	p.become(StateClosed, err)
	delete(n.peers, p.key)
	n.stats.Counters.add(p.counters())
	if p.giveUp != nil {
		p.giveUp.Stop()
	}
	for addr, r := range n.routes {
		if r.peer == p {
			delete(n.routes, addr)
			r.cancel()
		}
	}
	p.realm.leave(p.shard)
	return true
}

// drop closes a Peer.
func (n *Node) drop(p *Peer, err error) {
	p.shard.do(func() {
		p.queue.closed = true
		p.queue.refuseAll(err)
	})
	n.mu.Lock()
	known, s := n.remove(p, err), p.current
	if known {
		n.calls(p, 1)
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
	p.gone(err)
	p.calling.Unlock()
	n.mu.Lock()
	n.calls(p, -1)
	n.mu.Unlock()
}

// Peers returns all peers that are known, in no order: those that this side has dialed, and those that have dialed this side.
func (n *Node) Peers() []*Peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make([]*Peer, 0, len(n.peers))
	for _, p := range n.peers {
		all = append(all, p)
	}
	return slices.Clip(all)
}
