package rpc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"ibverbx/internal/service"
)

// Peer is the state of one peer at a service: its session and its process. P is the service's own state of a process, a pointer to a struct that
// embeds Process. Create a Peer with Init.
type Peer[P process] struct {
	service.Link
	cfg PeerConfig
	// ID identifies this side to the peer's service. It changes when this side forgets the peer's process.
	ID uint64
	// Proc is the process of the last session, nil if it is not known.
	Proc P
	// Serving has a token for each request of this session without a response.
	Serving Limit
}

// process is implemented by pointers to structs that embed Process.
type process interface {
	comparable
	base() *Process
}

// PeerConfig describes a Peer.
type PeerConfig struct {
	// Service is the service, and Name and Done are those of its Link.
	Service service.ID
	Name    string
	Done    <-chan struct{}
	// Peer is the peer.
	Peer service.Peer
	// Serving bounds the requests of a session without a response. It exceeds the limit of the client because a server may receive the
	// next request before it has counted its last response.
	Serving int
	// Patience is the time after which a request fails with Left if the peer is connected and its service is closed. Zero means never.
	Patience time.Duration
	Left     error
}

// Init makes a Peer ready.
func (p *Peer[P]) Init(cfg PeerConfig) {
	p.cfg, p.ID = cfg, newID()
	p.Name, p.Done = cfg.Name, cfg.Done
}

// newID returns an id, which is not 0.
func newID() uint64 { return rand.Uint64() | 1 }

// NewProcess returns the process with an id that the peer has in a session.
func (p *Peer[P]) NewProcess(id, incarnation uint64) Process {
	return Process{ID: id, Incarnation: incarnation, peer: p, ended: make(chan struct{})}
}

// Expect records that session s is being made. It returns the process that has ended, if s is not with Proc: the caller ends it. It stays in
// Proc until Begin, so that what is requested of it meanwhile fails with the same error. Mu must be held.
func (p *Peer[P]) Expect(s service.Session) (old P) {
	p.Link.Expect()
	var none P
	if p.Proc == none || p.Proc.base().Incarnation == s.Incarnation() {
		return none
	}
	return p.Proc
}

// Known returns Proc if it has the id and can be used. Mu must be held.
func (p *Peer[P]) Known(id uint64) (proc P) {
	var none P
	if p.Proc != none && p.Proc.base().ID == id && p.Proc.base().Err == nil {
		return p.Proc
	}
	return none
}

// Begin starts session s with a process. It returns the process that proc replaces, if any, which the caller ends. Mu must be held.
func (p *Peer[P]) Begin(ctx context.Context, s service.Session, proc P) (old P) {
	if p.Proc != proc {
		old = p.Proc
	}
	p.Proc, p.Serving = proc, make(Limit, p.cfg.Serving)
	p.Link.Begin(ctx, s)
	return old
}

// Down ends a session.
func (p *Peer[P]) Down(s service.Session) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Drop(s)
}

// Forget forgets the process and returns it. The caller ends it. err is the reason why no session is expected, nil if one is.
func (p *Peer[P]) Forget(err error) (old P) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	var none P
	old, p.Proc, p.ID, p.Err = p.Proc, none, newID(), err
	p.Changed.Raise()
	return old
}

// Connected reports whether there is a session with a known process. Mu must be held.
func (p *Peer[P]) Connected() bool {
	var none P
	return p.Session != nil && p.Proc != none
}

// In returns the process of session s, nil if the session has ended or the process is forgotten.
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

// reach waits for a session with a process, and fails when the process ends. live is canceled with the session.
func (p *Peer[P]) reach(ctx context.Context, want *Process) (s service.Session, live context.Context, err error) {
	ready := func() (bool, error) {
		s, live = p.Session, p.Live
		return p.Connected(), want.Err
	}
	if p.cfg.Patience == 0 {
		err = p.Wait(ctx, want.ended, ready)
		return s, live, err
	}
	for without := service.Session(nil); ; { // the session, at the last timeout
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

// dead returns why a process can no longer be used.
func (p *Peer[P]) dead(proc *Process) error {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return proc.Err
}

func (p *Peer[P]) service() service.ID { return p.cfg.Service }

// Serve runs f in a new goroutine and sends the message that it returns in session s, unless that is nil or the service is closed. The context
// of f is canceled when s ends. An error means that the peer exceeds its limit.
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
			_ = s.Send(ctx, p.cfg.Service, body) // without the session the peer sends the request again
		}
	}()
	return nil
}
