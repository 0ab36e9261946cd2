package cm

import (
	"syscall"

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
