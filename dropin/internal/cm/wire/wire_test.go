//go:build linux

package wire

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ibverbx/dropin/internal/cm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ends collects the calls of a handler.
type ends struct {
	got  chan cm.Message
	lost chan syscall.Errno
}

func newEnds() *ends { return &ends{make(chan cm.Message, 8), make(chan syscall.Errno, 8)} }

func (e *ends) Received(m *cm.Message) { e.got <- *m }
func (e *ends) Lost(why syscall.Errno) { e.lost <- why }

const patience = 30 * time.Second

// take waits for and returns a value.
func take[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatal("nothing arrived")
	}
	return v
}

// listen binds and listens. Requests arrive on the channel.
func listen(t *testing.T, l Link, addr string, h cm.Handler) (cm.Port, <-chan cm.Conn) {
	t.Helper()
	p, err := l.Bind(netip.MustParseAddrPort(addr), cm.PortOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	conns := make(chan cm.Conn, 8)
	err = p.Listen(func(c cm.Conn, _ *cm.Message) cm.Handler {
		t.Cleanup(c.Close)
		conns <- c
		return h
	})
	if err != nil {
		t.Fatal(err)
	}
	return p, conns
}

// dial resolves and connects.
func dial(t *testing.T, to netip.AddrPort, h cm.Handler) (cm.Port, cm.Conn) {
	t.Helper()
	p, err := Link{}.Resolve(nil, netip.AddrPort{}, to, cm.PortOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	m := request()
	m.Port = p.Local().Port()
	c := p.Connect(m, h)
	t.Cleanup(c.Close)
	return p, c
}

// TestExchange: messages arrive in both directions, and closing one end is a loss at the other, for
// each kind of address.
func TestExchange(t *testing.T) {
	for _, tt := range []struct{ listen, dial string }{
		{"127.0.0.1:0", "127.0.0.1"}, {"0.0.0.0:0", "127.0.0.1"}, {"0.0.0.0:0", "127.0.0.9"}, {"[::1]:0", "::1"}, {"[::]:0", "::1"}, {"[::]:0", "127.0.0.9"},
	} {
		t.Run(tt.listen+" "+tt.dial, func(t *testing.T) {
			server, client := newEnds(), newEnds()
			p, conns := listen(t, Link{LocalOnly: true}, tt.listen, server)
			to := netip.AddrPortFrom(netip.MustParseAddr(tt.dial), p.Local().Port())
			port, c := dial(t, to, client)
			s := take(t, conns)
			if local, remote := s.Addrs(); local != to || remote != port.Local() {
				t.Errorf("Addrs = %v, %v, want %v, %v", local, remote, to, port.Local())
			}
			rep := request()
			rep.Kind = cm.REP
			s.Send(rep)
			if m := take(t, client.got); m != *rep {
				t.Errorf("received %+v, want %+v", m, rep)
			}
			c.Send(&cm.Message{Kind: cm.RTU})
			c.Send(&cm.Message{Kind: cm.DREQ})
			c.Close()
			if a, b := take(t, server.got), take(t, server.got); a.Kind != cm.RTU || b.Kind != cm.DREQ {
				t.Errorf("received %d and %d, want RTU and DREQ", a.Kind, b.Kind)
			}
			if why := take(t, server.lost); why != 0 {
				t.Errorf("lost for %v, want 0", why)
			}
		})
	}
}

// TestNobody: without a listener, the link rejects the request, even if the port has a TCP service.
func TestNobody(t *testing.T) {
	for range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addr := l.Addr().(*net.TCPAddr).AddrPort()
		if u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr)); err != nil {
			continue // another process uses the number there
		} else {
			u.Close()
		}
		client := newEnds()
		dial(t, addr, client)
		if m := take(t, client.got); m.Kind != cm.REJ || m.Reason != cm.RejectNoListener {
			t.Errorf("received %+v, want REJ with reason 8", m)
		}
		return
	}
	t.Error("no number is free for UDP")
}

// TestRefused: a listener that closes before accepting a connection counts as refusing it, like a
// closed port.
func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		err  syscall.Errno
		want bool
	}{{syscall.ECONNREFUSED, true}, {syscall.ECONNRESET, true}, {syscall.EHOSTUNREACH, false}, {syscall.ETIMEDOUT, false}} {
		dialed := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", tt.err)}
		if got := refused(dialed); got != tt.want {
			t.Errorf("refused(%v) = %t, want %t", dialed, got, tt.want)
		}
	}
}

