package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// Dialer connects to listeners with one Config, whose files it reads once and then when they change. A program with many peers uses
// one for all. Its methods are safe for concurrent use.
type Dialer struct{ *warden }

// NewDialer returns a Dialer.
func NewDialer(cfg Config) (*Dialer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	w, err := newWarden(cfg, true)
	if err != nil {
		return nil, err
	}
	w.start()
	return &Dialer{w}, nil
}

// Dial connects to a listener and returns when both sides are authenticated. addr is
// "host:port". ctx bounds only the call, not the life of the Conn.
func (d *Dialer) Dial(ctx context.Context, addr string) (*Conn, error) {
	c, err := d.dial(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return c, nil
}

func (d *Dialer) dial(ctx context.Context, addr string) (*Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	socket := net.Dialer{Timeout: d.cfg.HandshakeTimeout}
	raw, err := socket.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &stranger{raw: raw, cfg: &d.cfg, cred: d.credentials(), dialed: true, host: host}
	c, err := s.admit(ctx)
	if err != nil {
		return nil, err
	}
	c.start(func() { d.forget(c) })
	d.mu.Lock()
	closed := d.closed
	if !closed {
		d.conns[c] = struct{}{}
	}
	d.mu.Unlock()
	if closed {
		return nil, errors.Join(ErrClosed, c.Close())
	}
	if c.Err() != nil {
		d.forget(c) // it ended before it was added
	}
	return c, nil
}

// Close ends the Dialer. Its Conns stay open.
func (d *Dialer) Close() error {
	d.close()
	return nil
}

// Dial is NewDialer and Dialer.Dial for one Conn.
func Dial(ctx context.Context, addr string, cfg Config) (*Conn, error) {
	d, err := NewDialer(cfg)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	defer d.close() // no other Conn follows
	return d.Dial(ctx, addr)
}
