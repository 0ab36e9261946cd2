package measure

import (
	"strconv"

	"ibverbx/peer"
	"ibverbx/verbs"
)

// Op is the operation to measure.
type Op string

// Operations.
const (
	Write  Op = "write"  // RDMA_WRITE
	Read   Op = "read"   // RDMA_READ
	Send   Op = "send"   // SEND into posted receives
	Atomic Op = "atomic" // ATOMIC_FETCH_AND_ADD on 8 bytes

	// WriteImm is the name of Write with Config.Imm in reports: RDMA_WRITE_WITH_IMM.
	WriteImm Op = "writeimm"
)

// ParseOp returns the operation of that name.
func ParseOp(s string) (Op, error) {
	switch op := Op(s); op {
	case Write, Read, Send, Atomic:
		return op, nil
	case WriteImm: // set by --imm only
	}
	return "", &ConfigError{Where: "operation " + strconv.Quote(s), Problem: "there is no such operation", Fix: "use write, read, send or atomic"}
}

// opcode returns the opcode of the operation's work requests.
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

// received reports whether each message consumes a receive at the target.
func (o Op) received() bool { return o == Send || o == WriteImm }

// runsOn reports whether the transport supports the operation (IBTA 1.4 table 37).
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

// Mode selects bandwidth or latency.
type Mode string

// Modes.
const (
	Bandwidth Mode = "bandwidth"
	Latency   Mode = "latency"
)

// TransportRaw is the name of raw UC and UD QPs in reports; they are unreliable.
const TransportRaw peer.Transport = "raw"

// transport returns the transport name for reports.
func (c *Config) transport() peer.Transport {
	if !c.virtual() {
		return TransportRaw
	}
	return c.Transport
}
