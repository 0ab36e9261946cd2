package roce

import "encoding/binary"

// Reason classifies a datagram or explains why Decode rejects it. Reasons are small and dense, so
// they can index an array of counters.
type Reason uint8

const (
	// OK is a packet for a QP.
	OK Reason = iota
	// Congestion is a CNP: it only concerns the congestion control of DestQPN.
	Congestion
	// BadLength is a datagram that is too short or too long for its opcode.
	BadLength
	// BadVersion is a transport version other than 0.
	BadVersion
	// BadOpcode is an unknown opcode, or one that no verb uses.
	BadOpcode
	// BadPad is a pad count that does not fit the payload.
	BadPad
	// BadSyndrome is an AETH with a reserved code, or a NAK in a READ or atomic response.
	BadSyndrome
	// BadICRC is for callers that check the ICRC after Decode. Decode never returns it.
	BadICRC

	// NumReasons is the number of reasons.
	NumReasons
)

var reasons = [NumReasons]string{
	OK:          "ok",
	Congestion:  "congestion notification",
	BadLength:   "bad length",
	BadVersion:  "bad version",
	BadOpcode:   "bad opcode",
	BadPad:      "bad pad",
	BadSyndrome: "bad syndrome",
	BadICRC:     "bad ICRC",
}

// String returns a description of the reason.
func (r Reason) String() string {
	if r < NumReasons {
		return reasons[r]
	}
	return "unknown reason"
}

// AETH syndromes (IBTA volume 1, section 9.7.5.2.3). Decode clears bit 7.
//
//	7 | 6  5 | 4 .. 0
//	r | 0  0 | credit count     ACK
//	r | 0  1 | timer code       RNR NAK
//	r | 1  0 | reserved
//	r | 1  1 | NAK code         0 to 4
const (
	// SyndromeKind masks the bits that distinguish ACK, RNR NAK and NAK.
	SyndromeKind uint8 = 3 << 5
	// SyndromeAck is an ACK from a responder that does not use credits.
	SyndromeAck uint8 = 0x1f
	// SyndromeRNR is an RNR NAK with timer code 0.
	SyndromeRNR uint8 = 1 << 5
	// NAKSequence reports a gap in the PSNs.
	NAKSequence uint8 = 3 << 5
	// NAKInvalidRequest reports a request that the QP does not support.
	NAKInvalidRequest uint8 = NAKSequence | 1
	// NAKRemoteAccess reports an invalid key, range or access right.
	NAKRemoteAccess uint8 = NAKSequence | 2
	// NAKRemoteOperation reports a failure of the responder itself.
	NAKRemoteOperation uint8 = NAKSequence | 3

	lastNAK          = NAKSequence | 4
	syndromeReserved = 2 << 5
	syndromeIgnored  = 1 << 7
)

// Decode decodes a datagram. If it returns OK or Congestion, h has the headers, and payload is the
// datagram without headers, pad and ICRC. Otherwise h is not valid. Decode does not check the ICRC;
// see [Flow.Check].
//
// It rejects malformed datagrams: lengths that do not fit the opcode, pad without a payload, and
// reserved opcodes and syndromes. FIRST and MIDDLE packets must have a whole MTU of 256 to 4096
// bytes and LAST packets at least one byte. The caller checks properties of the QP, such as its
// MTU, its P_Key and its type.
func (h *Header) Decode(datagram []byte) (payload []byte, r Reason) {
	if !validLength(len(datagram)) {
		return nil, BadLength
	}
	begin, end := int(forms[datagram[0]].length), len(datagram)-icrcLen
	pad := int(datagram[bthFlags] >> padShift & padMask)
	if r = h.DecodeHeader(datagram[:end], end-begin); r != OK {
		return nil, r
	}
	return datagram[begin : end-pad : end-pad], OK
}

