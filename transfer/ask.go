package transfer

import (
	"context"
	"errors"
	"fmt"

	"ibverbx/internal/service"
)

// ready waits until the peer's process is known and connected.
func (p *Peer) ready(ctx context.Context) (*process, service.Session, error) {
	proc, s, _, err := p.connected(ctx, nil)
	return proc, s, err
}

// connected is ready that also ends when want, if it is not nil, is dead. live ends with the session.
func (p *Peer) connected(ctx context.Context, want *process) (proc *process, s service.Session, live context.Context, err error) {
	var ended chan struct{}
	if want != nil {
		ended = want.ended
	}
	for {
		p.mu.Lock()
		proc, s, live, err = p.proc, p.session, p.ctx, p.err
		greeted, changed := p.greeted, p.changed
		switch {
		case want != nil && want.dead != nil:
			err = want.dead
		case p.engine.isClosed():
			err = ErrClosed
		}
		p.mu.Unlock()
		if err != nil || greeted {
			return proc, s, live, err
		}
		select {
		case <-changed:
		case <-ended:
		case <-p.engine.done:
		case <-ctx.Done():
			return nil, nil, nil, fmt.Errorf("the peer is not connected or has no transfer engine: %w", context.Cause(ctx))
		}
	}
}

// answer hands an answer to the request that waits for it. Others are ignored: their callers have gone.
func (proc *process) answer(id uint32, m any) {
	proc.peer.mu.Lock()
	defer proc.peer.mu.Unlock()
	if call := proc.calls[id]; call != nil {
		delete(proc.calls, id)
		call <- m
	}
}

// outwait gives back the token of a request that the caller has given up, when the peer has answered or the session has ended.
func (proc *process) outwait(limit chan struct{}, id uint32, call chan any, live context.Context) {
	select {
	case <-call:
	case <-live.Done():
	case <-proc.ended:
	}
	proc.peer.mu.Lock()
	delete(proc.calls, id)
	proc.peer.mu.Unlock()
	<-limit
}

// ask sends a request and returns the answer. If the session ends meanwhile it asks again in the next one. limit, which is asks or puts, has a
// token for each request that the peer has not answered. One that the caller has given up keeps its token: the peer still serves it, and ends the
// session of a side that asks for too much.
func (p *Peer) ask(ctx context.Context, limit chan struct{}, proc *process, request func(id uint32) []byte) (any, error) {
	if err := takeToken(ctx, limit); err != nil {
		return nil, err
	}
	release := func() { <-limit }
	defer func() { release() }()
	for {
		_, s, live, err := p.connected(ctx, proc)
		if err != nil {
			return nil, err
		}
		call := make(chan any, 1)
		p.mu.Lock()
		proc.lastID++
		id := proc.lastID
		proc.calls[id] = call
		p.mu.Unlock()
		sent := s.Send(ctx, service.TransferID, request(id)) == nil // otherwise the session or ctx has ended
		var m any
		select {
		case m = <-call:
		case <-live.Done():
		case <-proc.ended:
		case <-ctx.Done():
			if sent {
				release = func() { go proc.outwait(limit, id, call, live) }
				return nil, context.Cause(ctx)
			}
		}
		p.mu.Lock()
		delete(proc.calls, id)
		dead := proc.dead
		p.mu.Unlock()
		switch m := m.(type) {
		case *refusal:
			return nil, fmt.Errorf("%w (the peer says %q)", m.code.err(), m.text)
		case nil:
			if err := errors.Join(dead, context.Cause(ctx)); err != nil {
				return nil, err
			}
		default:
			return m, nil
		}
	}
}
