package wire

// Kind is the kind of a message on a data path.
type Kind uint8

const (
	// KindData is an RDMA WRITE_WITH_IMM, placed by the NIC. It is always the first transmission of
	// its chunk.
	KindData Kind = 0
	// KindChunk is a SEND with a Header and a payload placed by software: a retransmission, a SEND of
	// the user, or a notification.
	KindChunk Kind = 1
	// KindControl is a SEND whose payload is a control packet.
	KindControl Kind = 2
)

// Imm is the immediate of a message on a data path.
//
//	31   30 | 29  |   28   | 27           16 | 15            0
//	 kind   |  0  | ackReq |   flow, 12 bit  |   CSN, 16 bit
//
// CSN is the chunk's sequence number. It wraps, so comparisons use serial arithmetic. A control packet
// has CSN 0.
type Imm struct {
	Kind   Kind   // of the message
	AckReq bool   // requests an immediate acknowledgement
	Flow   uint16 // at most MaxFlow
	CSN    uint16 // of the chunk
}

const (
	immKindShift = 30
	immReserved  = 1 << 29
	immAckReq    = 1 << 28
	immFlowShift = 16

	// MaxFlow is the largest flow number.
	MaxFlow = 1<<12 - 1
)

// Encode returns the 32 bits of i. Flow must be at most MaxFlow.
func (i Imm) Encode() uint32 {
	v := uint32(i.Kind)<<immKindShift | uint32(i.Flow&MaxFlow)<<immFlowShift | uint32(i.CSN)
	if i.AckReq {
		v |= immAckReq
	}
	return v
}

// DecodeImm decodes an immediate. Errors wrap ErrMalformed.
func DecodeImm(v uint32) (Imm, error) {
	i := Imm{
		Kind:   Kind(v >> immKindShift),
		AckReq: v&immAckReq != 0,
		Flow:   uint16(v>>immFlowShift) & MaxFlow,
		CSN:    uint16(v),
	}
	switch {
	case i.Kind > KindControl:
		return Imm{}, malformedf("immediate %#08x has the unknown kind %d", v, i.Kind)
	case v&immReserved != 0:
		return Imm{}, malformedf("immediate %#08x has its reserved bit set", v)
	case i.Kind == KindControl && (i.CSN != 0 || i.AckReq):
		return Imm{}, malformedf("immediate %#08x of a control packet has a CSN or asks for an acknowledgement", v)
	}
	return i, nil
}
