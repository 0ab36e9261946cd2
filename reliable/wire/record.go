package wire

import "encoding/binary"

// Type is the type of a Record.
type Type uint8

const (
	// Ack acknowledges received chunks.
	Ack Type = 1
	// Solicit requests an Ack with its nonce, and receives.
	Solicit Type = 2
	// Offer announces the QP of a path for its next epoch.
	Offer Type = 3
	// Ping requests a Pong on the same path. Both travel on data paths only.
	Ping Type = 4
	// Pong answers a Ping.
	Pong Type = 5
	// Fault reports a chunk that can never be accepted.
	Fault Type = 6
	// CreditRequest is the total number of bytes that the sender wants to send.
	CreditRequest Type = 7
	// Credit is the total number of bytes that the peer may send. All ones mean unlimited.
	Credit Type = 8
)

// Record flags.
const (
	// AckDup reports that a duplicate caused the Ack.
	AckDup uint8 = 1 << 0
	// AckEcho reports that EchoCSN, EchoXmit and RxDelay are valid.
	AckEcho uint8 = 1 << 1
	// AckNonce reports that Nonce is the nonce of a Solicit.
	AckNonce uint8 = 1 << 2
	// AckShared reports that flows share the receives. The sender gets only the receives that it
	// requests.
	AckShared uint8 = 1 << 3

	ackFlagsAll = AckDup | AckEcho | AckNonce | AckShared

	// OfferHave reports that the sender of an Offer is connected to the QP that its peer offered.
	OfferHave uint8 = 1 << 0
)

// MaxAckWords is the maximum number of words in the bitmap of an Ack. Times 64 it is the largest window.
const MaxAckWords = 16

// Record is one record of a control packet. Its Type determines the valid fields:
//
//	Ack            type8 flags8 flow16 | cum32 | window16 echoXmit8 words8 | echoCSN16 0 |
//	               rxDelay32 | recvLimit32 | nonce32 | bitmap 64 x words
//	Solicit        type8 0 flow16 | nonce32 | want32
//	Offer          type8 flags8 path16 | epoch16 0 | 0 QPN24 | 0 PSN24
//	Ping, Pong     type8 0 path16 | nonce32
//	Fault          type8 status8 flow16 | CSN32
//	CreditRequest, type8 0 flow16 | number32 | bytes64
//	Credit
type Record struct {
	Type   Type
	Flags  uint8
	Status uint8  // the completion status (verbs.Status) that a Fault causes
	Flow   uint16 // the flow of an Ack, a Solicit and a Fault

	Cum       uint32              // the first missing CSN, with 32 bits
	Words     uint8               // the number of words of Bitmap
	Bitmap    [MaxAckWords]uint64 // has bit i set if chunk Cum+1+i has arrived
	Window    uint16              // the number of transmissions covered by the receiver's receives
	EchoCSN   uint16              // the chunk of the last received transmission
	EchoXmit  uint8               // the Xmit of the last received transmission
	RxDelay   uint32              // the delay of the echo until this acknowledgement, in nanoseconds
	RecvLimit uint32              // the number of the first message without a receive
	Nonce     uint32              // pairs an Ack with its Solicit, and a Pong with its Ping; orders CreditRequests and Credits
	Want      uint32              // the number of the first message beyond the receives requested by a Solicit

	Path  uint16 // the path of an Offer, a Ping and a Pong
	Epoch uint16 // the epoch of an Offer
	QPN   uint32 // the number of the offered QP
	PSN   uint32 // the first PSN of the offered QP

	CSN   uint32 // the chunk of a Fault, with 32 bits
	Bytes uint64 // the total of a CreditRequest, the limit of a Credit
}

const (
	ackLen     = 28
	shortLen   = 8 // Ping, Pong, Fault
	solicitLen = 12
	offerLen   = 16
	creditLen  = 16
)

// Len returns the encoded length of r in bytes.
func (r *Record) Len() int {
	switch r.Type {
	case Ack:
		return ackLen + 8*int(r.Words)
	case Offer:
		return offerLen
	case CreditRequest, Credit:
		return creditLen
	case Solicit:
		return solicitLen
	case Ping, Pong, Fault:
	}
	return shortLen
}

// Shorten removes words from the bitmap of an Ack until its encoded length is at most n. The chunks that it leaves out do not
// seem to have arrived, which a later Ack corrects.
func (r *Record) Shorten(n int) {
	for r.Words > 0 && (r.Len() > n || r.Bitmap[r.Words-1] == 0) {
		r.Words--
		r.Bitmap[r.Words] = 0
	}
}

func (r *Record) append(b []byte) []byte {
	be := binary.BigEndian
	second, third := r.Flags, r.Flow
	switch r.Type {
	case Fault:
		second = r.Status
	case Offer, Ping, Pong:
		third = r.Path
	case Ack, Solicit, CreditRequest, Credit:
	}
	b = append(b, byte(r.Type), second)
	b = be.AppendUint16(b, third)
	switch r.Type {
	case Ack:
		b = be.AppendUint32(b, r.Cum)
		b = be.AppendUint16(b, r.Window)
		b = append(b, r.EchoXmit, r.Words)
		b = be.AppendUint32(b, uint32(r.EchoCSN)<<16)
		b = be.AppendUint32(b, r.RxDelay)
		b = be.AppendUint32(b, r.RecvLimit)
		b = be.AppendUint32(b, r.Nonce)
		for _, w := range r.Bitmap[:r.Words] {
			b = be.AppendUint64(b, w)
		}
	case Solicit:
		b = be.AppendUint32(b, r.Nonce)
		b = be.AppendUint32(b, r.Want)
	case Ping, Pong:
		b = be.AppendUint32(b, r.Nonce)
	case Offer:
		b = be.AppendUint16(b, r.Epoch)
		b = append(b, 0, 0)
		b = be.AppendUint32(b, r.QPN)
		b = be.AppendUint32(b, r.PSN)
	case Fault:
		b = be.AppendUint32(b, r.CSN)
	case CreditRequest, Credit:
		b = be.AppendUint32(b, r.Nonce)
		b = be.AppendUint64(b, r.Bytes)
	}
	return b
}

