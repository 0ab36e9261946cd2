package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/perf/measure"
	"ibverbx/peer"
)

// perfRemote is the other process of a test.
type perfRemote struct {
	conn  *bootstrap.Conn
	flags *perfFlags
	// fabric describes the NICs once the test is known.
	fabric peer.Fabric
	nics   *nics
	// begin waits for the turn of a client. Nil means that it need not wait.
	begin func() error
	notes io.Writer // for the user
}

func (p *perfRemote) close(why error) (err error) {
	if p.nics != nil {
		err = p.nics.close()
	}
	if why != nil {
		return errors.Join(err, p.conn.CloseWith(why.Error()))
	}
	return errors.Join(err, p.conn.Close())
}

// Send implements measure.Peer.
func (p *perfRemote) Send(ctx context.Context, b []byte) error {
	return p.conn.Send(ctx, bootstrap.KindApplication, b)
}

// Recv implements measure.Peer.
func (p *perfRemote) Recv(ctx context.Context) ([]byte, error) {
	m, err := p.conn.Recv(ctx)
	if err == nil && m.Kind != bootstrap.KindApplication {
		err = fmt.Errorf("receive from %v: %w: a message of kind %d during a test", p.conn.Peer().Addr, bootstrap.ErrProtocol, m.Kind)
	}
	return m.Body, err
}

// Waiting implements measure.Peer.
func (p *perfRemote) Waiting(ahead int) {
	fmt.Fprintf(p.notes, "ibverbx: the server measures for one client at a time: %d before this one\n", ahead)
}

// Open implements measure.Peer.
func (p *perfRemote) Open(c *measure.Config) ([]ibverbx.RailConfig, error) {
	if p.begin != nil {
		if err := p.begin(); err != nil {
			return nil, err
		}
	}
	f := p.flags
	local, err := netip.ParseAddrPort(p.conn.LocalAddr().String())
	if err != nil {
		return nil, fmt.Errorf("the address %s of this side: %w", p.conn.LocalAddr(), err)
	}
	p.fabric = f.Fabric
	p.fabric.RailCount, p.fabric.Lanes, p.fabric.Transport, p.fabric.Impair = c.Rails, c.QPs, "", c.Impair // prepare adds the Transport
	if p.fabric.Provider == peer.ProviderAuto && f.Devices == "" {
		p.fabric.Provider = peer.ProviderSoftNIC // works on every host
	}
	open, err := p.fabric.OpenNICs(local.Addr().Unmap())
	if err != nil && p.fabric.Provider != peer.ProviderSoftNIC {
		err = explained(err)
	}
	if err != nil {
		return nil, f.Explain(err)
	}
	p.nics = &nics{}
	p.nics.closers.Add(open.Close)
	p.nics.ends[0] = open.Rails
	err = f.prepare(c, p.nics, 0)
	return p.nics.ends[0], err
}

// Connect implements measure.Peer.
func (p *perfRemote) Connect(ctx context.Context, cfg peer.Config) (*peer.Session, error) {
	cfg.Fabric = p.fabric.Opened()
	cfg.Lanes = 0 // cfg.QP has the test's
	return peer.Connect(ctx, p.conn, !p.flags.server, cfg)
}

// runClient measures against a server. A signal stops it even while it connects or waits for its turn.
func runClient(ctx context.Context, s streams, f *perfFlags) (err error) {
	defer func() {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = fmt.Errorf("%w: %w", stopped(ctx, err), err)
		}
	}()
	auth, err := f.auth.config(&s, f.host)
	if err != nil {
		return err
	}
	addr := withPort(f.host, defaultPort)
	conn, err := bootstrap.Dial(ctx, addr, auth)
	if err != nil {
		return perfServer.explainDial(addr, f.auth.token, err)
	}
	p := &perfRemote{conn: conn, flags: f, notes: s.err}
	if err = p.takePart(ctx, s); errors.Is(err, bootstrap.ErrPeerClosed) {
		return perfServer.explainDial(addr, f.auth.token, err)
	}
	return err
}

// takePart takes part in a test over the connection, as the client that dialed or as the server, and
// closes the connection.
func (p *perfRemote) takePart(ctx context.Context, s streams) (err error) {
	f := p.flags
	defer func() { err = errors.Join(err, p.close(err)) }()
	defer f.metrics.met(p.conn)()
	newTest := measure.NewClient
	if f.server {
		newTest = measure.NewServer
	}
	test, err := newTest(ctx, p, f.cfg)
	if err != nil {
		return err
	}
	return show(ctx, s, f, test, p.conn.Peer().Addr.String())
}