// TestNoSIGPIPE: sending a record to a lost peer does not raise SIGPIPE, which would kill a C
// program whose thread sends it.
func TestNoSIGPIPE(t *testing.T) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tcp, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	c := &conn{tcp: tcp}
	defer c.Close()
	peer, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	_ = peer.SetLinger(0)
	_ = peer.Close()
	if _, err := c.read(); err == nil {
		t.Fatal("a reset connection was read")
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGPIPE, syscall.SIGWINCH)
	defer signal.Stop(signals)
	c.Send(&cm.Message{Kind: cm.DREQ})
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil { // pending signals are delivered in ascending order
		t.Fatal(err)
	}
	if got := <-signals; got != syscall.SIGWINCH {
		t.Errorf("the process got %v", got)
	}
}

// TestTCPBeside: a TCP service may use a listening port's number.
func TestTCPBeside(t *testing.T) {
	var err error
	for range 20 { // another process may use the number
		p, _ := listen(t, Link{}, "127.0.0.1:0", newEnds())
		var l net.Listener
		if l, err = net.Listen("tcp", p.Local().String()); err == nil {
			l.Close()
			return
		}
	}
	t.Error(err)
}

// TestSilence: an unresponsive host is reported as unreachable within a bounded time.
func TestSilence(t *testing.T) {
	t.Parallel()
	silent, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	client := newEnds()
	dial(t, silent.LocalAddr().(*net.UDPAddr).AddrPort(), client)
	if why := take(t, client.lost); why != syscall.ETIMEDOUT {
		t.Errorf("lost for %v, want ETIMEDOUT", why)
	}
}

// TestBindErrors: errors have the kernel's errno.
func TestBindErrors(t *testing.T) {
	p, _ := listen(t, Link{}, "127.0.0.1:0", newEnds())
	if _, err := (Link{}).Bind(p.Local(), cm.PortOptions{}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Bind of a used address = %v, want EADDRINUSE", err)
	}
	if _, err := (Link{}).Bind(netip.MustParseAddrPort("203.0.113.1:0"), cm.PortOptions{}); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("Bind of a remote address = %v, want EADDRNOTAVAIL", err)
	}
}

// TestBoundActive: a bound port can connect, keeps its number, and gets a concrete address instead
// of a wildcard.
func TestBoundActive(t *testing.T) {
	p, conns := listen(t, Link{}, "127.0.0.1:0", newEnds())
	for _, from := range []string{"0.0.0.0:0", "127.0.0.5:0", "[::]:0"} {
		b, err := Link{}.Bind(netip.MustParseAddrPort(from), cm.PortOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		number := b.Local().Port()
		if _, err := (Link{}).Resolve(b, netip.AddrPort{}, p.Local(), cm.PortOptions{}); err != nil {
			t.Fatalf("Resolve from %s: %v", from, err)
		}
		m := request()
		m.Port = number
		c := b.Connect(m, newEnds())
		defer c.Close()
		if _, remote := take(t, conns).Addrs(); remote != b.Local() || remote.Port() != number || !remote.Addr().IsLoopback() {
			t.Errorf("request from %v, want %v with port %d", remote, b.Local(), number)
		}
	}
}

// TestHostile: connections that send invalid requests are closed, and do not block others.
func TestHostile(t *testing.T) {
	p, conns := listen(t, Link{}, "127.0.0.1:0", newEnds())
	tcp := p.(*port).tcp.Addr().String()
	rtu := encode(&cm.Message{Kind: cm.RTU})
	for _, b := range [][]byte{make([]byte, recordSize), rtu, encode(request())[:100]} {
		c, err := net.Dial("tcp", tcp)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		if len(b) < recordSize {
			continue // half a request: it may hold its slot for a while
		}
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("Read = %d, %v, want a closed connection", n, err)
		}
	}
	dial(t, p.Local(), newEnds())
	take(t, conns)
	_ = p.(*port).tcp // malformed queries are ignored
	u, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(p.Local()))
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for _, b := range [][]byte{{}, make([]byte, datagramSize), encodeDatagram(responseKind, 1, 1), encodeDatagram(queryKind, 77, 0)} {
		if _, err := u.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	var b [100]byte
	_ = u.SetReadDeadline(time.Now().Add(patience))
	n, err := u.Read(b[:])
	if nonce, _, invalid := decodeDatagram(b[:n], responseKind); err != nil || invalid != nil || nonce != 77 {
		t.Errorf("the first response is %x, %v, want that to the only query", b[:n], err)
	}
}

