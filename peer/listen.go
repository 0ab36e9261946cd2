package peer

import (
	"context"
	"fmt"
	"net"

	"ibverbx/bootstrap"
)

// Listener creates Sessions with one peer after another.
type Listener struct {
	listener *bootstrap.Listener
	cfg      Config
}

// Listen opens a port for peers. With Config.Open every Session has its own NICs. NICs in
// Config.Rails are shared by all open Sessions.
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

// Addr is the address that the Listener listens on.
func (l *Listener) Addr() net.Addr { return l.listener.Addr() }

// Accept returns a Session with the next peer. An error other than ctx's and
// bootstrap.ErrClosed concerns only that peer; call Accept again for the next.
func (l *Listener) Accept(ctx context.Context) (*Session, error) {
	conn, err := l.listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return own(join(ctx, conn, false, &l.cfg))
}

// Close closes the port. Sessions stay open.
func (l *Listener) Close() error { return l.listener.Close() }