// DecodeHeader decodes the headers at the beginning of b like Decode, for a packet with n bytes of
// payload and pad, which need not be in b.
func (h *Header) DecodeHeader(b []byte, n int) Reason {
	if len(b) < bthLen {
		return BadLength
	}
	flags := b[bthFlags]
	if flags&versionMask != 0 {
		return BadVersion
	}
	f := forms[b[0]]
	if f.layout == 0 {
		return BadOpcode
	}
	begin := int(f.length)
	if begin > len(b) {
		return BadLength
	}
	if r := checkPayload(f.layout, n, int(flags>>padShift&padMask)); r != OK {
		return r
	}
	h.Opcode = b[0]
	h.Solicited = flags&flagSolicited != 0
	h.Migrated = flags&flagMigrated != 0
	h.PKey = binary.BigEndian.Uint16(b[bthPKey:])
	h.FECN = b[bthECN]&flagFECN != 0
	h.BECN = b[bthECN]&flagBECN != 0
	h.DestQPN = binary.BigEndian.Uint32(b[bthECN:]) & mask24
	h.AckReq = b[bthAck]&flagAckReq != 0
	h.HeaderICRC = b[bthAck]&flagHeaders != 0
	h.PSN = PSN(binary.BigEndian.Uint32(b[bthAck:]) & mask24)
	if !h.readExtended(b[bthLen:begin], f.layout) {
		return BadSyndrome
	}
	if f.layout&hasCNP != 0 {
		return Congestion
	}
	return OK
}

// MaxFill is the maximum number of fill bytes after a packet in its datagram.
const MaxFill = fillMask * 4

// Trim removes the fill from the end of a datagram. The kernel sends only equally long datagrams as
// a run, so a sender may append fill to shorter ones. Header.Fill gives its length, in bits
// reserved by the specification. Sender and receiver must have agreed on this use; other senders
// may set the bits at will, and the result is then not an intact packet. The ICRC covers neither
// the fill nor these bits, and is computed for the trimmed length.
func Trim(datagram []byte) []byte {
	if len(datagram) <= bthLen {
		return datagram
	}
	fill := int(datagram[bthECN]&fillMask) * 4
	return datagram[:max(len(datagram)-fill, 0)]
}

// checkPayload checks whether a packet may have n bytes of payload and pad together, including pad
// bytes of pad.
func checkPayload(l layout, n, pad int) Reason {
	switch {
	case l&maybe != 0:
		if n > MaxPayload {
			return BadLength
		}
		if pad > n {
			return BadPad
		}
	case l&some != 0:
		if n == 0 || n > MaxPayload {
			return BadLength
		}
	case l&full != 0:
		if n < minMTU || n > MaxPayload || n&(n-1) != 0 {
			return BadLength
		}
		if pad != 0 {
			return BadPad
		}
	default:
		if n != 0 {
			return BadLength
		}
		if pad != 0 {
			return BadPad
		}
	}
	return OK
}

// readExtended reads the extended headers described at extend. It reports whether the syndrome, if
// any, is valid.
func (h *Header) readExtended(b []byte, l layout) bool {
	if l&hasDETH != 0 {
		h.QKey = binary.BigEndian.Uint32(b)
		h.SrcQPN = binary.BigEndian.Uint32(b[4:]) & mask24
		b = b[dethLen:]
	}
	if l&(hasRETH|hasAtomic) != 0 {
		h.VA = binary.BigEndian.Uint64(b)
		h.RKey = binary.BigEndian.Uint32(b[8:])
		if l&hasAtomic != 0 {
			h.SwapAdd = binary.BigEndian.Uint64(b[12:])
			h.Compare = binary.BigEndian.Uint64(b[20:])
			return true
		}
		h.DMALen = binary.BigEndian.Uint32(b[12:])
		b = b[rethLen:]
	}
	if l&hasAETH != 0 {
		h.Syndrome = b[0] &^ syndromeIgnored
		h.MSN = binary.BigEndian.Uint32(b) & mask24
		if !validSyndrome(h.Syndrome, l) {
			return false
		}
		b = b[aethLen:]
	}
	if l&hasAnswer != 0 {
		h.Original = binary.BigEndian.Uint64(b)
	}
	if l&hasImm != 0 {
		h.Imm = binary.BigEndian.Uint32(b)
	}
	return true
}

func validSyndrome(s uint8, l layout) bool {
	switch s & SyndromeKind {
	case SyndromeAck & SyndromeKind:
		return true
	case syndromeReserved:
		return false
	}
	return l&answers == 0 && s <= lastNAK
}
