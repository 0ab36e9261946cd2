package softnic

import (
	"ibverbx/internal/seqnum"
	"ibverbx/verbs"
)

// Transport opcodes (IBTA 1.4 table 38). The upper three bits are the transport, the
// lower five the operation:
//
//	 7   6   5 | 4   3   2   1   0
//	transport  |     operation
const (
	transportRC = 0 << 5
	transportUC = 1 << 5
	transportUD = 3 << 5

	transportMask = 7 << 5
	operationMask = 1<<5 - 1
)

const (
	opSendFirst     = 0x00
	opSendMiddle    = 0x01
	opSendLast      = 0x02
	opSendLastImm   = 0x03
	opSendOnly      = 0x04
	opSendOnlyImm   = 0x05
	opWriteFirst    = 0x06
	opWriteMiddle   = 0x07
	opWriteLast     = 0x08
	opWriteLastImm  = 0x09
	opWriteOnly     = 0x0a
	opWriteOnlyImm  = 0x0b
	opReadRequest   = 0x0c
	opReadRespFirst = 0x0d
	opReadRespMid   = 0x0e
	opReadRespLast  = 0x0f
	opReadRespOnly  = 0x10
	opAck           = 0x11
	opAtomicAck     = 0x12
	opCmpSwap       = 0x13
	opFetchAdd      = 0x14
)

// opTraits says what an operation is made of.
type opTraits uint8

const (
	opStarts   opTraits = 1 << iota // FIRST or ONLY
	opEnds                          // LAST or ONLY
	opIsSend                        // consumes a receive from its start
	opIsWrite                       // carries a RETH at its start
	opHasImm                        // ends with an immediate
	opResponse                      // goes to the requester
)

var traits = [operationMask + 1]opTraits{
	opSendFirst:     opIsSend | opStarts,
	opSendMiddle:    opIsSend,
	opSendLast:      opIsSend | opEnds,
	opSendLastImm:   opIsSend | opEnds | opHasImm,
	opSendOnly:      opIsSend | opStarts | opEnds,
	opSendOnlyImm:   opIsSend | opStarts | opEnds | opHasImm,
	opWriteFirst:    opIsWrite | opStarts,
	opWriteMiddle:   opIsWrite,
	opWriteLast:     opIsWrite | opEnds,
	opWriteLastImm:  opIsWrite | opEnds | opHasImm,
	opWriteOnly:     opIsWrite | opStarts | opEnds,
	opWriteOnlyImm:  opIsWrite | opStarts | opEnds | opHasImm,
	opReadRequest:   opStarts | opEnds,
	opReadRespFirst: opResponse | opStarts,
	opReadRespMid:   opResponse,
	opReadRespLast:  opResponse | opEnds,
	opReadRespOnly:  opResponse | opStarts | opEnds,
	opAck:           opResponse,
	opAtomicAck:     opResponse,
	opCmpSwap:       opStarts | opEnds,
	opFetchAdd:      opStarts | opEnds,
}

// AETH syndromes (IBTA 1.4 section 9.7.5.2.3):
//
//	7  | 6  5 | 4 .. 0
//	0  | 0  0 | credit count     ACK
//	0  | 0  1 | timer code       RNR NAK
//	0  | 1  1 | NAK code         NAK
const (
	synAck      = 0x1f // credits not used
	synRNR      = 0x20
	synNak      = 0x60
	synKindMask = 0x60

	nakSequence  = synNak
	nakInvalid   = synNak | 1
	nakAccess    = synNak | 2
	nakOperation = synNak | 3
)

// path is the way from one port to another: what the GRH or the IP header says. It is
// never changed once it is in use, except that a link may fill in peer.
type path struct {
	sgid, dgid verbs.GID
	attr       verbs.AHAttr
	datagrams  bool // of an address handle
	// peer is the NIC of dgid if the link has found it; only the link looks at it.
	peer *NIC
	// way is what a UDPLink knows of the path; only it looks at it.
	way *udpWay
}

// packet is one packet: exactly the headers of the wire, and a payload that refers to
// memory of the sender. Which fields count is said by opcode, as on the wire; the
// others hold rubbish. A packet and its payload are valid only during the call that
// hands them on.
type packet struct {
	path *path

	// BTH
	opcode    uint8
	solicited bool
	ackReq    bool
	destQPN   uint32
	psn       seqnum.PSN

	// DETH
	qkey   uint32
	srcQPN uint32

	// RETH and AtomicETH
	rkey    uint32
	va      uint64
	dmaLen  uint32
	compare uint64 // also the addend of FETCH_ADD
	swap    uint64

	// AETH and AtomicAckETH
	syndrome uint8
	msn      uint32
	original uint64

	// ImmDt
	imm uint32

	length  uint32 // of the payload
	numSegs uint8
	segs    [verbs.MaxSGE][]byte
}

// setPayload makes b the payload.
func (p *packet) setPayload(b []byte) {
	p.length, p.numSegs, p.segs[0] = uint32(len(b)), 1, b
}

// noPayload makes the payload empty.
func (p *packet) noPayload() { p.length, p.numSegs = 0, 0 }

// sendOpcodes gives the operation for a data packet of a work request: by opcode, by
// whether the packet is the first and the last of its message.
var sendOpcodes = [4][2][2]uint8{
	verbs.OpRDMAWrite:        {{opWriteMiddle, opWriteLast}, {opWriteFirst, opWriteOnly}},
	verbs.OpRDMAWriteWithImm: {{opWriteMiddle, opWriteLastImm}, {opWriteFirst, opWriteOnlyImm}},
	verbs.OpSend:             {{opSendMiddle, opSendLast}, {opSendFirst, opSendOnly}},
	verbs.OpSendWithImm:      {{opSendMiddle, opSendLastImm}, {opSendFirst, opSendOnlyImm}},
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}
