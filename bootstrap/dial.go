package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"

	"ibverbx/internal/printable"
)

// Dialer connects to listeners with one Config. It reads the Config's files once, and again when they change. A program with many peers
// shares one Dialer. Its methods are safe for concurrent use.
type Dialer struct{ *credentialWatcher }

// NewDialer returns a Dialer. It returns ErrConfig for an invalid Config or unusable credentials.
func NewDialer(cfg Config) (*Dialer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	w, err := newCredentialWatcher(cfg, true)
	if err != nil {
		return nil, err
	}
	w.start()
	return &Dialer{w}, nil
}

// Dial connects to a listener and returns when both sides are authenticated. addr is "host:port". ctx only bounds the call, not the
// lifetime of the Conn. Dial returns ErrAuth if either side rejects the other, ErrVersion, ErrBusy, ErrTimeout, ErrProtocol if the listener
// is another program, ErrInsecure, ErrConfig if the token file was removed, ErrClosed after Close, or a network error.
func (d *Dialer) Dial(ctx context.Context, addr string) (*Conn, error) {
	c, err := d.dial(ctx, addr)
	if err != nil {
		return nil, printable.Error(fmt.Errorf("dial %s: %w", addr, err))
	}
	return c, nil
}

func (d *Dialer) dial(ctx context.Context, addr string) (*Conn, error) {
	if d == nil || d.credentialWatcher == nil {
		return nil, ErrClosed
	}
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	cred := d.credentials()
	if cred.auth == AuthToken && len(cred.tokens) == 0 {
		return nil, badConfig("token file %s was removed: create it again", d.cfg.TokenFile)
	}
	socket := net.Dialer{Timeout: d.cfg.HandshakeTimeout}
	raw, err := socket.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &unauthConn{raw: raw, cfg: &d.cfg, cred: cred, dialed: true, host: host}
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
		d.forget(c) // it was closed before it was added
	}
	return c, nil
}

// Close closes the Dialer. Its Conns stay open. It returns nil, or ErrClosed for the zero value.
func (d *Dialer) Close() error {
	if d == nil || d.credentialWatcher == nil {
		return ErrClosed
	}
	d.close()
	return nil
}

// Dial connects with a temporary Dialer, see Dialer.Dial. Changed files are still reloaded while the Conn is open.
func Dial(ctx context.Context, addr string, cfg Config) (*Conn, error) {
	d, err := NewDialer(cfg)
	if err != nil {
		return nil, printable.Error(fmt.Errorf("dial %s: %w", addr, err))
	}
	defer d.close() // only one Conn is needed
	return d.Dial(ctx, addr)
}
