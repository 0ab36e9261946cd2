//go:build linux

package wire

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/dropin/internal/cm"
)

const (
	// reachTimeout bounds the search for a port, and opening the TCP connection. The kernel tries for a minute.
	reachTimeout = 5 * time.Second
	// listenGrace is the time that a port may take to listen after the first query. Programs such
	// as perftest listen anew for a second connection, and a client on the same host may find the
	// port still closed.
	listenGrace = 200 * time.Millisecond
	// graceRetry is the delay between queries during listenGrace.
	graceRetry = 10 * time.Millisecond
	// firstRetry is the delay before a lost query is repeated. It doubles each time.
	firstRetry = 50 * time.Millisecond
	// requestTimeout bounds the wait for the REQ of a new TCP connection. maxHalfOpen is the
	// maximum number of connections waiting for it per port; others wait in the kernel.
	requestTimeout = 5 * time.Second
	maxHalfOpen    = 128
)

// keepAlive detects the loss of the peer's host, on both sides of a TCP connection.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 5}

// Link is a cm.Link over sockets.
type Link struct {
	// LocalOnly ignores queries and connections from other hosts.
	LocalOnly bool
}

var _ cm.Link = Link{}

// IsLocal reports whether an address belongs to this host.
func (Link) IsLocal(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if addr.IsLoopback() {
		return true
	}
	all, _ := net.InterfaceAddrs() // after an error the list is empty
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == addr {
			return true
		}
	}
	return false
}

// serves reports whether the link responds to an address.
func (l Link) serves(addr netip.Addr) bool { return !l.LocalOnly || l.IsLocal(addr) }

// port is a bound RDMA port.
type port struct {
	link Link
	// udp is bound to the RDMA port number. In a resolved port, it is connected to the remote one.
	udp   *net.UDPConn
	tcp   *net.TCPListener // nil unless the port listens
	local netip.AddrPort
	// remote is set in a resolved port.
	remote netip.AddrPort
	only6  bool
	// shared is set if another UDP socket has the port's number, so udp uses a different one.
	shared bool
}

// network returns the name of a network for an address.
func network(name string, addr netip.Addr, only6 bool) string {
	switch {
	case addr.Is4():
		return name + "4"
	case addr.IsUnspecified() && !only6:
		return name // IPv4, too
	}
	return name + "6"
}

// Bind implements cm.Link.
func (l Link) Bind(addr netip.AddrPort, o cm.PortOptions) (cm.Port, error) {
	return l.bind(addr, o, func(from netip.AddrPort) (*net.UDPConn, error) {
		return net.ListenUDP(network("udp", addr.Addr(), o.Only6), net.UDPAddrFromAddrPort(from))
	})
}

// bind opens a socket for a port. If the number is in use and may be shared, the socket gets a
// different one.
func (l Link) bind(addr netip.AddrPort, o cm.PortOptions, open func(netip.AddrPort) (*net.UDPConn, error)) (*port, error) {
	udp, err := open(addr)
	shared := o.Shared && errors.Is(err, syscall.EADDRINUSE)
	if shared {
		udp, err = open(netip.AddrPortFrom(addr.Addr(), 0))
	}
	if err != nil {
		return nil, errno(err)
	}
	p := &port{link: l, udp: udp, local: addrPort(udp.LocalAddr()), only6: o.Only6, shared: shared}
	if shared {
		p.local = netip.AddrPortFrom(p.local.Addr(), addr.Port())
	}
	return p, nil
}

// Resolve implements cm.Link.
func (l Link) Resolve(bound cm.Port, src, dst netip.AddrPort, o cm.PortOptions) (cm.Port, error) {
	if p, ok := bound.(*port); ok {
		return p, p.connect(dst)
	}
	p, err := l.bind(src, o, func(from netip.AddrPort) (*net.UDPConn, error) {
		var a *net.UDPAddr
		if from.IsValid() && (from.Port() != 0 || !from.Addr().IsUnspecified()) {
			a = net.UDPAddrFromAddrPort(from)
		}
		return net.DialUDP("udp", a, net.UDPAddrFromAddrPort(dst))
	})
	if err != nil {
		return nil, err
	}
	p.remote = dst
	return p, nil
}

