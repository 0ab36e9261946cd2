package roce

// Port is the UDP port of RoCEv2.
const Port = 4791

// Transports, the upper three bits of an opcode (IBTA 1.4 table 38):
//
//	 7   6   5 | 4   3   2   1   0
//	transport  |     operation
const (
	RC uint8 = 0 << 5
	UC uint8 = 1 << 5
	UD uint8 = 3 << 5

	TransportMask uint8 = 7 << 5
	OperationMask uint8 = 1<<5 - 1
)

// Operations, the lower five bits of an opcode. RC has all of them, UC those up to OpWriteOnlyImm, and
// UD only OpSendOnly and OpSendOnlyImm.
const (
	OpSendFirst uint8 = iota
	OpSendMiddle
	OpSendLast
	OpSendLastImm
	OpSendOnly
	OpSendOnlyImm
	OpWriteFirst
	OpWriteMiddle
	OpWriteLast
	OpWriteLastImm
	OpWriteOnly
	OpWriteOnlyImm
	OpReadRequest
	OpReadResponseFirst
	OpReadResponseMiddle
	OpReadResponseLast
	OpReadResponseOnly
	OpAck
	OpAtomicAck
	OpCompareSwap
	OpFetchAdd
)

// CNP is the opcode of a congestion notification packet (IBTA annex A17.9): a BTH with BECN
// set and sixteen reserved bytes.
const CNP uint8 = 0x81

// PKeyDefault is the partition key of a full member of the default partition.
const PKeyDefault uint16 = 0xffff

// PKeysMatch reports whether two ports belong to one partition: the low fifteen bits of their keys
// are equal and not zero, and the top bit of at least one marks a full member (IBTA volume 1,
// section 10.9.3).
func PKeysMatch(a, b uint16) bool {
	const member = 1 << 15
	return (a^b)&^member == 0 && a&^member != 0 && (a|b)&member != 0
}

// Lengths of headers, in bytes.
const (
	bthLen       = 12
	dethLen      = 8
	rethLen      = 16
	atomicLen    = 28
	aethLen      = 4
	atomicAckLen = 8
	immLen       = 4
	cnpLen       = 16
	icrcLen      = 4

	// MaxHeader is the length of the longest headers: BTH and AtomicETH.
	MaxHeader = bthLen + atomicLen
	// MaxTail is the maximum number of bytes after a payload: pad and ICRC.
	MaxTail = 3 + icrcLen
	// MaxPayload is the maximum payload of a packet, at the largest MTU.
	MaxPayload = 4096
	// MaxDatagram is the maximum length of a datagram: a WRITE_ONLY_WITH_IMM at the largest MTU.
	MaxDatagram = bthLen + rethLen + immLen + MaxPayload + icrcLen
	// MinDatagram is the minimum length of a datagram.
	MinDatagram = bthLen + icrcLen

	minMTU = 256
)

// layout lists the headers after the BTH, in wire order, and the allowed payloads.
type layout uint16

const (
	known     layout = 1 << iota
	hasDETH          // queue key and source QP
	hasRETH          // address, key and length
	hasAtomic        // address, key and two operands
	hasAETH          // syndrome and message number
	hasAnswer        // AtomicAckETH
	hasImm           // immediate
	hasCNP           // sixteen reserved bytes
	full             // the payload is one MTU: FIRST and MIDDLE
	some             // the payload is not empty: LAST
	maybe            // the payload may be empty: ONLY
	answers          // the AETH is an acknowledgement: a READ or atomic response
)

// operations holds the layouts by operation.
var operations = [...]layout{
	OpSendFirst:          full,
	OpSendMiddle:         full,
	OpSendLast:           some,
	OpSendLastImm:        some | hasImm,
	OpSendOnly:           maybe,
	OpSendOnlyImm:        maybe | hasImm,
	OpWriteFirst:         full | hasRETH,
	OpWriteMiddle:        full,
	OpWriteLast:          some,
	OpWriteLastImm:       some | hasImm,
	OpWriteOnly:          maybe | hasRETH,
	OpWriteOnlyImm:       maybe | hasRETH | hasImm,
	OpReadRequest:        hasRETH,
	OpReadResponseFirst:  full | hasAETH | answers,
	OpReadResponseMiddle: full,
	OpReadResponseLast:   some | hasAETH | answers,
	OpReadResponseOnly:   maybe | hasAETH | answers,
	OpAck:                hasAETH,
	OpAtomicAck:          hasAETH | hasAnswer | answers,
	OpCompareSwap:        hasAtomic,
	OpFetchAdd:           hasAtomic,
}

// form describes an opcode.
type form struct {
	layout layout
	// length is the length of all headers in bytes.
	length uint8
}

// forms holds the forms of all opcodes. The form of an unknown opcode is zero.
var forms = makeForms()

func makeForms() (f [256]form) {
	for op, l := range operations {
		f[RC|uint8(op)] = makeForm(l)
		if uint8(op) <= OpWriteOnlyImm {
			f[UC|uint8(op)] = makeForm(l)
		}
	}
	for _, op := range []uint8{OpSendOnly, OpSendOnlyImm} {
		f[UD|op] = makeForm(operations[op] | hasDETH)
	}
	f[CNP] = makeForm(hasCNP)
	return f
}

func makeForm(l layout) form {
	n := bthLen
	for _, part := range []struct {
		bit    layout
		length int
	}{
		{hasDETH, dethLen},
		{hasRETH, rethLen},
		{hasAtomic, atomicLen},
		{hasAETH, aethLen},
		{hasAnswer, atomicAckLen},
		{hasImm, immLen},
		{hasCNP, cnpLen},
	} {
		if l&part.bit != 0 {
			n += part.length
		}
	}
	return form{layout: l | known, length: uint8(n)}
}

// HeaderLen returns the length of the headers of a packet, 0 if the opcode is unknown.
func HeaderLen(opcode uint8) int { return int(forms[opcode].length) }

// Pad returns the number of bytes that pad a payload to a multiple of four.
func Pad(payload int) int { return -payload & 3 }

// DatagramLen returns the length of a datagram: headers, payload, pad and ICRC.
func DatagramLen(opcode uint8, payload int) int {
	return HeaderLen(opcode) + payload + Pad(payload) + icrcLen
}

// validLength reports whether a datagram can have length n.
func validLength(n int) bool { return n >= MinDatagram && n <= MaxDatagram && n&3 == 0 }
