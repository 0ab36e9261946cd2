package measure

import "ibverbx/verbs"

// Op is the operation that is measured.
type Op string

// Operations.
const (
	Write  Op = "write"  // RDMA_WRITE
	Read   Op = "read"   // RDMA_READ
	Send   Op = "send"   // SEND into posted receives
	Atomic Op = "atomic" // ATOMIC_FETCH_AND_ADD on 8 bytes

	// WriteImm is what a report calls Write with Config.Imm: RDMA_WRITE_WITH_IMM.
	WriteImm Op = "writeimm"
)

// ParseOp returns the operation of that name.
func ParseOp(s string) (Op, error) {
	switch op := Op(s); op {
	case Write, Read, Send, Atomic:
		return op, nil
	case WriteImm: // only by --imm
	}
	return "", &ConfigError{Where: "operation " + quote(s), Problem: "there is no such operation", Fix: "use write, read, send or atomic"}
}

// opcode is the opcode of a work request of the operation.
func (o Op) opcode() verbs.Opcode {
	switch o {
	case WriteImm:
		return verbs.OpRDMAWriteWithImm
	case Read:
		return verbs.OpRDMARead
	case Send:
		return verbs.OpSend
	case Atomic:
		return verbs.OpAtomicFetchAndAdd
	default:
		return verbs.OpRDMAWrite
	}
}

// received reports whether the target takes a receive for each message.
func (o Op) received() bool { return o == Send || o == WriteImm }

// runsOn reports whether the transport has the operation (IBTA 1.4 table 37).
func (o Op) runsOn(t verbs.QPType) bool {
	switch o {
	case Send:
		return true
	case Write, WriteImm:
		return t != verbs.UD
	default:
		return t == verbs.RC
	}
}

// Mode is whether bandwidth or latency is measured.
type Mode string

// Modes.
const (
	Bandwidth Mode = "bandwidth"
	Latency   Mode = "latency"
)

// Transport is what makes the QPs of a test reliable.
type Transport string

// Transports.
const (
	// TransportRC is the RC QPs of the device.
	TransportRC Transport = "rc"
	// TransportUC is RC QPs that package reliable makes of many UC QPs each. The caller that
	// opens the rails wraps them.
	TransportUC Transport = "uc"

	// TransportRaw is what a report calls raw UC and UD QPs: nothing makes them reliable.
	TransportRaw Transport = "raw"
)

// transport is what a report says of the QPs.
func (c *Config) transport() Transport {
	if !c.virtual() {
		return TransportRaw
	}
	return c.Transport
}
