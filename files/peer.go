package files

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"ibverbx/internal/broadcast"
	"ibverbx/internal/rpc"
	"ibverbx/internal/service"
	"ibverbx/internal/wire"
	"ibverbx/node"
	"ibverbx/transfer"
)

// Peer is another process with an Engine. It outlives its sessions and its processes.
type Peer struct {
	engine   *Engine
	service  service.Peer
	transfer *transfer.Peer
	// asks bounds this side's requests without a response. puts does so for requests to fetch a file: the peer sends requests to this
	// side before it responds.
	asks, puts rpc.Limit
	// staging has a token for each slot of transfers from the peer, opens for each open file of the peer, and trees for each incoming
	// directory.
	staging, opens, trees rpc.Limit

	mu sync.Mutex
	// id identifies this side to the peer. It changes when this side has forgotten the peer's process.
	id uint64
	// session is the current session, nil unless the peer has an Engine in it. live is canceled with it.
	session service.Session
	live    context.Context
	lost    context.CancelFunc
	// proc is the peer's process, if known.
	proc *process
	// err is the reason why proc is nil.
	err error
	// changed is raised when one of the fields above changes.
	changed broadcast.Signal
	// serving has a token for each request of this session without a response.
	serving rpc.Limit
}

// process is a process of a peer, until one of the two sides forgets the other.
type process struct {
	peer  *Peer
	id    uint64
	calls rpc.Calls
	// ended is closed when the process can no longer be used, and dead is the reason. The Peer's mu guards dead.
	dead  error
	ended chan struct{}
}

// maxAsks and maxPuts bound a client's requests without a response, and maxServing those that a server accepts. It is larger because a server may
// receive the next request before it has counted its last response.
const (
	maxAsks    = 32
	maxPuts    = 16
	maxServing = 2 * (maxAsks + maxPuts)
)

func newPeer(f *Engine, s service.Peer) *Peer {
	return &Peer{
		engine: f, service: s, transfer: f.cfg.Transfer.Of(node.Of(s)), id: newID(),
		asks: make(rpc.Limit, maxAsks), puts: make(rpc.Limit, maxPuts),
		staging: make(rpc.Limit, peerStaging), opens: make(rpc.Limit, maxOpens), trees: make(rpc.Limit, maxTrees),
	}
}

// newID returns an id, which is not 0.
func newID() uint64 { return rand.Uint64() | 1 }

// Node returns the peer as package node knows it.
func (p *Peer) Node() *node.Peer { return p.transfer.Node() }

// String names the peer: its name if it has one, and its address.
func (p *Peer) String() string { return p.transfer.String() }

// hello introduces this side to the peer.
func (p *Peer) hello() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = nil
	p.changed.Raise()
	return binary.LittleEndian.AppendUint64(nil, p.id)
}

// up starts a session with the peer's hello, which identifies its process.
func (p *Peer) up(s service.Session, hello []byte) error {
	r := wire.NewReader(hello)
	id := r.U64()
	if r.Check(id != 0); !r.OK() {
		return fmt.Errorf("%w: a hello of %d bytes", rpc.ErrProtocol, len(hello))
	}
	p.mu.Lock()
	var old *process
	if p.proc == nil || p.proc.id != id {
		old, p.proc = p.proc, &process{peer: p, id: id, ended: make(chan struct{})}
	}
	p.session, p.err = s, nil
	p.live, p.lost = context.WithCancel(p.engine.ctx)
	p.serving = make(rpc.Limit, maxServing)
	p.changed.Raise()
	p.mu.Unlock()
	old.end(ErrRestarted)
	return nil
}

// down records the end of a session.
func (p *Peer) down(s service.Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session == s {
		p.session = nil
		p.lost()
		p.changed.Raise()
	}
}

// gone fails everything that waits for a peer given up by the Node. The Engine forgets the peer if the Node has.
func (p *Peer) gone(err error) {
	p.end(err)
	if p.Node().State() == node.StateClosed {
		p.engine.mu.Lock()
		defer p.engine.mu.Unlock()
		if p.engine.peers[p.service] == p {
			delete(p.engine.peers, p.service)
		}
	}
}

// end forgets the peer's process and fails everything that waits for it.
func (p *Peer) end(err error) {
	p.mu.Lock()
	proc := p.proc
	p.proc, p.id, p.err = nil, newID(), err
	p.changed.Raise()
	p.mu.Unlock()
	proc.end(err)
}

