package rpc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"ibverbx/internal/service"
)

// Peer is a service's state for one peer: its session and its process. P is the service's own
// per-process state, a pointer to a struct that embeds Process. Initialize a Peer with Init.
type Peer[P process] struct {
	service.Link
	cfg PeerConfig
	// ID identifies this side to the peer's service. It changes when this side forgets the peer's process.
	ID uint64
	// Proc is the process of the last session, or nil.
	Proc P
	// Serving holds a token for each unanswered request of this session.
	Serving Limit
}

// process is implemented by pointers to structs that embed Process.
type process interface {
	comparable
	base() *Process
}

// PeerConfig describes a Peer.
type PeerConfig struct {
	// Service identifies the service. Peer, Name and Done are passed to its Link.
	Service service.ID
	Name    string
	Done    <-chan struct{}
	Peer    service.Peer
	// Serving limits the unanswered requests per session. It exceeds the client's limit because a
	// server may receive the next request before it has counted its last response.
	Serving int
	// Patience is the timeout of a request while the peer is connected but its service is closed.
	// The request then fails with Left. Zero means never.
	Patience time.Duration
	Left     error
}

// Init initializes a Peer.
func (p *Peer[P]) Init(cfg PeerConfig) {
	p.cfg, p.ID = cfg, newID()
	p.Peer, p.Name, p.Done = cfg.Peer, cfg.Name, cfg.Done
}

// newID returns a nonzero id.
func newID() uint64 { return rand.Uint64() | 1 }

// NewProcess returns the Process that uses id and incarnation in a session.
func (p *Peer[P]) NewProcess(id, incarnation uint64) Process {
	return Process{ID: id, Incarnation: incarnation, peer: p, ended: make(chan struct{})}
}

// Expect records that session s is being established. If s belongs to another process than Proc, it
// returns the old process, which the caller must end. The old process stays in Proc until Begin, so
// that requests to it meanwhile fail with the same error. Mu must be held.
func (p *Peer[P]) Expect(s service.Session) (old P) {
	p.Link.Expect()
	var none P
	if p.Proc == none || p.Proc.base().Incarnation == s.Incarnation() {
		return none
	}
	return p.Proc
}

// Known returns Proc if it has the id and is usable. Mu must be held.
func (p *Peer[P]) Known(id uint64) (proc P) {
	var none P
	if p.Proc != none && p.Proc.base().ID == id && p.Proc.base().Err == nil {
		return p.Proc
	}
	return none
}

// Begin starts session s with a process. It returns the replaced process, if any, which the caller
// must end. Mu must be held.
func (p *Peer[P]) Begin(ctx context.Context, s service.Session, proc P) (old P) {
	if p.Proc != proc {
		old = p.Proc
	}
	p.Proc, p.Serving = proc, make(Limit, p.cfg.Serving)
	p.Link.Begin(ctx, s)
	return old
}

// Down drops a session.
func (p *Peer[P]) Down(s service.Session) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Drop(s)
}

// Forget drops the process and returns it; the caller must call its End. err is the reason why no
// further session is expected, nil if one is.
func (p *Peer[P]) Forget(err error) (old P) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	var none P
	old, p.Proc, p.ID, p.Err = p.Proc, none, newID(), err
	p.Changed.Raise()
	return old
}

// Connected reports whether a session with a known process exists. Mu must be held.
func (p *Peer[P]) Connected() bool {
	var none P
	return p.Session != nil && p.Proc != none
}

// In returns the process of session s, nil if the session is closed or the process is forgotten.
func (p *Peer[P]) In(s service.Session) (proc P) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if p.Session == s {
		proc = p.Proc
	}
	return proc
}

// Ready waits until the peer is connected, and returns its process.
func (p *Peer[P]) Ready(ctx context.Context) (proc P, err error) {
	err = p.Wait(ctx, nil, func() (bool, error) {
		proc = p.Proc
		return p.Connected(), nil
	})
	return proc, err
}

// reach waits for a session with a process, and fails when the process ends. live is canceled with
// the session.
func (p *Peer[P]) reach(ctx context.Context, want *Process) (s service.Session, live context.Context, err error) {
	ready := func() (bool, error) {
		s, live = p.Session, p.Live
		return p.Connected(), want.Err
	}
	if p.cfg.Patience == 0 {
		err = p.Wait(ctx, want.ended, ready)
		return s, live, err
	}
	for without := service.Session(nil); ; { // session at the last timeout
		wait, cancel := context.WithTimeoutCause(ctx, p.cfg.Patience, p.cfg.Left)
		err = p.Wait(wait, want.ended, ready)
		late := err != nil && wait.Err() != nil && ctx.Err() == nil
		cancel()
		before := without
		if without = p.cfg.Peer.Session(); !late || without != nil && without == before {
			return s, live, err
		}
	}
}

// dead returns the reason why a process is unusable.
func (p *Peer[P]) dead(proc *Process) error {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return proc.Err
}

func (p *Peer[P]) service() service.ID { return p.cfg.Service }

// Serve runs f in a new goroutine and sends its result in session s, unless it is nil or the
// service is closed. The context of f is canceled when s closes. An error means that the peer
// exceeds its limit.
func (p *Peer[P]) Serve(s service.Session, f func(ctx context.Context) []byte) error {
	p.Mu.Lock()
	ctx, serving, stale := p.Live, p.Serving, p.Session != s
	p.Mu.Unlock()
	switch {
	case stale:
		return nil
	case !serving.Try():
		return fmt.Errorf("%w: %d requests without a response", ErrProtocol, cap(serving))
	}
	go func() {
		defer serving.Give()
		body := f(ctx)
		if body != nil && !p.Closed() { // a service that closes notifies the peer instead
			_ = s.Send(ctx, p.cfg.Service, body) // without the session, the peer retries the request
		}
	}()
	return nil
}
