package udp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Conn has the sockets of one local address.
type Conn struct {
	addr   netip.Addr
	port   uint16
	recv   int
	send   []int
	ports  []uint16
	buffer int
	gro    bool
	// segments is how many datagrams a run may have. It is 1 without UDP_SEGMENT.
	segments atomic.Int32
	bell     *bell
	closed   atomic.Bool
}

// Open opens the sockets of one local address.
func Open(cfg Config) (*Conn, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	c := &Conn{addr: cfg.Addr, recv: -1}
	if err := c.open(&cfg); err != nil {
		c.closeSockets()
		return nil, fmt.Errorf("udp: sockets on %s: %w", cfg.Addr, err)
	}
	return c, nil
}

func (c *Conn) open(cfg *Config) (err error) {
	if c.recv, c.port, err = c.bindFrom(cfg.Port, cfg.Buffer); err != nil {
		return err
	}
	for range cfg.Sockets {
		fd, port, err := c.bindSource(cfg.Buffer)
		if err != nil {
			return err
		}
		c.send, c.ports = append(c.send, fd), append(c.ports, port)
	}
	c.send, c.ports = append(c.send, c.recv), append(c.ports, c.port)
	c.segments.Store(1)
	if !cfg.NoSegment && unix.SetsockoptInt(c.send[0], unix.SOL_UDP, unix.UDP_SEGMENT, 0) == nil {
		c.segments.Store(segmentsOf(release()))
	}
	return c.listen(cfg)
}

// listen makes the receiving socket ready for a Reader.
func (c *Conn) listen(cfg *Config) (err error) {
	c.gro = !cfg.NoCoalesce && unix.SetsockoptInt(c.recv, unix.SOL_UDP, unix.UDP_GRO, 1) == nil
	if c.buffer, err = unix.GetsockoptInt(c.recv, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	c.bell, err = newBell(c.recv)
	return err
}

// release returns the release of the kernel, such as "6.18.5-generic".
func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// segmentsOf returns how many datagrams a run may have on a kernel.
func segmentsOf(release string) int32 {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil || major < 6 || (major == 6 && minor < 9) {
		return oldSegments
	}
	return maxSegments
}

// socket opens a socket with the options that all sockets have.
func (c *Conn) socket(buffer int) (int, error) {
	family, level, option, do := unix.AF_INET, unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
	if c.addr.Is6() {
		family, level, option, do = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := unix.SetsockoptInt(fd, level, option, do); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("setsockopt IP_MTU_DISCOVER", err)
	}
	option = unix.IP_TTL
	if c.addr.Is6() {
		option = unix.IPV6_UNICAST_HOPS
	}
	if err := unix.SetsockoptInt(fd, level, option, DefaultHops); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("setsockopt IP_TTL", err)
	}
	enlarge(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, buffer)
	return fd, nil
}

// enlarge makes a socket buffer as large as requested, or as large as an unprivileged process may. A
// smaller buffer is only slower.
func enlarge(fd, force, plain, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
}

// receiver returns a socket for receiving, without an address.
func (c *Conn) receiver(buffer int) (int, error) {
	fd, err := c.socket(buffer)
	if err != nil {
		return -1, err
	}
	enlarge(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, buffer)
	if c.addr.Is6() {
		// Some senders, such as the kernel's Soft-RoCE, omit the UDP checksum. By default IPv6
		// drops such datagrams. The ICRC protects them.
		if err := unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1); err != nil {
			_ = unix.Close(fd)
			return -1, os.NewSyscallError("setsockopt UDP_NO_CHECK6_RX", err)
		}
	}
	return fd, nil
}