// decode fills r from the front of b and returns the number of bytes used.
func (r *Record) decode(b []byte) (int, error) {
	if len(b) < shortLen {
		return 0, malformedf("record of %d bytes, want at least %d", len(b), shortLen)
	}
	be := binary.BigEndian
	*r = Record{Type: Type(b[0])}
	third := be.Uint16(b[2:])
	var err error
	n := shortLen
	switch r.Type {
	case Ack:
		r.Flags, r.Flow = b[1], third
		n, err = r.decodeAck(b)
	case Solicit:
		if n = solicitLen; len(b) < n {
			return 0, malformedf("solicit of %d bytes, want %d", len(b), n)
		}
		r.Flow, r.Nonce, r.Want = third, be.Uint32(b[4:]), be.Uint32(b[8:])
		err = zero(r.Type, uint64(b[1]))
	case Ping, Pong:
		r.Path, r.Nonce = third, be.Uint32(b[4:])
		err = zero(r.Type, uint64(b[1]))
	case Offer:
		r.Flags, r.Path = b[1], third
		n, err = r.decodeOffer(b)
	case Fault:
		r.Status, r.Flow, r.CSN = b[1], third, be.Uint32(b[4:])
		if r.Status == 0 {
			err = malformedf("fault with the status of success")
		}
	case CreditRequest, Credit:
		if n = creditLen; len(b) < n {
			return 0, malformedf("credit of %d bytes, want %d", len(b), n)
		}
		r.Flow, r.Nonce, r.Bytes = third, be.Uint32(b[4:]), be.Uint64(b[8:])
		err = zero(r.Type, uint64(b[1]))
	default:
		err = malformedf("record of unknown type %d", r.Type)
	}
	if err == nil && r.Flow > MaxFlow {
		err = malformedf("record for flow %d, the last is %d", r.Flow, MaxFlow)
	}
	return n, err
}

// zero returns an error unless all reserved bits are 0.
func zero(t Type, bits uint64) error {
	if bits != 0 {
		return malformedf("record of type %d with reserved bits %#x", t, bits)
	}
	return nil
}

func (r *Record) decodeAck(b []byte) (int, error) {
	be := binary.BigEndian
	if len(b) < ackLen {
		return 0, malformedf("acknowledgement of %d bytes, want at least %d", len(b), ackLen)
	}
	r.Cum, r.Window, r.EchoCSN = be.Uint32(b[4:]), be.Uint16(b[8:]), be.Uint16(b[12:])
	r.EchoXmit, r.Words = b[10], b[11]
	r.RxDelay, r.RecvLimit, r.Nonce = be.Uint32(b[16:]), be.Uint32(b[20:]), be.Uint32(b[24:])
	if r.Words > MaxAckWords || len(b) < r.Len() {
		return 0, malformedf("acknowledgement with %d words in %d bytes", r.Words, len(b))
	}
	for i := range int(r.Words) {
		r.Bitmap[i] = be.Uint64(b[ackLen+8*i:])
	}
	switch {
	case be.Uint16(b[14:]) != 0:
		return 0, malformedf("acknowledgement with reserved bits set")
	case r.Flags&^ackFlagsAll != 0:
		return 0, malformedf("acknowledgement with unknown flags %#x", r.Flags)
	case r.Flags&AckEcho == 0 && (r.EchoCSN != 0 || r.EchoXmit != 0 || r.RxDelay != 0):
		return 0, malformedf("acknowledgement with an echo that its flags do not announce")
	case r.Flags&AckNonce == 0 && r.Nonce != 0:
		return 0, malformedf("acknowledgement with a nonce that its flags do not announce")
	case r.Words > 0 && r.Bitmap[r.Words-1] == 0:
		return 0, malformedf("acknowledgement whose last word is empty")
	}
	return r.Len(), nil
}

func (r *Record) decodeOffer(b []byte) (int, error) {
	be := binary.BigEndian
	if len(b) < offerLen {
		return 0, malformedf("offer of %d bytes, want %d", len(b), offerLen)
	}
	r.Epoch, r.QPN, r.PSN = be.Uint16(b[4:]), be.Uint32(b[8:]), be.Uint32(b[12:])
	switch {
	case r.Flags&^OfferHave != 0 || be.Uint16(b[6:]) != 0:
		return 0, malformedf("offer with unknown flags %#x or reserved bits", r.Flags)
	case r.QPN == 0 || r.QPN >= 1<<24 || r.PSN >= 1<<24:
		return 0, malformedf("offer of QPN %#x and PSN %#x: want 24 bits each, and a QPN", r.QPN, r.PSN)
	}
	return offerLen, nil
}
