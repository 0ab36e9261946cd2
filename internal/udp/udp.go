// Package udp is UDP in batches, as a software RDMA NIC needs it: many datagrams for one
// system call, runs of equal datagrams as one (UDP_SEGMENT and UDP_GRO, where the kernel has
// them), no allocation per datagram, and a wait for datagrams that holds no thread.
//
// A [Conn] is the sockets of one local address: one that receives, and a pool of others from
// which is sent, because switches choose a path by the source port. All are unconnected and
// set to discover the path's MTU: then Linux sends identification 0 in the IPv4 header (and k
// in segment k of a run), which the checksum of RoCE v2 covers.
//
//	w := conn.NewWriter()                  r := conn.NewReader()
//	d, k := w.Next(dest, socket, size)     n, err := r.Read()     // never blocks
//	copy(d, datagram)                      d := r.Datagram(0)     // d.Data in parts of d.Segment
//	dropped := w.Flush()                   err = conn.Wait()      // until there is more
package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// ErrNotSupported is what Open returns on systems other than Linux.
var ErrNotSupported = errors.New("udp: batched UDP is implemented for Linux only")

const (
	// DefaultSockets is how many sockets a Conn sends from.
	DefaultSockets = 16
	// DefaultBuffer is the socket buffer that a Conn asks for, in bytes.
	DefaultBuffer = 4 << 20

	// MaxDatagram is the most bytes of one datagram, or of a run of them.
	MaxDatagram = 65535 - 20 - 8

	// FirstSourcePort is the first port from which a Conn sends, as RoCE hardware does.
	// The port on which it receives is below.
	FirstSourcePort = 0xc000

	// portTries is how many ports beyond the wanted one are tried for receiving.
	portTries = 4096
)

// Config describes a Conn.
type Config struct {
	// Addr is the local address, IPv4 or IPv6.
	Addr netip.Addr
	// Port is where datagrams are received. If it is taken the next free one above it
	// is used.
	Port uint16
	// Sockets is how many sockets to send from. Zero means DefaultSockets.
	Sockets int
	// Buffer is the size of the socket buffers to ask for, in bytes; the system may
	// give less. Zero means DefaultBuffer.
	Buffer int
	// NoSegment and NoCoalesce do without UDP_SEGMENT and UDP_GRO, as on a kernel that
	// has neither.
	NoSegment, NoCoalesce bool
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
		return fmt.Errorf("udp: %v is not an address of one port of this host", cfg.Addr)
	case cfg.Port == 0 || cfg.Port >= FirstSourcePort-portTries:
		return fmt.Errorf("udp: port %d: want 1 to %d", cfg.Port, FirstSourcePort-portTries-1)
	case cfg.Sockets < 0 || cfg.Sockets > 1024 || cfg.Buffer < 0:
		return fmt.Errorf("udp: %d sockets with buffers of %d bytes: want 1 to 1024, and at least 0", cfg.Sockets, cfg.Buffer)
	}
	return nil
}

// Datagram is one datagram that was received, or several of one sender: Data is cut every
// Segment bytes, the last part may be shorter.
type Datagram struct {
	Data    []byte
	Segment int
	// From is the sender's address, IPv4 ones mapped into IPv6, and Port its port.
	From [16]byte
	Port uint16
}

// InterfaceMTU returns the MTU of the interface that has addr, and the interface's name. An
// address of a loopback network belongs to the loopback interface, as it does for the kernel.
func InterfaceMTU(addr netip.Addr) (mtu int, name string, err error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return 0, "", fmt.Errorf("udp: list interfaces: %w", err)
	}
	for i := range interfaces {
		in := &interfaces[i]
		addrs, err := in.Addrs()
		if err != nil {
			continue // gone meanwhile
		}
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue
			}
			own := prefix.Addr().Unmap()
			if own == addr || (in.Flags&net.FlagLoopback != 0 && prefix.Contains(addr)) {
				return in.MTU, in.Name, nil
			}
		}
	}
	return 0, "", fmt.Errorf("udp: no interface of this host has the address %s", addr)
}
