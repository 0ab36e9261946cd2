package cm

import (
	"net/netip"
	"slices"
	"syscall"
	"time"

	"ibverbx/verbs"
)

// network is a Link between the managers of a test. A message arrives when the test delivers it.
type network struct {
	listening map[netip.AddrPort]*memPort
	bound     map[netip.AddrPort]bool
	// ends holds both ends of all open connections.
	ends []*memConn
	free uint16
}

func newNetwork() *network {
	return &network{listening: map[netip.AddrPort]*memPort{}, bound: map[netip.AddrPort]bool{}, free: 40000}
}

// memConn is one end of a connection.
type memConn struct {
	net           *network
	peer          *memConn
	handler       Handler
	local, remote netip.AddrPort
	closed        bool
	queue         []memItem
}

// memItem is a message, a request, or the loss of the connection.
type memItem struct {
	m    *Message
	lost bool
}

func (c *memConn) Addrs() (local, remote netip.AddrPort) { return c.local, c.remote }

func (c *memConn) Send(m *Message) {
	if !c.closed {
		own := *m
		c.peer.queue = append(c.peer.queue, memItem{m: &own})
	}
}

func (c *memConn) Close() {
	if !c.closed {
		c.closed = true
		c.peer.queue = append(c.peer.queue, memItem{lost: true})
	}
}

// deliver delivers the oldest item of an end. It returns false if the queue is empty.
func (c *memConn) deliver() bool {
	if len(c.queue) == 0 {
		return false
	}
	item := c.queue[0]
	c.queue = c.queue[1:]
	switch {
	case c.closed:
	case item.lost && c.handler != nil:
		c.handler.Lost(0)
	case item.lost:
	case c.handler == nil: // a request
		if p := c.net.listening[c.local]; p != nil {
			c.handler = p.serve(c, item.m)
		} else {
			c.Send(&Message{Kind: REJ, Reason: RejectNoListener})
			c.Close()
		}
	default:
		c.handler.Received(item.m)
	}
	return true
}

// drain delivers everything.
func (n *network) drain() {
	for again := true; again; {
		again = false
		for _, c := range n.ends {
			again = c.deliver() || again
		}
	}
	n.ends = slices.DeleteFunc(n.ends, func(c *memConn) bool { return c.closed && c.peer.closed })
}

// memPort is a Port of a network.
type memPort struct {
	net           *network
	local, remote netip.AddrPort
	serve         func(Conn, *Message) Handler
}

func (n *network) IsLocal(addr netip.Addr) bool { return addr.IsLoopback() }

func (n *network) Bind(addr netip.AddrPort, _ PortOptions) (Port, error) {
	if addr.Port() == 0 {
		n.free++
		addr = netip.AddrPortFrom(addr.Addr(), n.free)
	}
	if n.bound[addr] {
		return nil, syscall.EADDRINUSE
	}
	n.bound[addr] = true
	return &memPort{net: n, local: addr}, nil
}

func (n *network) Resolve(p Port, src, dst netip.AddrPort, _ PortOptions) (Port, error) {
	if p == nil {
		if !src.IsValid() {
			src = netip.MustParseAddrPort("127.0.0.1:0")
		}
		var err error
		if p, err = n.Bind(src, PortOptions{}); err != nil {
			return nil, err
		}
	}
	p.(*memPort).remote = dst
	return p, nil
}

func (p *memPort) Local() netip.AddrPort { return p.local }

func (p *memPort) Listen(serve func(Conn, *Message) Handler) error {
	p.serve = serve
	p.net.listening[p.local] = p
	return nil
}

func (p *memPort) Connect(req *Message, h Handler) Conn {
	a := &memConn{net: p.net, handler: h, local: p.local, remote: p.remote}
	b := &memConn{net: p.net, local: p.remote, remote: p.local, peer: a}
	a.peer = b
	p.net.ends = append(p.net.ends, a, b)
	a.Send(req)
	return a
}

func (p *memPort) Close() {
	delete(p.net.bound, p.local)
	if p.net.listening[p.local] == p {
		delete(p.net.listening, p.local)
	}
}

// count is a Tokens that counts.
type count int

func (c *count) Add()       { *c++ }
func (c *count) Drop(n int) { *c -= count(n) }

// clock runs the delayed calls of a test.
type clock struct{ calls []*func() }

func (c *clock) later(_ time.Duration, f func()) func() {
	call := &f
	c.calls = append(c.calls, call)
	return func() { c.calls = slices.DeleteFunc(c.calls, func(x *func()) bool { return x == call }) }
}

// fire runs all calls.
func (c *clock) fire() {
	calls := c.calls
	c.calls = nil
	for _, f := range calls {
		(*f)()
	}
}

// newManager returns a manager with one NIC at addr.
func newManager(n *network, c *clock, addr string) *Manager {
	a := netip.MustParseAddr(addr)
	return New(Config{
		Devices: []Device{{GUID: 7, Index: 0, Addr: a, GID: verbs.GIDFromAddr(a), LID: 5000, MTU: verbs.MTU4096}}, Link: n, Later: c.later,
		Random: func() uint32 { return 0xff123456 },
	})
}
