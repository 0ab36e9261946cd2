package bootstrap

import (
	"context"
	"fmt"
	"net"
)

// Dial connects to a listener and returns when both sides are authenticated. addr is
// "host:port". ctx bounds only the call, not the life of the Conn.
func Dial(ctx context.Context, addr string, cfg Config) (*Conn, error) {
	c, err := dial(ctx, addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return c, nil
}

func dial(ctx context.Context, addr string, cfg Config) (*Conn, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	w, err := newWarden(cfg, true)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: cfg.HandshakeTimeout}
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &stranger{raw: raw, cfg: &w.cfg, cred: w.cred, dialed: true, host: host}
	c, err := s.admit(ctx)
	if err != nil {
		return nil, err
	}
	w.conns[c] = struct{}{}
	w.close() // no other Conn follows
	w.start()
	c.start(func() { w.forget(c) })
	return c, nil
}
