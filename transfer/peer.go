package transfer

import (
	"context"
	"fmt"
	"sync/atomic"

	"ibverbx"
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
	digesting rpc.Limit

	// link is the session and the process. Its Mu guards the fields below too.
	link rpc.Peer[*process]
	// number is that of the last session.
	number uint64
	// mailbox is where the peer's notifications go.
	mailbox mailbox
	// running are the transfers that have not ended, of which there are count.
	running transferList
	count   int
	// ops is how many operations with notifications and credits are under way.
	ops int
	// queued is how many bytes of notifications the program has not taken, of all processes of the peer.
	queued int
}

// process is what is known of a peer's process. Peer.link.Mu guards its fields, apart from peer and mailbox, which do not change.
type process struct {
	rpc.Process
	peer *Peer
	// mailbox is the peer's mailbox.
	mailbox ibverbx.RemoteRegion

	remotes map[uint32]*Remote  // what the peer has lent, by number
	lent    map[uint32]*lending // what the peer was lent, by number
	out     outbox
	in      arrivals
}

// maxAsks bounds the requests without a response.
const maxAsks = 32

func newPeer(e *Engine, s service.Peer) *Peer {
	p := &Peer{
		engine: e, service: s, node: s.Owner().(*node.Peer), realm: s.Owner().(*node.Peer).Realm(),
		room: make(chan struct{}, 1), asks: make(rpc.Limit, maxAsks), digesting: make(rpc.Limit, 1),
	}
	p.link.Init(rpc.PeerConfig{Service: service.TransferID, Name: "transfer engine", Done: e.done, Peer: s, Serving: 2 * maxAsks})
	p.setName()
	return p
}

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

// end ends all that waits for the process. Operations that are under way are ended by the Node.
func (proc *process) end(err error) {
	if proc == nil {
		return
	}
	p := proc.peer
	p.link.Mu.Lock()
	if !proc.End(err) {
		p.link.Mu.Unlock()
		return
	}
	for _, l := range proc.lent {
		l.stop()
	}
	waiting := proc.out.abandon()
	p.link.Mu.Unlock()
	for _, t := range waiting {
		t.finish(err)
	}
}

// message handles a message of a session. An error ends the session.
func (p *Peer) message(s service.Session, m any) error {
	proc := p.link.In(s)
	if proc == nil {
		return nil
	}
	switch m := m.(type) {
	case *open:
		return p.link.Serve(s, func(ctx context.Context) []byte { return p.lend(ctx, s, proc, m) })
	case *digest:
		return p.link.Serve(s, func(ctx context.Context) []byte { return p.sum(ctx, proc, m) })
	case *rpc.Unknown:
		text := fmt.Sprintf("this side speaks version %d", version)
		return p.link.Serve(s, func(context.Context) []byte {
			return (&rpc.Refusal{ID: m.ID, Code: rpc.UnknownRequest, Text: text}).Encode()
		})
	case *grant:
		proc.Answer(m.id, p.granted(proc, m))
	case *digests:
		proc.Answer(m.id, m)
	case *rpc.Refusal:
		proc.Answer(m.ID, m)
	case *revoke:
		return p.revoked(s, proc, m)
	case *revoked:
		p.forget(m.grant)
	}
	return nil
}
