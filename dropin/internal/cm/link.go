package cm

import (
	"net/netip"
	"syscall"
)

// Link connects the managers of several processes. Its methods do not block.
type Link interface {
	// Bind reserves an RDMA port. Port number 0 means a free one.
	Bind(addr netip.AddrPort, o PortOptions) (Port, error)
	// Resolve prepares p for a connection to a remote port and determines its local address. If p is nil, it binds a port to
	// src, whose zero value means any address.
	Resolve(p Port, src, dst netip.AddrPort, o PortOptions) (Port, error)
	// IsLocal reports whether an address belongs to this host.
	IsLocal(addr netip.Addr) bool
}

// PortOptions describes a Port.
type PortOptions struct {
	// Only6 excludes IPv4 from a wildcard IPv6 address.
	Only6 bool
	// Shared permits a port number in use by a UDP socket, as rsockets need. Such a port cannot
	// listen.
	Shared bool
}

// Port is a bound RDMA port. The Manager calls its methods with a lock held, so they must neither block nor call back.
type Port interface {
	// Local returns the address.
	Local() netip.AddrPort
	// Listen accepts requests from now on. serve is called in the link's goroutines for each REQ. It returns nil if it has refused the
	// request, and closed the Conn.
	Listen(serve func(Conn, *Message) Handler) error
	// Connect sends a REQ to the resolved address.
	Connect(req *Message, h Handler) Conn
	// Close releases the port. Requests not yet passed to serve are refused. Connections continue.
	Close()
}

// Conn carries the messages of one connection. The Manager calls its methods with a lock held, so they must neither block nor
// call back.
type Conn interface {
	// Addrs returns the addresses of both RDMA ports. It is called for passive connections only.
	Addrs() (local, remote netip.AddrPort)
	Send(m *Message)
	// Close drops the connection after the sent messages. The Handler is not called.
	Close()
}

// Handler receives a connection's messages and its loss. Calls for one connection are sequential.
type Handler interface {
	Received(m *Message)
	// Lost reports that the connection has failed, for example because the peer's process died. why is 0 if the peer closed it.
	Lost(why syscall.Errno)
}
