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

// Peer is another process with an Engine. It outlives sessions and restarts of the peer's process. All methods are safe for concurrent use.
type Peer struct {
	engine  *Engine
	service service.Peer
	node    *node.Peer
	realm   string
	// name describes the peer as it last authenticated.
	name atomic.Pointer[string]
	// outstandingFreed wakes one goroutine waiting for MaxOutstanding.
	outstandingFreed chan struct{}
	// requests limits the outstanding requests to the peer.
	requests rpc.Limit
	// digesting is held by the goroutine that computes digests for the peer.
	digesting rpc.Limit

	// link is the session and the process. Its Mu guards the fields below too.
	link rpc.Peer[*process]
	// number is the last session's number.
	number uint64
	// mailbox receives the peer's notifications.
	mailbox mailbox
	// running lists the outstanding transfers, count is its length.
	running transferList
	count   int
	// ops is the number of outstanding notification and credit operations.
	ops    int
	counts counts
	// queued is the size of all unread notifications in bytes, whichever process of the peer sent them.
	queued int
}

// process is the state kept for one process of a peer. Peer.link.Mu guards all fields except peer and mailbox, which do not change.
type process struct {
	rpc.Process
	peer *Peer
	// mailbox is the peer's mailbox.
	mailbox ibverbx.RemoteRegion

	remotes map[uint32]*Remote         // grants from the peer, by number
	granted map[uint32]*grantedSegment // grants to the peer, by number
	out     outbox
	in      arrivals
}

// maxRequests limits the outstanding requests per peer.
const maxRequests = 32

func newPeer(e *Engine, s service.Peer) *Peer {
	p := &Peer{
		engine: e, service: s, node: s.Owner().(*node.Peer), realm: s.Owner().(*node.Peer).Realm(),
		outstandingFreed: make(chan struct{}, 1), requests: make(rpc.Limit, maxRequests), digesting: make(rpc.Limit, 1),
	}
	p.link.Init(rpc.PeerConfig{Service: service.TransferID, Name: "transfer engine", Done: e.done, Peer: s, Serving: 2 * maxRequests})
	p.setName()
	return p
}

// Node returns the underlying node.Peer.
func (p *Peer) Node() *node.Peer { return p.node }

// String returns the peer's quoted name and its address, or the address of an unnamed peer.
func (p *Peer) String() string {
	if name := p.name.Load(); name != nil {
		return *name
	}
	return "no peer"
}

func (p *Peer) setName() {
	id := p.service.Identity()
	name := id.Name
	switch {
	case name != "" && id.Addr != nil:
		name = fmt.Sprintf("%q (%v)", name, id.Addr)
	case id.Addr != nil:
		name = id.Addr.String()
	}
	p.name.Store(&name)
}

// end fails everything waiting for the process. The Node fails the outstanding operations.
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
	for _, l := range proc.granted {
		l.stop()
	}
	waiting := proc.out.abandon()
	p.link.Mu.Unlock()
	for _, t := range waiting {
		t.finish(err)
	}
}

// message handles a session message. An error closes the session.
func (p *Peer) message(s service.Session, m any) error {
	proc := p.link.In(s)
	if proc == nil {
		return nil
	}
	switch m := m.(type) {
	case *open:
		return p.link.Serve(s, func(ctx context.Context) []byte { return p.answerOpen(ctx, s, proc, m) })
	case *list:
		return p.link.Serve(s, func(ctx context.Context) []byte { return p.answerList(ctx, m) })
	case *listed:
		proc.Answer(m.id, m)
	case *digest:
		return p.link.Serve(s, func(ctx context.Context) []byte { return p.answerDigest(ctx, proc, m) })
	case *rpc.Unknown:
		text := fmt.Sprintf("this side speaks version %d", version)
		return p.link.Serve(s, func(context.Context) []byte {
			return (&rpc.Refusal{ID: m.ID, Code: rpc.UnknownRequest, Text: text}).Encode()
		})
	case *grant:
		proc.Answer(m.id, p.recordRemote(proc, m))
	case *digests:
		proc.Answer(m.id, m)
	case *rpc.Refusal:
		proc.Answer(m.ID, m)
	case *revoke:
		return p.revoked(s, proc, m)
	case *revoked:
		p.revokeDone(m.grant)
	}
	return nil
}
