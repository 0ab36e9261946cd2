package roce

import "encoding/binary"

// Header holds the headers of one packet. Opcode determines the valid fields: Encode ignores the
// others, and Decode leaves them unchanged. The fields are ordered for size.
type Header struct {
	// Opcode is a transport and an operation, or CNP. (BTH)
	Opcode uint8
	// Solicited requests a solicited completion event at the receiver. (BTH)
	Solicited bool
	// Migrated is MigReq: the path is the migrated one. NICs without migration set it. (BTH)
	Migrated bool
	// AckReq requests an acknowledgement from the responder. (BTH)
	AckReq bool
	// FECN is set if the packet experienced congestion. (BTH)
	FECN bool
	// BECN is set if packets in the opposite direction experienced congestion. (BTH)
	BECN bool
	// Fill is the number of four-byte words after the packet in its datagram, at most MaxFill/4.
	// Decode does not set it: see Trim. (BTH, in reserved bits)
	Fill uint8
	// HeaderICRC is set if the ICRC covers only the headers: see Flow.CheckHeaders. (BTH, in a
	// reserved bit)
	HeaderICRC bool
	// PKey is the partition key. (BTH)
	PKey uint16
	// DestQPN is the destination QP, 24 bits. (BTH)
	DestQPN uint32
	// PSN is the packet sequence number. (BTH)
	PSN PSN
	// QKey is the queue key of a datagram. (DETH)
	QKey uint32
	// SrcQPN is the QP that sent a datagram, 24 bits. (DETH)
	SrcQPN uint32
	// VA is the remote address. (RETH, AtomicETH)
	VA uint64
	// RKey is the remote key. (RETH, AtomicETH)
	RKey uint32
	// DMALen is the length of the message in bytes. (RETH)
	DMALen uint32
	// SwapAdd is the value that CMP_SWAP stores or FETCH_ADD adds. (AtomicETH)
	SwapAdd uint64
	// Compare is the value that CMP_SWAP compares with. It is 0 in a FETCH_ADD. (AtomicETH)
	Compare uint64
	// Original is the previous value at the address of an atomic. (AtomicAckETH)
	Original uint64
	// MSN counts completed messages, 24 bits. (AETH)
	MSN uint32
	// Imm is the immediate. (ImmDt)
	Imm uint32
	// Syndrome is an acknowledgement, or a refusal with its reason. (AETH)
	Syndrome uint8
}

// The base transport header (IBTA volume 1, section 9.2). SE is the solicited event, M is MigReq,
// Pad the number of pad bytes, and TVer the version, which is 0. F and B are FECN and BECN of annex
// A17. A is the acknowledgement request, H is HeaderICRC. Bits marked r are sent as 0 and ignored
// when received, as are fill and H unless both sides use this package: see Trim and CheckHeaders.
//
//	    7   6   5   4   3   2   1   0
//	0 |            opcode             |
//	1 |SE | M |  Pad  |     TVer      |
//	2 |            P_Key              |
//	4 | F | B |         fill          |
//	5 |      destination QP, 24 bits  |
//	8 | A | H | r   r   r   r   r   r |
//	9 |      PSN, 24 bits             |
const (
	bthFlags = 1
	bthPKey  = 2
	bthECN   = 4
	bthQPN   = 5
	bthAck   = 8
	bthPSN   = 9

	flagSolicited = 1 << 7
	flagMigrated  = 1 << 6
	padShift      = 4
	padMask       = 3
	versionMask   = 0x0f
	flagFECN      = 1 << 7
	flagBECN      = 1 << 6
	fillMask      = 0x3f
	flagAckReq    = 1 << 7
	flagHeaders   = 1 << 6
)

// Encode writes the headers of a packet with the given payload length to the beginning of b and
// returns their length. b must have space for HeaderLen(h.Opcode) bytes. The payload, Pad(payload)
// zero bytes and the ICRC follow. For an unknown opcode it writes nothing and returns 0.
func (h *Header) Encode(b []byte, payload int) int {
	f := forms[h.Opcode]
	if f.length == 0 {
		return 0
	}
	n := int(f.length)
	b = b[:n:n]
	flags := uint8(Pad(payload)) << padShift
	if h.Solicited {
		flags |= flagSolicited
	}
	if h.Migrated {
		flags |= flagMigrated
	}
	var ecn, ack uint32
	if h.FECN {
		ecn = flagFECN
	}
	if h.BECN {
		ecn |= flagBECN
	}
	ecn |= uint32(h.Fill) & fillMask
	if h.AckReq {
		ack = flagAckReq
	}
	if h.HeaderICRC {
		ack |= flagHeaders
	}
	// Words of eight bytes: the CRC reads words, and loading a word stored in parts stalls until the
	// stores have reached the cache.
	first := uint32(h.Opcode)<<24 | uint32(flags)<<16 | uint32(h.PKey)
	binary.BigEndian.PutUint64(b, uint64(first)<<32|uint64(ecn<<24|h.DestQPN&mask24))
	binary.BigEndian.PutUint32(b[bthAck:], ack<<24|uint32(h.PSN)&mask24)
	h.extend(b[bthLen:], f.layout)
	return n
}