// control calls do with the UDP socket.
func (p *port) control(do func(fd int) error) error {
	raw, err := p.udp.SyscallConn()
	if err != nil {
		return errno(err)
	}
	var failure error
	err = raw.Control(func(fd uintptr) { failure = do(int(fd)) })
	if err = errors.Join(err, failure); err != nil {
		return errno(err)
	}
	return nil
}

// connect connects the UDP socket of a bound port, so that it receives errors and has a local address.
func (p *port) connect(dst netip.AddrPort) error {
	zone, _ := strconv.ParseUint(dst.Addr().Zone(), 10, 32) // 0 without a zone
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: int(dst.Port()), Addr: dst.Addr().As16(), ZoneId: uint32(zone)}
	if p.local.Addr().Is4() {
		if !dst.Addr().Is4() {
			return syscall.EINVAL
		}
		to = &unix.SockaddrInet4{Port: int(dst.Port()), Addr: dst.Addr().As4()}
	}
	p.remote = dst
	return p.control(func(fd int) error {
		if err := unix.Connect(fd, to); err != nil {
			return err
		}
		sa, err := unix.Getsockname(fd)
		number := p.local.Port()
		switch sa := sa.(type) {
		case *unix.SockaddrInet4:
			p.local = netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), number)
		case *unix.SockaddrInet6:
			p.local = netip.AddrPortFrom(inZone(netip.AddrFrom16(sa.Addr).Unmap(), int(sa.ZoneId)), number)
		}
		return err
	})
}

// Local implements cm.Port.
func (p *port) Local() netip.AddrPort { return p.local }

// Listen implements cm.Port.
func (p *port) Listen(serve func(cm.Conn, *cm.Message) cm.Handler) error {
	if p.shared {
		return syscall.EADDRINUSE
	}
	addr := p.local.Addr()
	tcp, err := net.ListenTCP(network("tcp", addr, p.only6), net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		return errno(err)
	}
	// The kernel reports the destination of each query, which becomes the source of the response.
	level, option := unix.IPPROTO_IP, unix.IP_PKTINFO
	if addr.Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	}
	if err := p.control(func(fd int) error { return unix.SetsockoptInt(fd, level, option, 1) }); err != nil {
		_ = tcp.Close()
		return err
	}
	p.tcp = tcp
	go p.respond(addrPort(tcp.Addr()).Port())
	go p.accept(serve)
	return nil
}

// respond answers queries until the port is closed.
func (p *port) respond(tcp uint16) {
	var b [2 * datagramSize]byte
	var control [128]byte
	for {
		n, c, _, from, err := p.udp.ReadMsgUDPAddrPort(b[:], control[:])
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // n is -1
		}
		nonce, _, invalid := decodeDatagram(b[:n], queryKind)
		if invalid != nil || !p.link.serves(from.Addr()) {
			continue
		}
		// A lost response is handled like a lost query.
		_, _, _ = p.udp.WriteMsgUDPAddrPort(encodeDatagram(responseKind, nonce, tcp), control[:c], from)
	}
}

// accept accepts TCP connections until the port is closed.
func (p *port) accept(serve func(cm.Conn, *cm.Message) cm.Handler) {
	slots := make(chan struct{}, maxHalfOpen)
	for {
		slots <- struct{}{}
		tcp, err := p.tcp.AcceptTCP()
		switch {
		case err == nil:
			go p.receive(tcp, serve, func() { <-slots })
		case errors.Is(err, net.ErrClosed):
			return
		default: // such as too many open files
			<-slots
			time.Sleep(firstRetry)
		}
	}
}

