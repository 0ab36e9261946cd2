package softnic

import (
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// opTraits describes an operation.
type opTraits uint8

const (
	opStarts   opTraits = 1 << iota // FIRST or ONLY
	opEnds                          // LAST or ONLY
	opIsSend                        // consumes a receive from its start
	opIsWrite                       // carries a RETH at its start
	opHasImm                        // ends with an immediate
	opResponse                      // is sent to the requester
)

var traits = [roce.OperationMask + 1]opTraits{
	roce.OpSendFirst:          opIsSend | opStarts,
	roce.OpSendMiddle:         opIsSend,
	roce.OpSendLast:           opIsSend | opEnds,
	roce.OpSendLastImm:        opIsSend | opEnds | opHasImm,
	roce.OpSendOnly:           opIsSend | opStarts | opEnds,
	roce.OpSendOnlyImm:        opIsSend | opStarts | opEnds | opHasImm,
	roce.OpWriteFirst:         opIsWrite | opStarts,
	roce.OpWriteMiddle:        opIsWrite,
	roce.OpWriteLast:          opIsWrite | opEnds,
	roce.OpWriteLastImm:       opIsWrite | opEnds | opHasImm,
	roce.OpWriteOnly:          opIsWrite | opStarts | opEnds,
	roce.OpWriteOnlyImm:       opIsWrite | opStarts | opEnds | opHasImm,
	roce.OpReadRequest:        opStarts | opEnds,
	roce.OpReadResponseFirst:  opResponse | opStarts,
	roce.OpReadResponseMiddle: opResponse,
	roce.OpReadResponseLast:   opResponse | opEnds,
	roce.OpReadResponseOnly:   opResponse | opStarts | opEnds,
	roce.OpAck:                opResponse,
	roce.OpAtomicAck:          opResponse,
	roce.OpCompareSwap:        opStarts | opEnds,
	roce.OpFetchAdd:           opStarts | opEnds,
}

// path is a route from one port to another: the contents of the GRH or the IP header. It is immutable
// while in use, except that a link may set peer.
type path struct {
	sgid, dgid verbs.GID
	attr       verbs.AHAttr
	// datagrams is set if the path belongs to an address handle, not to a connection.
	datagrams bool
	// port is the UDP source port of a packet from sgid, 0 without UDP.
	port uint16
	// back is the path to the sender of a UDP datagram, nil unless datagrams are paced.
	back *path
	// peer is the NIC at dgid, once the link has found it. Only links use it.
	peer *NIC
	// route is the path's route over UDP. Only a UDPLink uses it.
	route *udpRoute
	// neighbor is the peer's process if its memory can be accessed directly, otherwise nil.
	neighbor *neighbor
	// missedBytes counts bytes of recent requests that neighbor could have executed, had earlier ones been
	// acknowledged.
	missedBytes uint32
	// movedBytes is the number of bytes that neighbor has moved of the next request. The request has started if
	// it is not 0.
	movedBytes uint32
	// sealing is the sealing of the QPs that may use the path, nil for plain packets.
	sealing *sealing
}

// packet is one packet: its headers, and a payload that references the sender's memory. Opcode
// determines the valid header fields; the others are stale. A packet and its payload are valid only
// during the call that passes them on.
type packet struct {
	roce.Header
	path *path
	// assoc is the association of a received sealed packet, nil for a plain one.
	assoc *association
	// length is the number of payload bytes.
	length uint32
	// numSegs is the number of segs in the payload.
	numSegs uint8
	// registered is set if segs are in registered memory, which cannot be freed before the lock is
	// released.
	registered bool
	segs       [verbs.MaxSGE][]byte
}

// setPayload makes b the payload.
func (p *packet) setPayload(b []byte) {
	p.length, p.numSegs, p.registered, p.segs[0] = uint32(len(b)), 1, false, b
}

// noPayload makes the payload empty.
func (p *packet) noPayload() { p.length, p.numSegs, p.registered = 0, 0, false }

// sendOpcodes maps the opcode of a work request, and whether a packet is the first and the last of its
// message, to the packet's operation.
var sendOpcodes = [4][2][2]uint8{
	verbs.OpRDMAWrite:        {{roce.OpWriteMiddle, roce.OpWriteLast}, {roce.OpWriteFirst, roce.OpWriteOnly}},
	verbs.OpRDMAWriteWithImm: {{roce.OpWriteMiddle, roce.OpWriteLastImm}, {roce.OpWriteFirst, roce.OpWriteOnlyImm}},
	verbs.OpSend:             {{roce.OpSendMiddle, roce.OpSendLast}, {roce.OpSendFirst, roce.OpSendOnly}},
	verbs.OpSendWithImm:      {{roce.OpSendMiddle, roce.OpSendLastImm}, {roce.OpSendFirst, roce.OpSendOnlyImm}},
}

// readOpcodes maps whether a packet is the first and the last of a READ response to its operation.
var readOpcodes = [2][2]uint8{
	{roce.OpReadResponseMiddle, roce.OpReadResponseLast}, {roce.OpReadResponseFirst, roce.OpReadResponseOnly},
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

// scratchMemory is a NIC's scratch space for data between packets and memory.
type scratchMemory struct {
	// placed is the GRH of a datagram, or the result of an atomic.
	placed [verbs.GRHLen]byte
	// gathered is the payload of a packet with more segments than a packet can refer to, or from device memory.
	gathered []byte
	// copies holds the operands and device copies of datagrams on a memory link.
	copies copies
}

// maxGathered is the maximum size in bytes of the kept scratch buffer. A packet on a memory link may have any length.
const maxGathered = 1 << 16
