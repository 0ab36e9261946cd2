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

// Conn holds the sockets of one local address.
type Conn struct {
	addr   netip.Addr
	port   uint16
	recv   int
	send   []int
	ports  []uint16
	buffer int
	gro    bool
	// segments is the maximum number of datagrams per run. It is 1 without UDP_SEGMENT.
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

// listen prepares the receiving socket for a Reader.
func (c *Conn) listen(cfg *Config) (err error) {
	c.gro = !cfg.NoCoalesce && unix.SetsockoptInt(c.recv, unix.SOL_UDP, unix.UDP_GRO, 1) == nil
	if c.buffer, err = unix.GetsockoptInt(c.recv, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	c.bell, err = newBell(c.recv)
	return err
}

// release returns the kernel release, such as "6.18.5-generic".
func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// segmentsOf returns the maximum number of datagrams per run on a kernel.
func segmentsOf(release string) int32 {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil || major < 6 || (major == 6 && minor < 9) {
		return oldSegments
	}
	return maxSegments
}

// socket opens a socket with the common options.
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

// enlarge sets a socket buffer to the requested size, or to the maximum for an unprivileged
// process. A smaller buffer is only slower.
func enlarge(fd, force, plain, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
}

// receiver returns an unbound receiving socket.
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

// bindFrom returns a socket bound to the first free port at or above port.
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

// bindSource returns a socket bound to a free source port.
func (c *Conn) bindSource(buffer int) (int, uint16, error) {
	fd, err := c.socket(buffer)
	if err != nil {
		return -1, 0, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1) // never read
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

// Addr returns the receiving address and port.
func (c *Conn) Addr() netip.AddrPort { return netip.AddrPortFrom(c.addr, c.port) }

// Sockets returns the number of sending sockets, numbered from 0. The next number is the receiving
// socket, which can also send: a receiver can then reply to the source port.
func (c *Conn) Sockets() int { return len(c.send) - 1 }

// SourcePort returns the source port of a socket.
func (c *Conn) SourcePort(socket int) uint16 { return c.ports[socket] }

// Buffer returns the size of the kernel's receive buffer in bytes, including overhead.
func (c *Conn) Buffer() int { return c.buffer }

// Segments returns the maximum number of datagrams per run; 1 means that runs are disabled.
func (c *Conn) Segments() int { return int(c.segments.Load()) }

// Coalesces reports whether datagrams from one sender may arrive as a run.
func (c *Conn) Coalesces() bool { return c.gro }

// Wait blocks until a datagram is available. It returns an error that wraps os.ErrClosed once
// Interrupt or Close was called. It must not be called concurrently.
func (c *Conn) Wait() error { return c.bell.wait() }

// Interrupt makes current and future calls of Wait return. It may be called at any time before
// Close.
func (c *Conn) Interrupt() error { return c.bell.close() }

// Close closes the sockets. No other method except Wait may run concurrently or be called
// afterwards.
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

// Yield yields the CPU if another thread is waiting for it.
func Yield() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// bell waits for a socket through the runtime's poller. If the poller watched the socket itself,
// every datagram would wake a thread, even while another goroutine reads. Instead it watches an
// epoll instance in which wait arms the socket for one event.
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
		err = unix.SetNonblock(fd, true) // os.NewFile registers only nonblocking files with the poller
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
		err = os.ErrClosed // replaces the poller's own error
	}
	if err != nil {
		return fmt.Errorf("udp: wait for datagrams: %w", err)
	}
	return nil
}

// close closes the epoll instance, which makes wait return. A second call is a no-op.
func (b *bell) close() error {
	if b.closed.Swap(true) {
		return nil
	}
	return b.file.Close()
}
