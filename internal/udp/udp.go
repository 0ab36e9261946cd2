// Package udp sends and receives UDP in batches, for a software RDMA NIC: many datagrams per system
// call, runs of equally long datagrams as one (UDP_SEGMENT and UDP_GRO, if the kernel supports
// them), no allocation per datagram, and a wait that does not block a thread.
//
// A [Conn] holds the sockets of one local address: one for receiving, and a pool for sending,
// because switches choose a path by the source port. All are unconnected and use path MTU
// discovery. Linux then sends identification 0 in the IPv4 header (and k in segment k of a run),
// which the RoCE v2 checksum covers.
//
//	w := conn.NewWriter()                  r := conn.NewReader()
//	d, k := w.Next(dest, socket, size)     n, err := r.Read()     // never blocks
//	copy(d, datagram)                      d := r.Datagram(0)     // d.Data in parts of d.Segment
//	dropped := w.Flush()                   err = conn.Wait()      // until more arrive
package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// ErrNotSupported is returned by Open on systems other than Linux.
var ErrNotSupported = errors.New("udp: batched UDP is implemented for Linux only")

const (
	// DefaultSockets is the default number of sending sockets.
	DefaultSockets = 16
	// DefaultBuffer is the default socket buffer size in bytes.
	DefaultBuffer = 4 << 20

	// MaxDatagram is the maximum size of a datagram or a run, in bytes.
	MaxDatagram = 65535 - 20 - 8

	// FirstSourcePort is the lowest source port, as on RoCE hardware. The receiving port is lower.
	FirstSourcePort = 0xc000

	// portTries is the number of ports tried: from Config.Port up for receiving, random ones for sending.
	portTries = 4096
)

// Config describes a Conn.
type Config struct {
	// Addr is the local address, IPv4 or IPv6.
	Addr netip.Addr
	// Port is the receiving port. If it is taken, Open uses the next free port above it.
	Port uint16
	// Sockets is the number of sending sockets. Zero means DefaultSockets.
	Sockets int
	// Buffer is the requested size of the socket buffers, in bytes. The system may grant less. Zero
	// means DefaultBuffer.
	Buffer int
	// NoSegment disables UDP_SEGMENT, as on a kernel without it.
	NoSegment bool
	// NoCoalesce disables UDP_GRO, as on a kernel without it.
	NoCoalesce bool
}

func (cfg *Config) complete() error {
	cfg.Addr = cfg.Addr.Unmap()
	if cfg.Sockets == 0 {
		cfg.Sockets = DefaultSockets
	}
	if cfg.Buffer == 0 {
		cfg.Buffer = DefaultBuffer
	}
	switch {
	case !cfg.Addr.IsValid() || cfg.Addr.IsUnspecified() || cfg.Addr.IsMulticast():
		return fmt.Errorf("udp: address %v: want one unicast address of this host", cfg.Addr)
	case cfg.Port == 0 || cfg.Port >= FirstSourcePort-portTries:
		return fmt.Errorf("udp: port %d: want 1 to %d", cfg.Port, FirstSourcePort-portTries-1)
	case cfg.Sockets < 0 || cfg.Sockets > 1024 || cfg.Buffer < 0:
		return fmt.Errorf("udp: %d sockets with buffers of %d bytes: want 1 to 1024, and at least 0", cfg.Sockets, cfg.Buffer)
	}
	return nil
}

// Datagram is one received datagram, or a run of datagrams from one sender.
type Datagram struct {
	Data []byte
	// Segment is the length of each datagram in a run, in bytes. The last one may be shorter.
	Segment int
	// From is the sender's address. IPv4 addresses are mapped into IPv6.
	From [16]byte
	// Port is the sender's port.
	Port uint16
}

// InterfaceMTU returns the MTU and the name of the interface with addr.
func InterfaceMTU(addr netip.Addr) (mtu int, name string, err error) {
	in, err := interfaceOf(addr)
	if err != nil {
		return 0, "", err
	}
	return in.MTU, in.Name, nil
}

// interfaceOf returns the interface with addr. As in the kernel, addresses of a loopback network
// belong to the loopback interface.
func interfaceOf(addr netip.Addr) (*net.Interface, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("udp: list interfaces: %w", err)
	}
	for i := range interfaces {
		in := &interfaces[i]
		addrs, err := in.Addrs()
		if err != nil {
			continue // removed meanwhile
		}
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue
			}
			own := prefix.Addr().Unmap()
			if own == addr || (in.Flags&net.FlagLoopback != 0 && prefix.Contains(addr)) {
				return in, nil
			}
		}
	}
	return nil, fmt.Errorf("udp: no interface of this host has the address %s", addr)
}
