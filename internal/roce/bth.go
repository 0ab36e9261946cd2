package roce

import "encoding/binary"

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