// bindFrom returns a socket on the first free port from port on.
func (c *Conn) bindFrom(port uint16, buffer int) (int, uint16, error) {
	fd, err := c.receiver(buffer)
	if err != nil {
		return -1, 0, err
	}
	for k := range uint16(portTries) {
		err = unix.Bind(fd, c.sockaddr(port+k))
		if err == nil {
			return fd, port + k, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	_ = unix.Close(fd)
	return -1, 0, os.NewSyscallError(fmt.Sprintf("bind from port %d on", port), err)
}

// bindSource returns a socket on a free source port.
func (c *Conn) bindSource(buffer int) (int, uint16, error) {
	fd, err := c.socket(buffer)
	if err != nil {
		return -1, 0, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1) // it is never read
	for range portTries {
		port := uint16(FirstSourcePort + rand.Uint32N(1<<16-FirstSourcePort))
		err = unix.Bind(fd, c.sockaddr(port))
		if err == nil {
			return fd, port, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	_ = unix.Close(fd)
	return -1, 0, os.NewSyscallError("bind a source port", err)
}

func (c *Conn) sockaddr(port uint16) unix.Sockaddr {
	if c.addr.Is4() {
		return &unix.SockaddrInet4{Port: int(port), Addr: c.addr.As4()}
	}
	return &unix.SockaddrInet6{Port: int(port), Addr: c.addr.As16()}
}

// Addr returns the address and port on which the Conn receives.
func (c *Conn) Addr() netip.AddrPort { return netip.AddrPortFrom(c.addr, c.port) }

// Sockets returns how many sockets send, numbered from 0. The next number is the receiving socket:
// the source port of its datagrams tells the receiver where to answer.
func (c *Conn) Sockets() int { return len(c.send) - 1 }

// SourcePort returns the port of a socket to send from.
func (c *Conn) SourcePort(socket int) uint16 { return c.ports[socket] }

// Buffer returns the bytes that the kernel keeps for the receiver, overhead included.
func (c *Conn) Buffer() int { return c.buffer }

// Segments returns how many datagrams one run may have; 1 means that there are no runs.
func (c *Conn) Segments() int { return int(c.segments.Load()) }

// Coalesces reports whether datagrams of one sender may arrive as one.
func (c *Conn) Coalesces() bool { return c.gro }

// Wait waits until there is something to read. It returns an error that wraps
// os.ErrClosed once Interrupt or Close was called. It is for one goroutine at a time.
func (c *Conn) Wait() error { return c.bell.wait() }

// Interrupt ends Wait, now and whenever it is called again. It may be called at any time
// before Close.
func (c *Conn) Interrupt() error { return c.bell.close() }

// Close closes the sockets. No other method may be running, or be called afterwards, but
// Wait.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	err := c.bell.close()
	c.closeSockets()
	return err
}

func (c *Conn) closeSockets() {
	if c.recv >= 0 {
		_ = unix.Close(c.recv)
	}
	for _, fd := range c.send {
		if fd != c.recv {
			_ = unix.Close(fd)
		}
	}
}

// Yield gives up the processor if another thread waits for it.
func Yield() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// bell waits for a socket through the runtime's poller. The poller does not watch the socket itself:
// then every datagram would wake a thread, even while another goroutine reads. It watches an epoll
// instance in which wait arms the socket for one event.
type bell struct {
	socket   int
	file     *os.File
	raw      syscall.RawConn
	armed    error
	closed   atomic.Bool
	arm      func(fd uintptr)
	signaled func(fd uintptr) bool
	events   [1]unix.EpollEvent
}

func newBell(socket int) (*bell, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	b := &bell{socket: socket}
	if err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, socket, &unix.EpollEvent{Events: unix.EPOLLONESHOT}); err == nil {
		err = unix.SetNonblock(fd, true) // os.NewFile gives only such files to the poller
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	b.file = os.NewFile(uintptr(fd), "udp bell")
	if b.raw, err = b.file.SyscallConn(); err != nil {
		_ = b.file.Close()
		return nil, err
	}
	once := &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}
	b.arm = func(fd uintptr) { b.armed = unix.EpollCtl(int(fd), unix.EPOLL_CTL_MOD, b.socket, once) }
	b.signaled = func(fd uintptr) bool {
		n, _ := unix.EpollWait(int(fd), b.events[:], 0)
		return n > 0
	}
	return b, nil
}

func (b *bell) wait() error {
	err := b.raw.Control(b.arm)
	if err == nil {
		err = b.armed
	}
	if err == nil {
		err = b.raw.Read(b.signaled)
	}
	if err != nil && b.closed.Load() {
		err = os.ErrClosed // the poller reports an error of its own
	}
	if err != nil {
		return fmt.Errorf("udp: wait for datagrams: %w", err)
	}
	return nil
}

// close closes the epoll instance, which ends wait. A second call does nothing.
func (b *bell) close() error {
	if b.closed.Swap(true) {
		return nil
	}
	return b.file.Close()
}
