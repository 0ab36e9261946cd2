package stream

import (
	"context"
	"errors"
	"net"
	"strings"

	"ibverbx/internal/service"
	"ibverbx/node"
	"ibverbx/verbs"
)

// defaultService is the service of addresses without one.
const defaultService = "http"

// Dial is like the function Dial, with this Config.
func (cfg Config) Dial(ctx context.Context, p *node.Peer, service string) (*Conn, error) {
	if ctx == nil || p == nil {
		return nil, &net.OpError{Op: "dial", Net: Addr{}.Network(), Addr: Addr{Service: service}, Err: verbs.Invalidf("the Context or the Peer is nil")}
	}
	c, err := cfg.dial(ctx, p, service)
	if err != nil {
		host := ""
		if at := p.Identity().Addr; at != nil {
			host = at.String()
		}
		return nil, &net.OpError{Op: "dial", Net: Addr{}.Network(), Addr: Addr{Host: host, Service: service}, Err: err}
	}
	return c, nil
}

func (cfg Config) dial(ctx context.Context, np *node.Peer, name string) (*Conn, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := checkService(name); err != nil {
		return nil, err
	}
	h, err := serviceOf(np.Node())
	if err != nil {
		return nil, err
	}
	p := h.Of(np.Service())
	for s := service.Session(nil); ; {
		if s, err = p.ready(ctx, s); err != nil {
			return nil, err
		}
		c, err := p.dialIn(ctx, &cfg, s, name)
		if err == nil || ctx.Err() != nil || p.isCurrent(s) && !errors.Is(err, node.ErrLost) {
			return c, err
		}
		// The session was lost meanwhile, and any stream in it.
	}
}

// dialIn opens a stream in a session.
func (p *peer) dialIn(ctx context.Context, cfg *Config, s service.Session, name string) (*Conn, error) {
	c, err := p.newConn(cfg, s, name)
	if err != nil {
		return nil, err
	}
	c.dialed = true
	if err := p.request(ctx, c); err != nil {
		c.abandon()
		return nil, err
	}
	p.owner.counts.dialed.Add(1)
	return c, nil
}

// abandon closes a stream that the program never received, without waiting. The response to a dialed one may still arrive.
func (c *Conn) abandon() {
	c.mu.Lock()
	c.dropUnposted()
	c.mu.Unlock()
	_ = c.Close()
}

// Dialer is like the function Dialer, with this Config.
func (cfg Config) Dialer(n *node.Node) func(ctx context.Context, network, addr string) (net.Conn, error) {
	dial := cfg.ContextDialer(n)
	return func(ctx context.Context, _, addr string) (net.Conn, error) { return dial(ctx, addr) }
}

// ContextDialer is like the function ContextDialer, with this Config.
func (cfg Config) ContextDialer(n *node.Node) func(ctx context.Context, addr string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		host, service, found := strings.Cut(addr, "/")
		if !found {
			service = defaultService
		}
		p, err := n.Peer(ctx, host)
		if err != nil {
			return nil, &net.OpError{Op: "dial", Net: Addr{}.Network(), Addr: Addr{Host: host, Service: service}, Err: err}
		}
		return cfg.Dial(ctx, p, service)
	}
}