// TestSocketError: an error of a listening port's socket, here a refused packet to the host that the id has tried to reach before, neither
// ends the process nor the responses.
func TestSocketError(t *testing.T) {
	u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	remote := u.LocalAddr().(*net.UDPAddr)
	u.Close()
	p, err := Link{}.Bind(netip.MustParseAddrPort("127.0.0.1:0"), cm.PortOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	if _, err := (Link{}).Resolve(p, netip.AddrPort{}, remote.AddrPort(), cm.PortOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.(*port).udp.Write([]byte{1}); err != nil { // the remote port is closed, so the next call fails
		t.Fatal(err)
	}
	if err := p.Listen(nil); err != nil {
		t.Fatal(err)
	}
	u, err = net.DialUDP("udp", remote, net.UDPAddrFromAddrPort(p.Local()))
	if errors.Is(err, syscall.EADDRINUSE) {
		t.Skip("another process has the port")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	var b [100]byte
	if _, err := u.Write(encodeDatagram(queryKind, 7, 0)); err != nil {
		t.Fatal(err)
	}
	_ = u.SetReadDeadline(time.Now().Add(patience))
	if n, err := u.Read(b[:]); err != nil || n != datagramSize {
		t.Errorf("Read = %d, %v, want a response", n, err)
	}
}

// TestIgnoredMessages: messages that are not a response do not extend the wait for one.
func TestIgnoredMessages(t *testing.T) {
	t.Parallel()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tcp, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	c := &conn{tcp: tcp}
	defer c.Close()
	peer, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	h := newEnds()
	c.Send(&cm.Message{Kind: cm.DREQ})
	for range 2 {
		if _, err := peer.Write(encode(&cm.Message{Kind: cm.RTU})); err != nil {
			t.Fatal(err)
		}
	}
	go c.deliver(h)
	if why := take(t, h.lost); why != syscall.ETIMEDOUT {
		t.Errorf("lost for %v, want ETIMEDOUT", why)
	}
}

// TestErrno: a timeout of package net is ETIMEDOUT, whatever its type.
func TestErrno(t *testing.T) {
	past, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	_, late := (&net.Dialer{}).DialContext(past, "tcp", "127.0.0.1:1")
	for _, tt := range []struct {
		err  error
		want syscall.Errno
	}{
		{late, syscall.ETIMEDOUT},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, syscall.ETIMEDOUT},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)}, syscall.EHOSTUNREACH},
		{net.ErrClosed, syscall.EIO},
	} {
		if got := errno(tt.err); got != tt.want {
			t.Errorf("errno(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

// TestCloseWhileConnecting: closing an active connection at once releases everything (TestMain
// checks goroutines).
func TestCloseWhileConnecting(t *testing.T) {
	p, _ := listen(t, Link{}, "127.0.0.1:0", newEnds())
	for range 50 {
		b, err := Link{}.Resolve(nil, netip.AddrPort{}, p.Local(), cm.PortOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c := b.Connect(request(), newEnds())
		b.Close()
		c.Close()
	}
}

// TestShared: a port may share the number of a UDP socket, but then cannot listen.
func TestShared(t *testing.T) {
	u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	own := u.LocalAddr().(*net.UDPAddr).AddrPort()
	server, conns := listen(t, Link{}, "127.0.0.1:0", newEnds())
	bound, err := Link{}.Bind(own, cm.PortOptions{Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	defer bound.Close()
	if err := bound.Listen(nil); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Listen = %v, want EADDRINUSE", err)
	}
	for _, b := range []cm.Port{bound, nil} {
		p, err := Link{}.Resolve(b, own, server.Local(), cm.PortOptions{Shared: true})
		if err != nil || p.Local() != own {
			t.Fatalf("Resolve = %v, %v, want the address %v", p, err, own)
		}
		defer p.Close()
		m := request()
		m.Port = own.Port()
		c := p.Connect(m, newEnds())
		defer c.Close()
		if _, remote := take(t, conns).Addrs(); remote != own {
			t.Errorf("request from %v, want %v", remote, own)
		}
	}
}
