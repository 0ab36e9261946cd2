package failover_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// cabled is a device that connects no QP while its port is down, as a NIC that must find the peer's address first.
type cabled struct{ verbs.Context }

// AllocPD implements verbs.Context.
func (c cabled) AllocPD() (verbs.PD, error) {
	pd, err := c.Context.AllocPD()
	return cabledPD{pd, c.Context}, err
}

type cabledPD struct {
	verbs.PD
	ctx verbs.Context
}

// CreateQP implements verbs.PD.
func (p cabledPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	qp, err := p.PD.CreateQP(cfg)
	return cabledQP{qp, p.ctx}, err
}

type cabledQP struct {
	verbs.QP
	ctx verbs.Context
}

var errNoCarrier = errors.New("no carrier")

// Connect implements verbs.QP.
func (q cabledQP) Connect(to verbs.Endpoint) error {
	port, err := q.ctx.QueryPort(1)
	if err == nil && port.State != verbs.PortActive {
		err = errNoCarrier
	}
	if err != nil {
		return err
	}
	return q.QP.Connect(to)
}

// TestConnectWithPortDown: a port of one side, or of both, is down when a VirtualQP is connected. Its lanes
// start out of service immediately, without a timeout. WRITEs and SENDs use the other rail, and atomics wait
// if their rail is down. When the port is active, all lanes enter service.
func TestConnectWithPortDown(t *testing.T) {
	plain := func(_ int, nic verbs.Context) verbs.Context { return nic }
	strict := func(_ int, nic verbs.Context) verbs.Context { return cabled{nic} }
	wrap := &reliable.Config{Paths: 4, ChunkBytes: 4096, GiveUp: int64(100 * time.Millisecond)}
	ud := &reliable.Config{Carrier: verbs.UD, Paths: 4, GiveUp: int64(100 * time.Millisecond)}
	for name, c := range map[string]struct {
		over  func(int, verbs.Context) verbs.Context
		wraps []*reliable.Config
	}{
		"plain":                {plain, make([]*reliable.Config, 2)},
		"connect needs a port": {strict, make([]*reliable.Config, 2)},
		"over reliable":        {plain, []*reliable.Config{wrap, wrap}},
		"over datagrams":       {plain, []*reliable.Config{ud, ud}},
	} {
		t.Run(name, func(t *testing.T) {
			enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
				if c.wraps[0] != nil && scheme != ibverbx.Tally {
					return // slow, and lanes are independent of the scheme
				}
				for rail := range 2 {
					for _, hosts := range [][]int{{0}, {1}, {0, 1}} {
						t.Run(fmt.Sprintf("rail=%d/hosts=%v", rail, hosts), func(t *testing.T) {
							d, _ := newStrangers(t, c.over, c.wraps, ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 4096}, ibverbx.CQConfig{Waker: verbs.NewWaker()})
							for _, h := range hosts {
								d.hosts[h].NICs[rail].SetPort(false)
							}
							enginetest.Connect(t, d.hosts[0].QP, d.hosts[1].QP)
							for _, h := range hosts {
								if r := d.hosts[h].QP.Stats().Rails; r[rail].Up != 0 || r[1-rail].Up != 2 {
									t.Errorf("host %d: %d data lanes are in service on the rail that is down and %d on the other, want 0 and 2", h, r[rail].Up, r[1-rail].Up)
								}
							}
							beginWith(t, d)
							for _, h := range hosts {
								d.hosts[h].NICs[rail].SetPort(true)
							}
							d.until("all lanes are in service", d.allUp)
							d.until("the atomic has ended", func() bool { return len(d.got[0]) == beginMessages+2 })
							if wc := d.got[0][beginMessages+1]; wc.Err() != nil || wc.WRID != beginMessages+1 {
								t.Errorf("the completion of the atomic is of %d: %v", wc.WRID, wc.Err())
							}
						})
					}
				}
			})
		})
	}
}

// beginMessages is the number of WRITEs that beginWith posts, before a SEND and an atomic.
const beginMessages = 8

