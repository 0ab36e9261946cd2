package files

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"ibverbx/internal/rpc"
	"ibverbx/internal/service"
	"ibverbx/internal/wire"
	"ibverbx/node"
	"ibverbx/transfer"
)

// Peer is another process with a files Engine. It outlives sessions and restarts of the peer's process. All methods are safe for concurrent
// use.
type Peer struct {
	engine   *Engine
	service  service.Peer
	transfer *transfer.Peer
	// requests limits the outstanding requests to the peer. putRequests limits the upload requests, which the peer answers only after sending requests
	// itself.
	requests, putRequests rpc.Limit
	// staging holds one token per slot of transfers from the peer, opens one per open remote file, and trees one per incoming directory.
	staging, opens, trees rpc.Limit

	// link is the session and the process.
	link rpc.Peer[*process]
	// received holds the numbers of bytes that the peer has written to this side, as last reported
	// by the peer.
	received atomic.Pointer[railCounts]
}

// writtenByRail returns the bytes that this side has written to the peer.
func (p *Peer) writtenByRail() (all railCounts) {
	for _, r := range p.transfer.Rails() {
		all = append(all, uint64(r.Bytes))
	}
	return all
}

// rails returns the traffic of the session in both directions.
func (p *Peer) rails() []transfer.RailStatus {
	all := p.transfer.Rails()
	if received := p.received.Load(); received != nil {
		return addReceived(all, *received)
	}
	return all
}

// addReceived adds the bytes written by the peer, as counted per rail of the peer, to the local rails. If the two sides have different
// numbers of rails, the bytes cannot be attributed: it returns nil, except for a single local rail, which has carried all of them.
func addReceived(all []transfer.RailStatus, received railCounts) []transfer.RailStatus {
	if len(all) != len(received) && len(all) != 1 {
		return nil
	}
	for i, n := range received {
		all[min(i, len(all)-1)].Bytes += int64(n)
	}
	return all
}

// process is a process of a peer, until one of the two sides drops the other.
type process struct {
	rpc.Process
	peer *Peer
	// state holds the process's open files on this side.
	state openFiles
}

// maxRequests and maxPuts bound a client's requests without a response.
const (
	maxRequests = 32
	maxPuts     = 16
)

func newPeer(f *Engine, s service.Peer) *Peer {
	p := &Peer{
		engine: f, service: s, transfer: f.cfg.Transfer.Of(s.Owner().(*node.Peer)),
		requests: make(rpc.Limit, maxRequests), putRequests: make(rpc.Limit, maxPuts),
		staging: make(rpc.Limit, peerStaging), opens: make(rpc.Limit, maxOpens), trees: make(rpc.Limit, maxTrees),
	}
	p.link.Init(rpc.PeerConfig{
		Service: service.FilesID, Name: "engine for files", Done: f.ctx.Done(), Peer: s, Serving: 2 * (maxRequests + maxPuts),
		Patience: returnTimeout, Left: errEngineClosed,
	})
	return p
}

// Node returns the underlying node.Peer.
func (p *Peer) Node() *node.Peer {
	if p.transfer == nil {
		return nil
	}
	return p.transfer.Node()
}

// String returns the peer's quoted name and its address, or the address of an unnamed peer.
func (p *Peer) String() string {
	if p.transfer == nil {
		return "no peer"
	}
	return p.transfer.String()
}

// handler is a Peer as a service.PeerHandler.
type handler Peer

// Hello implements service.PeerHandler. It identifies this side to the peer.
func (p *handler) Hello(s service.Session) ([]byte, bool, error) {
	p.link.Mu.Lock()
	old, id := p.link.Expect(s), p.link.ID
	p.link.Mu.Unlock()
	old.end(ErrRestarted)
	return binary.LittleEndian.AppendUint64(nil, id), !p.engine.isClosed(), nil
}

// Up implements service.PeerHandler. The peer's hello identifies its process.
func (p *handler) Up(s service.Session, hello []byte) error {
	r := wire.NewReader(hello)
	id := r.U64()
	if r.Check(id != 0); !r.OK() {
		return fmt.Errorf("%w: a hello of %d bytes", rpc.ErrProtocol, len(hello))
	}
	p.link.Mu.Lock()
	proc := p.link.Known(id)
	if proc == nil {
		proc = (*Peer)(p).newProcess(id, s.Incarnation())
	}
	old := p.link.Begin(p.engine.ctx, s, proc)
	p.link.Mu.Unlock()
	old.end(ErrRestarted)
	return nil
}

// Down implements service.PeerHandler.
func (p *handler) Down(s service.Session, _ error) { p.link.Down(s) }

// Gone implements service.PeerHandler. It fails everything waiting for the peer.
func (p *handler) Gone(cause error, _ bool) { p.link.Forget(cause).end(cause) }

// Message implements service.PeerHandler.
func (p *handler) Message(s service.Session, body []byte) error {
	m, err := decode(body)
	if err != nil {
		return err
	}
	proc := p.link.In(s)
	if proc == nil {
		return nil
	}
	answer, err := proc.request(m)
	if answer == nil || err != nil {
		return err
	}
	return p.link.Serve(s, answer)
}

// Immediate implements service.PeerHandler. This package does not use immediates.
func (*handler) Immediate(service.Session, uint32, uint32) error { return nil }

// end fails everything waiting for a process.
func (v *process) end(err error) {
	if v == nil {
		return
	}
	v.peer.link.Mu.Lock()
	first := v.End(err)
	v.peer.link.Mu.Unlock()
	if first {
		v.close()
	}
}

// returnTimeout bounds the wait for an Engine of a connected peer that has closed its last one.
const returnTimeout = time.Minute

// errEngineClosed means that a connected peer did not reopen its Engine in time.
var errEngineClosed = fmt.Errorf("%w: it has closed its engine for files", ErrPeerGone)

// mayReturn reports whether err only means that the peer's process has exited, so that a new one may appear.
func (p *Peer) mayReturn(err error) bool {
	if errors.Is(err, ErrPeerGone) && !errors.Is(err, errEngineClosed) && !p.engine.isClosed() {
		p.link.Mu.Lock()
		defer p.link.Mu.Unlock()
		return p.link.Err == nil
	}
	return errors.Is(err, ErrRestarted)
}

// askAny sends a request to the peer's process, and to its successor if that exits. It returns the process that responded.
func askAny[M any](ctx context.Context, p *Peer, limit rpc.Limit, request func(id uint32) []byte) (answer M, proc *process, err error) {
	err = p.withProcess(ctx, func(v *process) (err error) {
		proc = v
		answer, err = ask[M](ctx, v, limit, request)
		return err
	})
	return answer, proc, err
}

// withProcess calls f with the peer's process, and again with its successor if f fails because it has exited.
func (p *Peer) withProcess(ctx context.Context, f func(*process) error) error {
	for again := false; ; again = true {
		wait, cancel := ctx, func() {}
		if again {
			wait, cancel = context.WithTimeoutCause(ctx, returnTimeout, ErrPeerGone)
		}
		proc, err := p.link.Ready(wait)
		cancel()
		if err != nil {
			return err
		}
		if err = f(proc); !p.mayReturn(err) {
			return err
		}
	}
}

// ask sends a request to a process and returns its response.
func ask[M any](ctx context.Context, proc *process, limit rpc.Limit, request func(id uint32) []byte) (answer M, err error) {
	return rpc.As[M](proc.Ask(ctx, limit, request))
}
