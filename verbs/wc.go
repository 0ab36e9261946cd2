package verbs

import "fmt"

// WCOpcode is the operation reported by a successful completion.
type WCOpcode uint8

// Completion opcodes, numbered as in enum ibv_wc_opcode.
const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1
	WCRDMARead        WCOpcode = 2
	WCCompSwap        WCOpcode = 3
	WCFetchAdd        WCOpcode = 4
	WCRecv            WCOpcode = 128
	WCRecvRDMAWithImm WCOpcode = 129
)

// String returns libibverbs' name without its prefix.
func (o WCOpcode) String() string {
	return nameOf(o, "WCOpcode", []string{
		WCSend: "SEND", WCRDMAWrite: "RDMA_WRITE", WCRDMARead: "RDMA_READ", WCCompSwap: "COMP_SWAP",
		WCFetchAdd: "FETCH_ADD", WCRecv: "RECV", WCRecvRDMAWithImm: "RECV_RDMA_WITH_IMM",
	})
}

// opcodeWC maps request opcodes to completion opcodes.
var opcodeWC = [8]WCOpcode{
	OpRDMAWrite:         WCRDMAWrite,
	OpRDMAWriteWithImm:  WCRDMAWrite,
	OpSend:              WCSend,
	OpSendWithImm:       WCSend,
	OpRDMARead:          WCRDMARead,
	OpAtomicCmpAndSwp:   WCCompSwap,
	OpAtomicFetchAndAdd: WCFetchAdd,
}

// WC returns the completion opcode of a request with opcode o.
func (o Opcode) WC() WCOpcode { return opcodeWC[o&7] }

// WCFlags is a set of flags for the optional parts of a completion.
type WCFlags uint8

// Completion flags, numbered as in enum ibv_wc_flags.
const (
	// WCGRH means that the first 40 bytes of a UD receive buffer hold a GRH.
	WCGRH WCFlags = 1 << 0
	// WCWithImm means that Imm is valid.
	WCWithImm WCFlags = 1 << 1
	// WCSealed means that Seal is valid. libibverbs lacks this flag.
	WCSealed WCFlags = 1 << 7
)

// WC is a work completion, a flat value without pointers. If Status is not
// StatusSuccess, only WRID, Status, QPN and VendorErr are valid.
type WC struct {
	WRID      uint64   // copied from the work request
	Status    Status   // StatusSuccess or the failure
	Opcode    WCOpcode // completed operation
	Flags     WCFlags  // valid optional parts
	SL        uint8    // service level, UD only
	VendorErr uint32   // the device's own error code
	// ByteLen is the number of bytes received (on UD including the 40-byte GRH) or read, and 8 for
	// atomics. It is not valid for other sends.
	ByteLen uint32
	// Imm is the sender's immediate in host order. It is valid if Flags has WCWithImm.
	Imm uint32
	// QPN is the number of the local QP.
	QPN uint32
	// SrcQPN is the number of the sender's QP. UD only.
	SrcQPN    uint32
	SLID      uint16 // source LID, UD on InfiniBand only
	PKeyIndex uint16 // UD only
	Seal      uint32 // number of the datagram's Seal (SealedAH), valid if Flags has WCSealed
	// Timestamp is the completion time in ticks of the device's clock (ClockReader). It is valid if the
	// CQ was created with CQConfig.Timestamp.
	Timestamp uint64
}

// Err returns nil for a successful completion and a *WCError otherwise.
func (w *WC) Err() error {
	if w.Status == StatusSuccess {
		return nil
	}
	return &WCError{Status: w.Status, VendorErr: w.VendorErr, QPN: w.QPN, WRID: w.WRID}
}

// WCError is the error of a failed completion.
type WCError struct {
	Status    Status // never StatusSuccess
	VendorErr uint32 // the device's own error code
	QPN       uint32 // 0 if the failure does not belong to one QP
	WRID      uint64 // copied from the work request
}

// Error returns the status in words, the QP, and the likely cause.
func (e *WCError) Error() string {
	where := ""
	if e.QPN != 0 {
		where = fmt.Sprintf(" on QP %#06x", e.QPN)
	}
	s := fmt.Sprintf("completion of wr_id %d%s: %s (status %d, vendor error %#x)",
		e.WRID, where, e.Status, uint8(e.Status), e.VendorErr)
	if c := e.Status.Cause(); c != "" {
		s += ": " + c
	}
	return s
}
