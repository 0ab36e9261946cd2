package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/internal/broadcast"
	"ibverbx/internal/service"
	ibpeer "ibverbx/peer"
)

// Peer is another process with a Node. It outlives its sessions and, if named, its process. The zero value counts as closed. All methods are
// safe for concurrent use.
type Peer struct {
	node  *Node
	realm *realm
	shard *shard
	// queue belongs to the shard.
	queue queue
	// base is the identity without the incarnation.
	base string
	// unclaimed is Counters.Unclaimed.
	unclaimed atomic.Uint64
	// host is the key in Node.hosts.
	host  string
	tally qpTotals
	// calling is held while Handlers run, except Immediate, and while up changes.
	calling sync.Mutex
	// up holds the services that have received Up in the current session.
	up [service.IDs]atomic.Pointer[service.Service]

	// The lock of the Node guards everything below.

	// key is the Peer's key in Node.peers.
	key      string
	identity bootstrap.Peer
	state    State
	changed  broadcast.Signal
	// redial is raised when the lost peer is needed, when operations outlive a session, and when
	// the peer dials. It shortens the pause of the Peer's routes.
	redial broadcast.Signal
	err    error
	// current is the session, possibly still connecting; nil if none exists.
	current *session
	// last is the id of the newest session.
	last uint64
	// sessions counts all sessions.
	sessions uint64
	// lostAt is the time of the last session's loss. It is zero if the session was closed in order,
	// and while one is established.
	lostAt time.Time
	// agreed, link and linkReason describe the newest VirtualQP.
	agreed     ibpeer.Agreement
	link       ibpeer.Link
	linkReason string
	// routes is the number of addresses of the Peer. If it is zero, this side cannot dial the Peer.
	routes int
	// giveUp fires after LostTimeout; nil unless the Peer is lost.
	giveUp *time.Timer
	// seenActivity is the activity count at the Node's last check, idleChecks the number of checks without activity.
	seenActivity uint64
	idleChecks   int
}

// State is the connection state of a Peer.
type State uint8

// Connection states.
const (
	// StateConnecting means that a session is being established.
	StateConnecting State = iota
	// StateReady means that the session is established.
	StateReady
	// StateParked means that the session is idle: its connection is open, its queue pairs are closed until the next operation.
	StateParked
	// StateLost means that the session was lost. The Node or the peer may reconnect.
	StateLost
	// StateClosed means that the Peer was closed or removed. This state is final.
	StateClosed
)

var stateNames = [...]string{"connecting", "ready", "parked", "lost", "closed"}

// String returns the state in lower case, such as "ready".
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// MarshalText returns the result of String, for JSON.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// identify returns the identity of a process, and the same without its incarnation. Each unnamed process has a separate identity.
func identify(p bootstrap.Peer) (key, base string) {
	switch {
	case p.Certificate != nil:
		base = "certificate\x00" + string(p.Certificate.RawSubjectPublicKeyInfo)
	case p.Auth == bootstrap.AuthToken:
		base = "token\x00" + p.Token
	}
	base += "\x00" + p.Name
	if p.Name == "" {
		return fmt.Sprintf("%s\x00%d", base, p.Incarnation), base
	}
	return base, base
}

// Identity returns the peer's identity as authenticated for its newest session.
func (p *Peer) Identity() bootstrap.Peer {
	if p.node == nil {
		return bootstrap.Peer{}
	}
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	return p.identity
}

// Node returns the Node that the Peer belongs to.
func (p *Peer) Node() *Node { return p.node }

// Realm returns the realm assigned by Config.Authorize.
func (p *Peer) Realm() string {
	if p.realm == nil {
		return ""
	}
	return p.realm.name
}

// String returns the peer's quoted name and its address, or the address of an unnamed peer.
func (p *Peer) String() string {
	id := p.Identity()
	switch {
	case id.Addr == nil:
		return "no peer"
	case id.Name == "":
		return id.Addr.String()
	}
	return fmt.Sprintf("%q (%v)", id.Name, id.Addr)
}