// receive waits for the REQ of a TCP connection and serves it.
func (p *port) receive(tcp *net.TCPConn, serve func(cm.Conn, *cm.Message) cm.Handler, release func()) {
	c := &conn{tcp: tcp}
	from := addrPort(tcp.RemoteAddr()).Addr()
	_ = tcp.SetReadDeadline(time.Now().Add(requestTimeout))
	m, err := c.read()
	release()
	if err != nil || m.Kind != cm.REQ || !p.link.serves(from) {
		c.Close()
		return
	}
	_ = tcp.SetReadDeadline(time.Time{})
	_ = tcp.SetKeepAliveConfig(keepAlive)
	c.local = netip.AddrPortFrom(addrPort(tcp.LocalAddr()).Addr(), p.local.Port())
	c.remote = netip.AddrPortFrom(from, m.Port)
	if h := serve(c, &m); h != nil {
		c.deliver(h)
	}
}

// Connect implements cm.Port.
func (p *port) Connect(req *cm.Message, h cm.Handler) cm.Conn {
	ctx, cancel := context.WithCancel(context.Background())
	c := &conn{cancel: cancel}
	go func() {
		m, why := c.open(ctx, p, req)
		switch {
		case m != nil:
			h.Received(m)
		case why != 0:
			h.Lost(why)
		default:
			c.deliver(h)
		}
	}()
	return c
}

// find returns the TCP address of the process that owns the remote port.
func (p *port) find() (netip.AddrPort, error) {
	nonce, begin := rand.Uint64(), time.Now()
	for delay := firstRetry; time.Since(begin) < reachTimeout; {
		tcp, err := p.query(nonce, min(delay, reachTimeout-time.Since(begin)))
		switch {
		case err == nil:
			return netip.AddrPortFrom(p.remote.Addr(), tcp), nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			delay *= 2
		case errors.Is(err, syscall.ECONNREFUSED) && time.Since(begin) < listenGrace:
			time.Sleep(graceRetry)
		default:
			return netip.AddrPort{}, err
		}
	}
	return netip.AddrPort{}, syscall.ETIMEDOUT
}

// query sends a query and waits for the response.
func (p *port) query(nonce uint64, wait time.Duration) (tcp uint16, err error) {
	if _, err := p.udp.Write(encodeDatagram(queryKind, nonce, 0)); err != nil {
		return 0, err
	}
	_ = p.udp.SetReadDeadline(time.Now().Add(wait))
	var b [2 * datagramSize]byte
	for {
		n, err := p.udp.Read(b[:])
		if err != nil {
			return 0, err
		}
		if got, tcp, err := decodeDatagram(b[:n], responseKind); err == nil && got == nonce {
			return tcp, nil
		}
	}
}

// Close implements cm.Port.
func (p *port) Close() {
	_ = p.udp.Close()
	if p.tcp != nil {
		_ = p.tcp.Close()
	}
}

// addrPort returns an address of package net, whose zone is the name of an interface.
func addrPort(a net.Addr) netip.AddrPort {
	ap := a.(interface{ AddrPort() netip.AddrPort }).AddrPort()
	addr := ap.Addr().Unmap()
	if addr.Zone() != "" {
		if in, err := net.InterfaceByName(addr.Zone()); err == nil {
			addr = inZone(addr, in.Index)
		}
	}
	return netip.AddrPortFrom(addr, ap.Port())
}

// inZone returns a link-local address with the number of its interface as the zone, as programs name it. Other addresses have number 0.
func inZone(addr netip.Addr, index int) netip.Addr {
	if index == 0 {
		return addr
	}
	return addr.WithZone(strconv.Itoa(index))
}

// errno maps an error of package net to its errno, or to EIO.
func errno(err error) syscall.Errno {
	no := syscall.EIO
	var late net.Error
	if !errors.As(err, &no) && errors.As(err, &late) && late.Timeout() {
		return syscall.ETIMEDOUT
	}
	return no
}