const mask24 = 1<<24 - 1

// extend writes the extended headers (IBTA volume 1, sections 9.3 and 9.4):
//
//	DETH          Q_Key 4 | reserved 1 | source QP 3
//	RETH          address 8 | R_Key 4 | length 4
//	AtomicETH     address 8 | R_Key 4 | swap or add 8 | compare 8
//	AETH          syndrome 1 | MSN 3
//	AtomicAckETH  original 8
//	ImmDt         immediate 4
func (h *Header) extend(b []byte, l layout) {
	if l&hasDETH != 0 {
		binary.BigEndian.PutUint32(b, h.QKey)
		binary.BigEndian.PutUint32(b[4:], h.SrcQPN&mask24)
		b = b[dethLen:]
	}
	if l&(hasRETH|hasAtomic) != 0 {
		binary.BigEndian.PutUint64(b, h.VA)
		if l&hasAtomic != 0 {
			binary.BigEndian.PutUint32(b[8:], h.RKey)
			binary.BigEndian.PutUint64(b[12:], h.SwapAdd)
			binary.BigEndian.PutUint64(b[20:], h.Compare)
			return
		}
		binary.BigEndian.PutUint64(b[8:], uint64(h.RKey)<<32|uint64(h.DMALen))
		b = b[rethLen:]
	}
	if l&hasAETH != 0 {
		binary.BigEndian.PutUint32(b, uint32(h.Syndrome)<<24|h.MSN&mask24)
		b = b[aethLen:]
	}
	if l&hasAnswer != 0 {
		binary.BigEndian.PutUint64(b, h.Original)
	}
	if l&hasImm != 0 {
		binary.BigEndian.PutUint32(b, h.Imm)
	}
	if l&hasCNP != 0 {
		clear(b)
	}
}

// BTH is the base transport header of a packet, for comparison with the next packet: in the middle of a
// message, they differ only in PSN and AckReq.
type BTH struct {
	first uint64
	// second is the rest, without AckReq.
	second uint32
}

const ackReqBit = flagAckReq << 24

// BTHOf returns the base transport header of a datagram that Decode has accepted.
func BTHOf(datagram []byte) BTH {
	return BTH{binary.BigEndian.Uint64(datagram), binary.BigEndian.Uint32(datagram[bthAck:]) &^ ackReqBit}
}

// Next reports whether a datagram of the same length has the same header with the next PSN, and what
// its AckReq is. If so, it becomes h, and Decode accepts it with the same result, PSN and AckReq aside.
func (h *BTH) Next(datagram []byte) (ackReq, ok bool) {
	if len(datagram) < MinDatagram {
		return false, false
	}
	second, want := binary.BigEndian.Uint32(datagram[bthAck:]), h.second&^mask24|(h.second+1)&mask24
	if binary.BigEndian.Uint64(datagram) != h.first || second&^ackReqBit != want {
		return false, false
	}
	h.second = want
	return second&ackReqBit != 0, true
}

// PSNBits is the width of a packet sequence number in the BTH, PSNMask its highest value.
const (
	PSNBits = 24
	PSNMask = 1<<PSNBits - 1
)

// PSNHalf is half the PSN space. Relative to a responder's expected PSN, one half is valid
// or ahead and the other half is duplicate. A send queue therefore never has more than PSNHalf
// packets outstanding (IBTA volume 1, section 9.7.1, "Packet Sequence Numbers").
const PSNHalf = 1 << (PSNBits - 1)

// PSN is a packet sequence number. It has 24 bits and wraps. The methods ignore the upper eight
// bits of their operands and clear them in their results, so results can be compared with ==.
// Add(0) makes a PSN of unknown origin comparable.
type PSN uint32

// Add returns the PSN n packets after p.
func (p PSN) Add(n uint32) PSN { return PSN((uint32(p) + n) & PSNMask) }

// Sub returns the signed distance from q to p, in [-PSNHalf, PSNHalf): the d of smallest
// magnitude for which q plus d is p, and -PSNHalf if p is exactly opposite.
func (p PSN) Sub(q PSN) int32 {
	// The difference moves to the top of the word, where its highest bit is the sign, and
	// back down with that sign.
	const up = 32 - PSNBits
	return int32((uint32(p)-uint32(q))<<up) >> up
}

// SourcePort returns the UDP source port that a flow label other than 0 stands for. It folds 20 bits into
// the 14 of the ports from 0xc000 on, as the Linux kernel (rdma_flow_label_to_udp_sport) and libibverbs
// (ibv_flow_label_to_udp_sport) do.
func SourcePort(flowLabel uint32) uint16 {
	return uint16(0xc000 | (flowLabel^flowLabel>>14&0x3f)&0x3fff)
}
