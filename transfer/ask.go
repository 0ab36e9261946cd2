package transfer

import (
	"context"
	"fmt"

	"ibverbx/internal/service"
)

// ready waits until the peer's process is known and connected.
func (p *Peer) ready(ctx context.Context) (*process, service.Session, error) {
	proc, s, _, err := p.reach(ctx, nil)
	return proc, s, err
}

// reach is ready that also ends when want, if it is not nil, is dead. live ends with the session.
func (p *Peer) reach(ctx context.Context, want *process) (proc *process, s service.Session, live context.Context, err error) {
	var ended chan struct{}
	if want != nil {
		ended = want.ended
	}
	for {
		p.mu.Lock()
		proc, s, live, err = p.proc, p.session, p.ctx, p.err
		connected, changed := p.connected(), p.changed.Next()
		switch {
		case want != nil && want.dead != nil:
			err = want.dead
		case p.engine.isClosed():
			err = ErrClosed
		}
		p.mu.Unlock()
		if err != nil || connected {
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

// Connected implements rpc.Process.
func (proc *process) Connected(ctx context.Context) (service.Session, context.Context, error) {
	_, s, live, err := proc.peer.reach(ctx, proc)
	return s, live, err
}

// Ended implements rpc.Process.
func (proc *process) Ended() <-chan struct{} { return proc.ended }

// Dead implements rpc.Process.
func (proc *process) Dead() error {
	proc.peer.mu.Lock()
	defer proc.peer.mu.Unlock()
	return proc.dead
}

// ask sends a request to a process and returns the response.
func (p *Peer) ask(ctx context.Context, proc *process, request func(id uint32) []byte) (any, error) {
	return proc.calls.Ask(ctx, proc, service.TransferID, p.asks, request)
}
