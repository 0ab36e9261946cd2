package perf

import "ibverbx/verbs"

// Op is the operation that is measured.
type Op string

// Operations.
const (
	Write  Op = "write"  // RDMA_WRITE
	Read   Op = "read"   // RDMA_READ
	Send   Op = "send"   // SEND into posted receives
	Atomic Op = "atomic" // ATOMIC_FETCH_AND_ADD on 8 bytes
)

// ParseOp returns the operation of that name.
func ParseOp(s string) (Op, error) {
	switch op := Op(s); op {
	case Write, Read, Send, Atomic:
		return op, nil
	}
	return "", &ConfigError{Where: "operation " + quote(s), Problem: "there is no such operation", Fix: "say write, read, send or atomic"}
}

// opcode is what a work request of the operation says.
func (o Op) opcode() verbs.Opcode {
	switch o {
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

// runsOn reports whether the transport has the operation (IBTA 1.4 table 37).
func (o Op) runsOn(t verbs.QPType) bool {
	switch o {
	case Send:
		return true
	case Write:
		return t != verbs.UD
	default:
		return t == verbs.RC
	}
}

// Mode says whether bandwidth or latency is measured.
type Mode string

// Modes.
const (
	Bandwidth Mode = "bandwidth"
	Latency   Mode = "latency"
)
