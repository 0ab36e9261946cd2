package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/remote"
	"ibverbx/peer"
	"ibverbx/settings"
)

// perfRemote is the other process of a test.
type perfRemote struct {
	conn   *bootstrap.Conn
	dialer bool
	from   opener
	nics   *nics
	// settings are those of this side.
	settings *settings.Settings
	link     peer.Link
	// networks are those that the peer's NICs may be on.
	networks []netip.Prefix
	// unsealed turns off the sealing of packets.
	unsealed bool
	// begin waits for the turn of a client. Nil means that it need not wait.
	begin func() error
	notes io.Writer // for the user
}

// newPerfRemote makes a perfRemote of a connection. Its close closes the connection too.
func newPerfRemote(conn *bootstrap.Conn, dialer bool, f *perfFlags) (*perfRemote, error) {
	from, err := f.remote(conn.LocalAddr())
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	p := &perfRemote{
		conn: conn, dialer: dialer, from: from, settings: &f.settings,
		link: cmp.Or(f.link, peer.LinkAuto), unsealed: f.unsealed,
	}
	if len(f.addrs)+len(f.cfg.Impair) > 0 || f.capture.on() {
		p.link = peer.LinkUDP
	}
	for _, n := range f.networks {
		network, err := netip.ParsePrefix(n.String())
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		p.networks = append(p.networks, network)
	}
	return p, nil
}

func (p *perfRemote) close(why error) error {
	var errs []error
	if p.nics != nil {
		errs = append(errs, p.nics.close())
	}
	if why != nil {
		return errors.Join(append(errs, p.conn.CloseWith(why.Error()))...)
	}
	return errors.Join(append(errs, p.conn.Close())...)
}

// Send implements remote.Remote.
func (p *perfRemote) Send(ctx context.Context, b []byte) error {
	return p.conn.Send(ctx, bootstrap.KindApplication, b)
}

// Recv implements remote.Remote.
func (p *perfRemote) Recv(ctx context.Context) ([]byte, error) {
	m, err := p.conn.Recv(ctx)
	if err == nil && m.Kind != bootstrap.KindApplication {
		err = fmt.Errorf("receive from %v: %w: a message of kind %d during a test", p.conn.Peer().Addr, bootstrap.ErrProtocol, m.Kind)
	}
	return m.Body, err
}

// Waiting implements remote.Remote.
func (p *perfRemote) Waiting(ahead int) {
	fmt.Fprintf(p.notes, "ibverbx: the server measures for one client at a time: %d before this one\n", ahead)
}

// Open implements remote.Remote.
func (p *perfRemote) Open(c *measure.Config) ([]ibverbx.RailConfig, error) {
	if p.begin != nil {
		if err := p.begin(); err != nil {
			return nil, err
		}
	}
	n, err := p.from.openEnd(c)
	if err != nil {
		return nil, err
	}
	p.nics = n
	return n.ends[0], n.set(c, p.settings)
}

// Connect implements remote.Remote.
func (p *perfRemote) Connect(ctx context.Context, cfg peer.Config) (*peer.Session, error) {
	cfg.PeerNetworks, cfg.Link, cfg.Unsealed = p.networks, p.link, p.unsealed
	return peer.Connect(ctx, p.conn, p.dialer, cfg)
}

// runClient measures against a server.
func runClient(ctx context.Context, s streams, f *perfFlags) error {
	auth, err := f.auth.config(f.host)
	if err != nil {
		return err
	}
	conn, err := bootstrap.Dial(ctx, withPort(f.host, defaultPort), auth)
	if err != nil {
		return err
	}
	p, err := newPerfRemote(conn, true, f)
	if err != nil {
		return err
	}
	p.notes = s.err
	return p.takePart(ctx, s, f)
}

// takePart takes part in a test over the connection, as the client that dialed or as the server, and
// closes the connection.
func (p *perfRemote) takePart(ctx context.Context, s streams, f *perfFlags) (err error) {
	defer func() { err = errors.Join(err, p.close(err)) }()
	defer f.metrics.met(p.conn)()
	newTest := remote.NewServer
	if p.dialer {
		newTest = remote.NewClient
	}
	test, err := newTest(ctx, p, f.cfg)
	if err != nil {
		return err
	}
	return show(ctx, s, f, test, p.conn.Peer().Addr.String())
}
