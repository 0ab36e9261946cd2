package ibverbx

import (
	"fmt"
	"math"

	"ibverbx/verbs"
)

// MaxSGE is how many pieces a request has at most. Devices may allow fewer (verbs.DeviceAttr.MaxSGE).
const MaxSGE = verbs.MaxSGE

// SGE is a piece of local memory: Length bytes at offset Offset of a Region.
type SGE struct {
	Region *Region
	Offset uint64
	Length uint32
}

// SendWR is a request of a VirtualQP, of any size up to 4 GiB - 1.
type SendWR struct {
	// WRID comes back in the completion.
	WRID   uint64
	Opcode verbs.Opcode
	// Flags are SendSignaled, SendFence, SendInline and SendSolicited. SendSignaled asks for a
	// completion; errors are reported without it. SendFence is a full barrier: the request starts when
	// every earlier one has ended. SendInline copies the bytes at post time (Config.MaxInline).
	Flags  verbs.SendFlags
	NumSGE uint8
	// Imm is the immediate of RDMA_WRITE_WITH_IMM and SEND_WITH_IMM, in host order.
	Imm uint32
	SGE [MaxSGE]SGE
	// Remote is the memory that a WRITE, READ or atomic goes to.
	Remote *RemoteRegion
	// RemoteOffset is the offset in Remote, in bytes.
	RemoteOffset uint64
	// CompareAdd is the first operand of an atomic: the value to compare with, or to add.
	CompareAdd uint64
	// Swap is the second operand of CMP_AND_SWP.
	Swap uint64
}

// SetSGE makes w carry the given pieces. With more than MaxSGE, the post refuses w.
func (w *SendWR) SetSGE(sges ...SGE) {
	copy(w.SGE[:], sges)
	w.NumSGE = uint8(min(len(sges), math.MaxUint8))
}

// Length returns the sum of the lengths of the pieces.
func (w *SendWR) Length() uint64 {
	var n uint64
	for i := range min(int(w.NumSGE), MaxSGE) {
		n += uint64(w.SGE[i].Length)
	}
	return n
}

// RecvWR is a receive of a VirtualQP. Without bytes it waits for a notification, the end of a
// WRITE_WITH_IMM. With bytes it waits for a SEND. On several lanes these are two queues, each in its own
// order.
type RecvWR struct {
	// WRID comes back in the completion.
	WRID   uint64
	NumSGE uint8
	SGE    [MaxSGE]SGE
}

// SetSGE makes w receive into the given pieces. With more than MaxSGE, the post refuses w.
func (w *RecvWR) SetSGE(sges ...SGE) {
	copy(w.SGE[:], sges)
	w.NumSGE = uint8(min(len(sges), math.MaxUint8))
}

// WCFlags says which fields of a completion are valid.
type WCFlags uint8

// Completion flags.
const (
	// WCHasImm says that Imm is the sender's immediate.
	WCHasImm WCFlags = 1 << 0
	// WCHasLength says that ByteLen is the length of the message.
	WCHasLength WCFlags = 1 << 1
)

// WC is a completion of a VirtualQP. If Status is not verbs.StatusSuccess, only WRID, QP, Status and
// VendorErr are valid.
type WC struct {
	WRID      uint64
	QP        *VirtualQP
	Status    verbs.Status
	Opcode    verbs.WCOpcode
	Flags     WCFlags
	VendorErr uint32
	ByteLen   uint32
	Imm       uint32
}

// Err returns nil for a success, and otherwise an error with the request, the status and its usual cause.
// It wraps a *verbs.WCError and, if the VirtualQP has failed, its error (VirtualQP.Err): a flushed request
// shows what failed first. A zero WC, which no call has filled in, is an error.
func (w *WC) Err() error {
	if w.QP == nil {
		return verbs.Invalidf("a completion without a virtual QP: no call has filled it in")
	}
	if w.Status == verbs.StatusSuccess {
		return nil
	}
	e := verbs.WCError{Status: w.Status, VendorErr: w.VendorErr, WRID: w.WRID}
	if err := w.QP.Err(); err != nil {
		return &failure{e, err}
	}
	return fmt.Errorf("virtual QP %d: %w", w.QP.setup.num, &e)
}

// failure is a failed completion of a VirtualQP that has failed.
type failure struct {
	wc  verbs.WCError
	err error // what ended the VirtualQP
}

// Error returns the request, its status in words, and what ended the VirtualQP.
func (f *failure) Error() string {
	w := &f.wc
	return fmt.Sprintf("completion of wr_id %d: %s (status %d, vendor error %#x): %v", w.WRID, w.Status, uint8(w.Status), w.VendorErr, f.err)
}

// Unwrap returns the completion and what ended the VirtualQP.
func (f *failure) Unwrap() []error { return []error{&f.wc, f.err} }
