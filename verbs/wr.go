package verbs

import (
	"fmt"
	"math"
	"strings"
)

// MaxSGE is the maximum number of scatter-gather elements stored in a work request. Devices may allow
// fewer (DeviceAttr.MaxSGE), or more in a separate list (SendWR.Listed).
const MaxSGE = 4

// SGE is a scatter-gather element: Length bytes at Addr, in the region of LKey.
type SGE struct {
	Addr   uint64 // address of the first byte
	Length uint32 // in bytes
	LKey   uint32 // local key of the region
}

// Opcode is the operation of a send work request.
type Opcode uint8

// Opcodes, numbered as in enum ibv_wr_opcode.
const (
	OpRDMAWrite         Opcode = 0
	OpRDMAWriteWithImm  Opcode = 1
	OpSend              Opcode = 2
	OpSendWithImm       Opcode = 3
	OpRDMARead          Opcode = 4
	OpAtomicCmpAndSwp   Opcode = 5
	OpAtomicFetchAndAdd Opcode = 6
)

var opcodeNames = [...]string{
	OpRDMAWrite:         "RDMA_WRITE",
	OpRDMAWriteWithImm:  "RDMA_WRITE_WITH_IMM",
	OpSend:              "SEND",
	OpSendWithImm:       "SEND_WITH_IMM",
	OpRDMARead:          "RDMA_READ",
	OpAtomicCmpAndSwp:   "ATOMIC_CMP_AND_SWP",
	OpAtomicFetchAndAdd: "ATOMIC_FETCH_AND_ADD",
}

// String returns libibverbs' name without its prefix.
func (o Opcode) String() string { return nameOf(o, "Opcode", opcodeNames[:]) }

// SendFlags is a set of options of a send work request.
type SendFlags uint8

// Send flags, numbered as in enum ibv_send_flags.
const (
	// SendFence delays the request until the QP's earlier READs and atomics have completed. RC only.
	SendFence SendFlags = 1 << 0
	// SendSignaled requests a completion. Errors are always reported.
	SendSignaled SendFlags = 1 << 1
	// SendSolicited makes the receiver's completion solicited.
	SendSolicited SendFlags = 1 << 2
	// SendInline copies the bytes at post time: the buffer may be reused when PostSend returns, and LKey
	// is ignored. The address must be readable memory of this process. READs and atomics do not allow
	// it.
	SendInline SendFlags = 1 << 3

	sendFlagsAll = SendFence | SendSignaled | SendSolicited | SendInline
)

// Valid reports whether all flags in f are known.
func (f SendFlags) Valid() bool { return f&^sendFlagsAll == 0 }

// String lists the flags.
func (f SendFlags) String() string {
	if f == 0 {
		return "0"
	}
	var parts []string
	for i, name := range [...]string{"FENCE", "SIGNALED", "SOLICITED", "INLINE"} {
		if f&(1<<i) != 0 {
			parts = append(parts, name)
		}
	}
	if rest := f &^ sendFlagsAll; rest != 0 {
		parts = append(parts, fmt.Sprintf("%#x", uint8(rest)))
	}
	return strings.Join(parts, "|")
}

// SendWR is a send work request. It is a flat value of two cache lines (128 bytes)
// without pointers: a batch of them crosses into C in one call.
//
//	 0 WRID       8 RemoteAddr  16 CompareAdd  24 Swap
//	32 AH        40 Imm         44 RKey        48 RemoteQPN  52 RemoteQKey
//	56 Opcode    57 Flags       58 NumSGE      59 Listed     64 SGE[0..3]
type SendWR struct {
	// WRID is copied to the completion.
	WRID uint64
	// RemoteAddr is the target address of a WRITE, READ or atomic.
	RemoteAddr uint64
	// CompareAdd is the addend of FETCH_AND_ADD, and the expected value of CMP_AND_SWP.
	CompareAdd uint64
	// Swap is the value that CMP_AND_SWP stores.
	Swap uint64
	// AH is the destination of a UD send, together with RemoteQPN and RemoteQKey.
	AH AHHandle
	// Imm is the immediate of the WITH_IMM opcodes in host byte order. Providers send it big-endian.
	Imm uint32
	// RKey is the peer's key for the region of RemoteAddr.
	RKey       uint32
	RemoteQPN  uint32    // UD only
	RemoteQKey uint32    // UD only
	Opcode     Opcode    // operation
	Flags      SendFlags // options
	// NumSGE is the number of elements in SGE or the list; 0 means a zero-length operation.
	NumSGE uint8
	// Listed is 1 if the request has more than MaxSGE elements, stored in an array at SGE[0].Addr; the
	// rest of SGE is then unused. The array must be readable memory that does not move, never a
	// goroutine's stack, and must stay valid until PostSend returns.
	Listed uint8
	_      [4]byte
	SGE    [MaxSGE]SGE
}

// SetSGE sets the elements of w. Posting more than MaxSGE elements returns ErrInvalid.
func (w *SendWR) SetSGE(sges ...SGE) {
	copy(w.SGE[:], sges)
	w.NumSGE, w.Listed = uint8(min(len(sges), math.MaxUint8)), 0
}

// Length returns the total length of the elements in bytes. It is undefined for a request with a
// list.
func (w *SendWR) Length() uint64 {
	var n uint64
	for i := range min(int(w.NumSGE), MaxSGE) {
		n += uint64(w.SGE[i].Length)
	}
	return n
}

// RecvWR is a receive work request: a flat value without pointers.
type RecvWR struct {
	// WRID is copied to the completion.
	WRID uint64
	// NumSGE is the number of elements in SGE or the list; 0 receives no bytes.
	NumSGE uint8
	// Listed is as in SendWR.
	Listed uint8
	_      [6]byte
	SGE    [MaxSGE]SGE
}

// SetSGE sets the elements of w. Posting more than MaxSGE elements returns ErrInvalid.
func (w *RecvWR) SetSGE(sges ...SGE) {
	copy(w.SGE[:], sges)
	w.NumSGE, w.Listed = uint8(min(len(sges), math.MaxUint8)), 0
}

// Length returns the total length of the elements in bytes. It is undefined for a receive with a
// list.
func (w *RecvWR) Length() uint64 {
	var n uint64
	for i := range min(int(w.NumSGE), MaxSGE) {
		n += uint64(w.SGE[i].Length)
	}
	return n
}
