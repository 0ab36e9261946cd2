package cm

import (
	"net/netip"
	"syscall"
	"time"

	"ibverbx/verbs"
)

// Kind is the type of a Message, as in chapter 12.6 of the InfiniBand specification.
type Kind uint8

// The messages of a connection. Datagrams use only REQ, REP and REJ. The active side sends REQ, the passive side responds with REP or REJ, and the active side
// confirms a REP with RTU or refuses it with REJ. Either side disconnects with DREQ, and the other confirms it with DREP.
const (
	REQ Kind = iota + 1
	REP
	RTU
	REJ
	DREQ
	DREP
)

// Reasons of a REJ, which programs see as the status of a REJECTED event.
const (
	RejectNoResources uint16 = 3
	RejectTimeout     uint16 = 4
	RejectNoListener  uint16 = 8 // "invalid service ID"
	RejectConsumer    uint16 = 28
)

// maxPrivate is the maximum private data of any message, in bytes. In a REQ, the port space's IP
// header uses 36 bytes.
const (
	maxPrivate = 196
	privateREQ = 56
	privateREP = 196
	privateREJ = 148
)

// The limits for datagrams, whose messages InfiniBand calls SIDR_REQ and SIDR_REP.
const (
	privateSIDRREQ = 180
	privateSIDRREP = 136
)

// The status of an UNREACHABLE event for a refused datagram request.
const (
	sidrUnsupported = 1 // without a listener
	sidrReject      = 2
)

// Private is a message's private data. Bytes from Len on are zero.
type Private struct {
	Len  uint8
	Data [maxPrivate]byte
}

// set copies data. It returns EINVAL if data is longer than limit.
func (p *Private) set(data []byte, limit int) error {
	if len(data) > limit {
		return syscall.EINVAL
	}
	*p = Private{Len: uint8(len(data))}
	copy(p.Data[:], data)
	return nil
}

// padded returns the data as the kernel reports it: with the length of the message's field, not the length sent.
func (p Private) padded(limit uint8) Private {
	p.Len = limit
	return p
}

// Param holds the connection parameters that a program passes and receives. In a received Param, the peer's
// ResponderResources and InitiatorDepth are swapped: they are the limits of this side.
type Param struct {
	QPN                                uint32
	QKey                               uint32 // of datagrams
	ResponderResources, InitiatorDepth uint8
	FlowControl, Retry, RNRRetry, SRQ  uint8
	Private                            Private
}

// Side describes one side's QP and its address.
type Side struct {
	GID verbs.GID
	LID uint16 // UDP port of the NIC; 0 means 4791
	MTU verbs.MTU
	PSN uint32 // first PSN that this side sends, 24 bits
	// Timeout is the acknowledgement timeout as a code (verbs.AckTimeout).
	Timeout uint8
	Param   Param
}

// Message travels between the managers of two processes.
type Message struct {
	Kind Kind
	// Space is the port space of a REQ, and Port the sender's RDMA port.
	Space, Port uint16
	// Reason is set in a REJ.
	Reason uint16
	// Side is set in REQ and REP. A REJ has only the private data.
	Side Side
}

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

// Device is a NIC that connections can use.
type Device struct {
	// GUID and Index identify it to librdmacm, as ibv_get_device_guid (in host order) and ibv_get_device_index do.
	GUID  verbs.GUID
	Index uint32
	Addr  netip.Addr
	GID   verbs.GID
	LID   uint16
	MTU   verbs.MTU
}

// Tokens counts the events of a File, for programs that wait for them. The Manager calls it with a lock held.
type Tokens interface {
	Add()
	// Drop removes n tokens, or fewer if a waiting thread has taken one already.
	Drop(n int)
}

// Config configures a Manager.
type Config struct {
	Devices []Device // at least one
	Link    Link
	// Later calls f after d, unless stop is called first.
	Later func(d time.Duration, f func()) (stop func())
	// Random draws starting PSNs.
	Random func() uint32
	// Unreported reports whether a QP has completions to poll. It may block. Nil means never.
	Unreported func(qpn uint32) bool
	// Report is called for the user when an id listens or connects. Nil disables it.
	Report func(format string, args ...any)
}
