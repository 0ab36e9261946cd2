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
	"ibverbx/internal/broadcast"
	"ibverbx/internal/service"
	ibpeer "ibverbx/peer"
)

// Peer is another process with a Node. It outlives its sessions.
type Peer struct {
	node  *Node
	realm *realm
	shard *shard
	// queue belongs to the shard.
	queue queue
	// base is the identity without the process.
	base string
	// unclaimed is Counters.Unclaimed.
	unclaimed atomic.Uint64
	// calling is held during calls of Handlers, apart from Immediate, and by those who change up.
	calling sync.Mutex
	// up has the services that have got Up of the present session.
	up [service.IDs]atomic.Pointer[service.Service]

	// The lock of the Node guards everything below.

	// key is where the Node has the Peer.
	key      string
	identity bootstrap.Peer
	state    State
	changed  broadcast.Signal
	err      error
	// current is the session that is there or is being made; nil if there is none.
	current *session
	// last is the id of the session before current, or of current.
	last uint64
	// sessions is how many there were.
	sessions uint64
	// made is the VirtualQP of current; nil if it has none.
	made *ibpeer.Session
	// agreed and link are those of the last VirtualQP.
	agreed ibpeer.Agreement
	link   ibpeer.Link
	// routes is how many addresses lead to the Peer. A Peer without one cannot be dialed.
	routes int
	// giveUp ends operations when the Peer has been lost for long; nil unless it is lost.
	giveUp *time.Timer
	// seen is the activity when the Node looked last, and quiet how often it looked since without seeing any.
	seen  uint64
	quiet int
}

// State is where a Peer is in its life.
type State uint8

// States.
const (
	// StateConnecting means that a session is being made.
	StateConnecting State = iota
	// StateReady means that there is a session.
	StateReady
	// StateParked means that there is a session whose queue pairs are closed until they are needed.
	StateParked
	// StateLost means that there is no session. There may be another one.
	StateLost
	// StateClosed means that the Peer is of no more use.
	StateClosed
)

var stateNames = [...]string{"connecting", "ready", "parked", "lost", "closed"}

// String names the state.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// identify returns the identity of a process, and that without the process. Every process without a name has one of its own.
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

// Identity describes the peer as it authenticated for the last session.
func (p *Peer) Identity() bootstrap.Peer {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	return p.identity
}

// Node is the Node that the Peer belongs to.
func (p *Peer) Node() *Node { return p.node }

// Realm is the realm that the peer was admitted to.
func (p *Peer) Realm() string { return p.realm.name }

// String names the peer by its name and address.
func (p *Peer) String() string {
	id := p.Identity()
	if id.Name == "" {
		return id.Addr.String()
	}
	return fmt.Sprintf("%q (%v)", id.Name, id.Addr)
}

// State returns the state.
func (p *Peer) State() State {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	return p.state
}

// Changed returns a channel that is closed at the next change of the state, and when Err becomes ErrOther. Call it before State, so that no change is
// missed.
func (p *Peer) Changed() <-chan struct{} {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	return p.changed.Next()
}

// Err says why the Peer is lost or closed, and is nil otherwise.
func (p *Peer) Err() error {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	return p.err
}

// become changes the state. The Node's lock is held.
func (p *Peer) become(s State, err error) {
	p.err = err
	if p.state != s {
		p.state = s
		p.changed.Raise()
	}
}

// other notes that another peer answers at the address of this one. The Node's lock is held.
func (p *Peer) other(err error) {
	if p.state == StateLost && !errors.Is(p.err, ErrOther) {
		p.err = err
		p.changed.Raise()
	}
}

// wait waits until there is a session, which may be parked.
func (p *Peer) wait(ctx context.Context) (err error) {
	ended := p.until(ctx, func() bool {
		err = p.err
		return p.state == StateReady || p.state == StateParked || p.state == StateClosed
	})
	if ended != nil && err != nil {
		return fmt.Errorf("%w: %w", ended, err)
	}
	return cmp.Or(ended, err)
}

// until waits until done reports true, which is called with the Node's lock whenever the state has changed, or ctx ends.
func (p *Peer) until(ctx context.Context, done func() bool) error {
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

// PeerStats is what is known of a Peer's session.
type PeerStats struct {
	State State
	// Sessions is how many sessions there were.
	Sessions uint64
	// Agreed and Link are the results of the negotiation of the last session, zero if there was none.
	Agreed ibpeer.Agreement
	Link   ibpeer.Link
	// QP has the counters of the VirtualQP, by lane and rail. It is zero unless the peer is ready.
	QP ibverbx.Stats
	// Counters count from the first session on.
	Counters Counters
}

// Stats returns what is known of the session. It never waits for a shard.
func (p *Peer) Stats() PeerStats {
	p.node.mu.Lock()
	d := PeerStats{State: p.state, Sessions: p.sessions, Agreed: p.agreed, Link: p.link}
	made := p.made
	p.node.mu.Unlock()
	if made != nil {
		d.QP = made.QP.Stats()
	}
	d.Counters = p.counters()
	return d
}

// Close ends the session and makes the Node forget the Peer. Operations end in ErrClosed. The peer may dial again and is then a
// new Peer.
func (p *Peer) Close() error {
	p.node.drop(p, ErrClosed)
	return nil
}

// Service is for packages of this module, such as transfer. Other programs cannot use what it returns.
func (p *Peer) Service() service.Peer { return servicePeer{p} }

// servicePeer is a Peer as a service.Peer. It hides what has other names there.
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

// Session implements service.Peer.
func (p servicePeer) Session() service.Session {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	if s := p.current; s != nil && (p.state == StateReady || p.state == StateParked) {
		return s
	}
	return nil
}
