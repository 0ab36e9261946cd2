package udp

import (
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// OpenGroup opens a Conn that receives from a multicast group, on the interface with cfg.Addr. It
// must not be used to send. Any number of processes can join the same group and port.
func OpenGroup(cfg Config, group netip.Addr) (*Conn, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	c := &Conn{addr: group, port: cfg.Port, recv: -1}
	if err := c.openGroup(&cfg); err != nil {
		c.closeSockets()
		return nil, fmt.Errorf("udp: group %s on %s: %w", group, cfg.Addr, err)
	}
	return c, nil
}

func (c *Conn) openGroup(cfg *Config) (err error) {
	if c.recv, err = c.receiver(cfg.Buffer); err != nil {
		return err
	}
	c.send, c.ports = []int{c.recv}, []uint16{c.port}
	c.segments.Store(1)
	if err := unix.SetsockoptInt(c.recv, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt SO_REUSEADDR", err)
	}
	in, err := interfaceOf(cfg.Addr)
	if err != nil {
		return err
	}
	to := c.sockaddr(c.port)
	if six, ok := to.(*unix.SockaddrInet6); ok {
		six.ZoneId = uint32(in.Index) // required for a link-local address
	}
	if err := unix.Bind(c.recv, to); err != nil {
		return os.NewSyscallError(fmt.Sprintf("bind port %d", c.port), err)
	}
	// By default a socket also receives groups that other sockets have joined on other interfaces.
	if c.addr.Is4() {
		err = unix.SetsockoptInt(c.recv, unix.SOL_IP, unix.IP_MULTICAST_ALL, 0)
		if err == nil {
			err = unix.SetsockoptIPMreqn(c.recv, unix.SOL_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: c.addr.As4(), Ifindex: int32(in.Index)})
		}
	} else {
		err = unix.SetsockoptInt(c.recv, unix.SOL_IPV6, unix.IPV6_MULTICAST_ALL, 0)
		if err == nil {
			err = unix.SetsockoptIPv6Mreq(c.recv, unix.SOL_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: c.addr.As16(), Interface: uint32(in.Index)})
		}
	}
	if err != nil {
		return os.NewSyscallError("setsockopt to join", err)
	}
	return c.listen(cfg)
}

// AimAt makes the sockets send to multicast groups on the interface with the Conn's address, with
// DefaultHops. It fails if the interface does not lead to the group.
func (c *Conn) AimAt(group netip.Addr) error {
	in, err := interfaceOf(c.addr)
	if err != nil {
		return err
	}
	for _, fd := range c.send {
		if err := c.aim(fd, in.Index); err != nil {
			return err
		}
	}
	probe, err := c.socket(0)
	if err != nil {
		return err
	}
	defer unix.Close(probe)
	if err := c.aim(probe, in.Index); err != nil {
		return err
	}
	aimed := &Conn{addr: group}
	if err := unix.Connect(probe, aimed.sockaddr(c.port)); err != nil { // does not send a packet
		return fmt.Errorf("udp: interface %s does not lead to group %s: %w", in.Name, group, err)
	}
	return nil
}

// aim makes a socket send to multicast groups on the interface with an index.
func (c *Conn) aim(fd, index int) (err error) {
	if c.addr.Is4() {
		err = unix.SetsockoptIPMreqn(fd, unix.SOL_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Address: c.addr.As4(), Ifindex: int32(index)})
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_MULTICAST_TTL, DefaultHops)
		}
	} else {
		err = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_IF, index)
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_HOPS, DefaultHops)
		}
	}
	return os.NewSyscallError("setsockopt for multicast", err)
}