// beginWith sends messages of every kind from host 0 to host 1. It does not wait for the atomic.
func beginWith(t *testing.T, d *duo) {
	t.Helper()
	const messages, size = beginMessages, 40_000
	local, remote := d.hosts[0].Region(messages*size), d.hosts[1].Region(messages*size)
	enginetest.Fill(local.Bytes(), 7)
	d.post(0, messages, size, local, remote)
	d.until("the WRITEs have arrived", func() bool { return len(d.got[0]) == messages && len(d.got[1]) == messages })
	d.check(messages, local, remote)
	recv := ibverbx.RecvWR{WRID: messages}
	recv.SetSGE(remote.SGE(0, size))
	d.hosts[1].PostRecv(recv)
	send := ibverbx.SendWR{WRID: messages, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	send.SetSGE(local.SGE(0, size))
	add := ibverbx.SendWR{WRID: messages + 1, Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.SendSignaled, CompareAdd: 1, Remote: remote.Remote()}
	add.SetSGE(local.SGE(0, 8))
	d.hosts[0].PostSend(send)
	d.hosts[0].PostSend(add)
	d.until("the SEND has ended", func() bool { return len(d.got[0]) > messages && len(d.got[1]) > messages })
	for i, side := range d.got {
		for k, wc := range side {
			if wc.Err() != nil || wc.WRID != uint64(k) {
				t.Errorf("completion %d of host %d is of %d: %v", k, i, wc.WRID, wc.Err())
			}
		}
	}
}

// TestConnectWithPortDownAndNoControl: without failover, a lane that cannot be connected is an error.
func TestConnectWithPortDownAndNoControl(t *testing.T) {
	d, _ := newStrangers(t, func(_ int, nic verbs.Context) verbs.Context { return cabled{nic} }, make([]*reliable.Config, 2), ibverbx.Config{Lanes: 2}, ibverbx.CQConfig{})
	q := d.hosts[0].NewQP(ibverbx.Config{Lanes: 2})
	card, err := d.hosts[1].QP.Card()
	enginetest.Must(t, err)
	d.hosts[0].NICs[1].SetPort(false)
	if err := q.Connect(card); !errors.Is(err, errNoCarrier) {
		t.Errorf("Connect: got %v, want %v", err, errNoCarrier)
	}
}

// flickering is a cabled device whose port becomes active after a number of queries.
type flickering struct {
	cabled
	queries int // remaining QueryPort calls that still report the port as down; below 1 they pass through
	up      func()
}

// QueryPort implements verbs.Context.
func (c *flickering) QueryPort(port int) (verbs.PortAttr, error) {
	a, err := c.cabled.QueryPort(port)
	if c.queries--; c.queries == 0 {
		c.up()
	}
	return a, err
}

// TestConnectWhilePortComesUp: a port is active again right after the NIC could not connect its lanes.
// Without a peer, they still start out of service, and enter service later.
func TestConnectWhilePortComesUp(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		const lanes, rail = 4, 1
		var d *duo
		var port *flickering
		over := func(r int, nic verbs.Context) verbs.Context {
			if r != rail || port != nil { // host 0 is first
				return nic
			}
			port = &flickering{cabled: cabled{nic}, up: func() { d.hosts[0].NICs[rail].SetPort(true) }}
			return port
		}
		d, _ = newStrangers(t, over, make([]*reliable.Config, 2), ibverbx.Config{Lanes: lanes, Scheme: scheme, FragmentSize: 4096}, ibverbx.CQConfig{Waker: verbs.NewWaker()})
		d.hosts[0].NICs[rail].SetPort(false)
		port.queries = lanes / 2
		enginetest.Connect(t, d.hosts[0].QP, d.hosts[1].QP)
		if port.queries > 0 {
			t.Fatalf("the port is down, and its state was not queried %d times", lanes/2)
		}
		if up := d.hosts[0].QP.Stats().Rails[rail].Up; up != 0 {
			t.Errorf("%d lanes that were not connected are in service, want 0", up)
		}
		beginWith(t, d)
		d.until("all lanes are in service", d.allUp)
	})
}
