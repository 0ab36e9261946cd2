package peer

import (
	"context"
	"fmt"
	"net"

	"ibverbx/bootstrap"
)

// Listener makes Sessions with one peer after the other.
type Listener struct {
	listener *bootstrap.Listener
	cfg      Config
}

// Listen opens a port for peers. With Config.Open every Session has NICs of its own; NICs
// in Config.Rails are shared by those that are open at the same time.
func Listen(ctx context.Context, addr string, cfg Config) (*Listener, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	listener, err := bootstrap.Listen(ctx, addr, cfg.Auth)
	if err != nil {
		return nil, err
	}
	return &Listener{listener: listener, cfg: cfg}, nil
}

// Addr is where the Listener can be reached.
func (l *Listener) Addr() net.Addr { return l.listener.Addr() }

// Accept returns a Session with the next peer. An error that is neither ctx's nor
// bootstrap.ErrClosed is about that peer alone: call it again for the next.
func (l *Listener) Accept(ctx context.Context) (*Session, error) {
	conn, err := l.listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return own(join(ctx, conn, false, &l.cfg))
}

// Close closes the port. Sessions live on.
func (l *Listener) Close() error { return l.listener.Close() }