// State returns the current state.
func (p *Peer) State() State {
	if p.node == nil {
		return StateClosed
	}
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	return p.state
}

// Changed returns a channel that is closed at the next change of the state, or when Err becomes
// ErrOther. To observe every change, call Changed before State.
func (p *Peer) Changed() <-chan struct{} {
	if p.node == nil {
		return nil
	}
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	return p.changed.Next()
}

// Err returns the reason why the Peer was lost or closed, and nil while it is ready or parked. While the Peer is reconnecting, Err still
// returns the reason for the last loss.
func (p *Peer) Err() error {
	if p.node == nil {
		return ErrClosed
	}
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	return p.err
}

// setState changes the state. The Node's lock is held.
func (p *Peer) setState(s State, err error) {
	p.err = err
	if p.state != s {
		p.state = s
		p.changed.Raise()
	}
}

// setOther records that another peer answers at this Peer's address. The Node's lock is held.
func (p *Peer) setOther(err error) {
	if p.state == StateLost && !errors.Is(p.err, ErrOther) {
		p.err = err
		p.changed.Raise()
	}
}

// wait blocks until a session is established, possibly parked. It makes the Node redial.
func (p *Peer) wait(ctx context.Context) (err error) {
	ended := p.waitUntil(ctx, func() bool {
		p.wantRedial()
		err = p.err
		return p.state == StateReady || p.state == StateParked || p.state == StateClosed
	})
	if ended != nil && err != nil {
		return fmt.Errorf("%w: %w", ended, err)
	}
	return cmp.Or(ended, err)
}

// waitUntil blocks until done returns true or ctx is done. done is called with the Node's lock held, after every state change.
func (p *Peer) waitUntil(ctx context.Context, done func() bool) error {
	for {
		p.node.mu.Lock()
		ok, changed := done(), p.changed.Next()
		p.node.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close closes the session and removes the Peer from its Node, which stops dialing it. Outstanding operations fail with ErrClosed. If the
// peer dials again, it becomes a new Peer. Close returns nil, or ErrClosed for the zero value.
func (p *Peer) Close() error {
	if p.node == nil {
		return ErrClosed
	}
	p.node.closePeer(p, ErrClosed)
	return nil
}

// Service is for packages of this module, such as transfer. Other programs cannot use the result.
func (p *Peer) Service() service.Peer { return servicePeer{p} }

// servicePeer is a Peer as a service.Peer. It hides methods whose names differ there.
type servicePeer struct{ *Peer }

// Owner implements service.Peer.
func (p servicePeer) Owner() any { return p.Peer }

// Submit implements service.Peer.
func (p servicePeer) Submit(op *service.Op) {
	if stateOf(op).Owner != any(p.Peer) {
		stateOf(op).Owner = p.Peer
	}
	stateOf(op).Runs.Add(1)
	p.shard.submit(op)
}

// Cancel implements service.Peer.
func (p servicePeer) Cancel(op *service.Op) {
	if run := stateOf(op).Runs.Load(); run%2 == 1 {
		p.shard.cancel(cancelation{op, p.Peer, run})
	}
}

// Help implements service.Peer.
func (p servicePeer) Help() bool { return p.shard.help() }

// Leave implements service.Peer.
func (p servicePeer) Leave() { p.shard.leave() }

// Forgotten implements service.Peer.
func (p servicePeer) Forgotten() error {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	if p.state == StateClosed {
		return p.err
	}
	return nil
}

// Redial implements service.Peer.
func (p servicePeer) Redial() {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	p.wantRedial()
}

// wantRedial makes the Node redial a lost Peer, or one whose session is just being closed. The Node's lock is held.
func (p *Peer) wantRedial() {
	if p.state == StateLost || p.current != nil && p.current.ctx.Err() != nil {
		p.redial.Raise()
	}
}

// Session implements service.Peer.
func (p servicePeer) Session() service.Session {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	if s := p.current; s != nil && (p.state == StateReady || p.state == StateParked) {
		return s
	}
	return nil
}