// end fails everything that waits for a process.
func (proc *process) end(err error) {
	if proc == nil {
		return
	}
	proc.peer.mu.Lock()
	defer proc.peer.mu.Unlock()
	if proc.dead == nil {
		proc.dead = err
		close(proc.ended)
	}
}

// over reports whether the process can no longer be used.
func (proc *process) over() bool {
	select {
	case <-proc.ended:
		return true
	default:
		return false
	}
}

// Ended implements rpc.Process.
func (proc *process) Ended() <-chan struct{} { return proc.ended }

// Dead implements rpc.Process.
func (proc *process) Dead() error {
	proc.peer.mu.Lock()
	defer proc.peer.mu.Unlock()
	return proc.dead
}

// Connected implements rpc.Process.
func (proc *process) Connected(ctx context.Context) (service.Session, context.Context, error) {
	_, s, live, err := proc.peer.connected(ctx, proc)
	return s, live, err
}

// ready waits until the peer's process is known and connected.
func (p *Peer) ready(ctx context.Context) (*process, error) {
	proc, _, _, err := p.connected(ctx, nil)
	return proc, err
}

// returnTimeout bounds the wait for an Engine of a connected peer that has closed its last one.
const returnTimeout = time.Minute

// errLeft means that a peer is connected and has not returned with an Engine in time.
var errLeft = fmt.Errorf("%w: it has closed its engine for files", ErrPeerGone)

// connected waits for a session with an Engine of the peer. live ends with it. If want is not nil, it also fails when want has ended,
// or with errLeft.
func (p *Peer) connected(ctx context.Context, want *process) (proc *process, s service.Session, live context.Context, err error) {
	var ended chan struct{}
	var late <-chan time.Time
	var without service.Session // a session without an Engine when the ticker last fired
	for {
		p.mu.Lock()
		proc, s, live, err = p.proc, p.session, p.live, p.err
		changed := p.changed.Next()
		switch {
		case want != nil && want.dead != nil:
			err = want.dead
		case p.engine.isClosed():
			err = ErrClosed
		}
		p.mu.Unlock()
		if err != nil || s != nil && proc != nil {
			return proc, s, live, err
		}
		if want != nil && late == nil {
			ticker := time.NewTicker(returnTimeout)
			defer ticker.Stop()
			ended, late = want.ended, ticker.C
		}
		select {
		case <-changed:
		case <-ended:
		case <-p.engine.ctx.Done():
		case <-late:
			before := without
			if without = p.service.Session(); without != nil && without == before {
				return nil, nil, nil, errLeft
			}
		case <-ctx.Done():
			return nil, nil, nil, fmt.Errorf("the peer is not connected or has no engine for files: %w", context.Cause(ctx))
		}
	}
}

// mayReturn reports whether err means only that the peer's process has ended, and a new one may appear.
func (p *Peer) mayReturn(err error) bool {
	if errors.Is(err, ErrPeerGone) && !errors.Is(err, errLeft) && !p.engine.isClosed() {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.err == nil
	}
	return errors.Is(err, ErrRestarted)
}

// askAny sends a request to the peer's process, and to its successor if it ends. It returns the process that responded.
func askAny[M any](ctx context.Context, p *Peer, limit rpc.Limit, request func(id uint32) []byte) (answer M, proc *process, err error) {
	for again := false; ; again = true {
		wait, cancel := ctx, func() {}
		if again {
			wait, cancel = context.WithTimeoutCause(ctx, returnTimeout, ErrPeerGone)
		}
		proc, err = p.ready(wait)
		cancel()
		if err != nil {
			return answer, nil, err
		}
		answer, err = askFor[M](ctx, proc, limit, request)
		if !p.mayReturn(err) {
			return answer, proc, err
		}
	}
}

// askFor sends a request to a process and returns its response.
func askFor[M any](ctx context.Context, proc *process, limit rpc.Limit, request func(id uint32) []byte) (answer M, err error) {
	return rpc.As[M](proc.calls.Ask(ctx, proc, service.FilesID, limit, request))
}

// message handles a message of a session. An error closes the session.
func (p *Peer) message(s service.Session, m any) error {
	p.mu.Lock()
	proc, live, serving, stale := p.proc, p.live, p.serving, p.session != s
	p.mu.Unlock()
	if stale || proc == nil {
		return nil
	}
	v := server{p, proc}
	answer, err := v.request(m)
	if answer == nil || err != nil {
		return err
	}
	return rpc.Serve(live, s, service.FilesID, serving, p.engine.ctx.Done(), answer)
}
