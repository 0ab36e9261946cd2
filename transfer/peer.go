package transfer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"ibverbx"
	"ibverbx/internal/broadcast"
	"ibverbx/internal/rpc"
	"ibverbx/internal/service"
	"ibverbx/node"
)

// Peer is another process with an Engine. It outlives its sessions and its processes.
type Peer struct {
	engine  *Engine
	service service.Peer
	node    *node.Peer
	realm   string
	// name describes the peer as it authenticated last.
	name atomic.Pointer[string]
	// room has a token if a goroutine that waits for room should look again.
	room chan struct{}
	// asks bounds this side's requests without a response.
	asks rpc.Limit
	// digesting is held by the goroutine that computes digests for the peer.
	digesting chan struct{}

	mu sync.Mutex
	// id tells the peer whether this side still knows what it knew. It is random, and another one when this side has forgotten.
	id uint64
	// session is the present session, nil if there is none, and number its number. ctx ends with it.
	session service.Session
	number  uint64
	ctx     context.Context
	cancel  context.CancelFunc
	// proc is the peer's process, nil if none is known.
	proc *process
	// err says why there is no process, or why it is of no use.
	err error
	// changed is raised when one of the fields above changes.
	changed broadcast.Signal
	// mailbox is where the peer's notifications go.
	mailbox mailbox
	// running are the transfers that have not ended, of which there are count.
	running transferList
	count   int
	// ops is how many operations with notifications and credits are under way.
	ops int
	// queued is how many bytes of notifications the program has not taken, of all processes of the peer.
	queued int
	// serving has a token for each request of this session that has no answer yet.
	serving rpc.Limit
}

// process is what is known of a peer, until one of the two sides forgets. The Peer's mu guards its fields, apart from those that do not
// change.
type process struct {
	peer *Peer
	// incarnation is that of the peer's process, id the peer's id, and mailbox its mailbox. They do not change.
	incarnation, id uint64
	mailbox         ibverbx.RemoteRegion
	// dead says why the process is of no more use. ended is closed then.
	dead  error
	ended chan struct{}

	remotes map[uint32]*Remote  // what the peer has lent, by number
	lent    map[uint32]*lending // what the peer was lent, by number
	calls   rpc.Calls
	out     outbox
	in      arrivals
}

// maxAsks and maxServing bound the requests without an answer, on the side that asks and on the other. A request that was answered may
// count at the other side for a moment, while the next one is there already.
const (
	maxAsks    = 32
	maxServing = 2 * maxAsks
)

func newPeer(e *Engine, s service.Peer) *Peer {
	p := &Peer{
		engine: e, service: s, node: e.node(s), id: newID(),
		room: make(chan struct{}, 1), asks: make(rpc.Limit, maxAsks), digesting: make(chan struct{}, 1),
	}
	if p.node != nil {
		p.realm = p.node.Realm()
	}
	p.setName()
	return p
}

// newID returns an id, which is not 0.
func newID() uint64 { return rand.Uint64() | 1 }

// Node returns the peer as package node knows it.
func (p *Peer) Node() *node.Peer { return p.node }

// String names the peer: its name if it has one, and its address.
func (p *Peer) String() string { return *p.name.Load() }

func (p *Peer) setName() {
	id := p.service.Identity()
	name := id.Name
	switch {
	case name != "" && id.Addr != nil:
		name = fmt.Sprintf("%s (%v)", name, id.Addr)
	case id.Addr != nil:
		name = id.Addr.String()
	}
	p.name.Store(&name)
}

// down ends a session.
func (p *Peer) down(s service.Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session == s {
		p.session = nil
		p.cancel()
		p.changed.Raise()
	}
}

// gone ends what waits for a peer that will not return soon. The Engine forgets it if the Node has.
func (p *Peer) gone(err error) {
	p.end(err)
	e := p.engine
	forget := p.node.State() == node.StateClosed
	e.mu.Lock()
	if forget = forget && !e.closed && e.peers[p.service] == p; forget { // otherwise Close frees it
		delete(e.peers, p.service)
	}
	e.mu.Unlock()
	if forget {
		if err := p.mailbox.free(); err != nil {
			e.service.Log().Error("transfer: a mailbox cannot be freed", "peer", p.String(), "error", err)
		}
	}
}

// end forgets the peer's process and ends all that waits for it.
func (p *Peer) end(err error) {
	p.mu.Lock()
	proc := p.proc
	p.proc, p.id, p.err = nil, newID(), err
	p.changed.Raise()
	p.mu.Unlock()
	proc.end(err)
}

// over reports whether the process is of no more use.
func (proc *process) over() bool {
	select {
	case <-proc.ended:
		return true
	default:
		return false
	}
}

// end ends all that waits for the process. Operations that are under way are ended by the Node.
func (proc *process) end(err error) {
	if proc == nil {
		return
	}
	p := proc.peer
	p.mu.Lock()
	if proc.dead != nil {
		p.mu.Unlock()
		return
	}
	proc.dead = err
	close(proc.ended)
	for _, l := range proc.lent {
		l.stop()
	}
	waiting := proc.out.abandon()
	p.mu.Unlock()
	for _, t := range waiting {
		t.finish(err)
	}
}

// message handles a message of a session. An error ends the session.
func (p *Peer) message(s service.Session, m any) error {
	p.mu.Lock()
	proc := p.proc
	stale := p.session != s
	p.mu.Unlock()
	if stale {
		return nil
	}
	if proc == nil {
		return nil // it has left
	}
	switch m := m.(type) {
	case *open:
		return p.serve(s, func(ctx context.Context) []byte { return p.lend(ctx, s, proc, m) })
	case *digest:
		return p.serve(s, func(ctx context.Context) []byte { return p.sum(ctx, proc, m) })
	case *rpc.Unknown:
		text := fmt.Sprintf("this side speaks version %d", version)
		return p.serve(s, func(context.Context) []byte {
			return (&rpc.Refusal{ID: m.ID, Code: rpc.UnknownRequest, Text: text}).Encode()
		})
	case *grant:
		proc.calls.Answer(m.id, p.granted(proc, m))
	case *digests:
		proc.calls.Answer(m.id, m)
	case *rpc.Refusal:
		proc.calls.Answer(m.ID, m)
	case *revoke:
		return p.revoked(s, proc, m)
	case *revoked:
		p.forget(m.grant)
	}
	return nil
}

// serve answers a request in a goroutine of its own, unless f returns nil. ctx ends with the session of the request.
func (p *Peer) serve(s service.Session, f func(ctx context.Context) []byte) error {
	p.mu.Lock()
	ctx, serving, stale := p.ctx, p.serving, p.session != s
	p.mu.Unlock()
	if stale {
		return nil
	}
	return rpc.Serve(ctx, s, service.TransferID, serving, p.engine.done, f)
}
