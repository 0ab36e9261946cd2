package wire

import "encoding/binary"

// Type says what a record is.
type Type uint8

const (
	// Ack says what has arrived.
	Ack Type = 1
	// Solicit asks for an Ack that repeats its nonce.
	Solicit Type = 2
	// Offer tells of the QP that a path's next epoch is to use.
	Offer Type = 3
	// Ping asks for a Pong on the same path. Both travel on data paths only.
	Ping Type = 4
	// Pong answers a Ping.
	Pong Type = 5
	// Fault says that a chunk cannot be taken, ever.
	Fault Type = 6
	// CreditRequest tells how many bytes the sender would like to have sent in all.
	CreditRequest Type = 7
	// Credit tells how many bytes the sender may have sent in all.
	Credit Type = 8
)

// Flags of a record.
const (
	// AckDup says that what made the receiver acknowledge had been received before.
	AckDup uint8 = 1 << 0
	// AckEcho says that EchoCSN, EchoXmit and RxDelay are there.
	AckEcho uint8 = 1 << 1
	// AckNonce says that Nonce answers a Solicit.
	AckNonce uint8 = 1 << 2

	ackFlagsAll = AckDup | AckEcho | AckNonce

	// OfferHave says that the sender of an Offer has that of its peer and is
	// connected to it.
	OfferHave uint8 = 1 << 0
)

// MaxAckWords is how many words the bitmap of an Ack has at the most, and so, times 64, the
// largest window.
const MaxAckWords = 4

// Record is one record of a control packet; which fields count depends on Type. The first
// four bytes are the same in all:
//
//	Ack            type8 flags8 flow16 | cum16 window16 | echoCSN16 echoXmit8 words8 |
//	               rxDelay32 | recvLimit32 | nonce32 | bitmap 64 x words
//	Solicit        type8 0 flow16 | nonce32
//	Offer          type8 flags8 path16 | epoch16 0 | 0 QPN24 | 0 PSN24
//	Ping, Pong     type8 0 path16 | nonce32
//	Fault          type8 status8 flow16 | CSN16 0
//	CreditRequest, type8 0 flow16 | 0 | bytes64
//	Credit
type Record struct {
	Type  Type
	Flags uint8
	// Status is the completion status (verbs.Status) that a Fault causes.
	Status uint8
	Flow   uint16

	// Cum is the first CSN that has not arrived. Bit i of Bitmap is chunk Cum+1+i.
	Cum    uint16
	Words  uint8
	Bitmap [MaxAckWords]uint64
	// Window is how many transmissions the receiver has receives for.
	Window uint16
	// EchoCSN and EchoXmit name the last transmission that arrived, RxDelay the
	// nanoseconds that the acknowledgement waited for it.
	EchoCSN  uint16
	EchoXmit uint8
	RxDelay  uint32
	// RecvLimit is the number of the first message that has no receive.
	RecvLimit uint32
	Nonce     uint32

	Path, Epoch uint16
	QPN, PSN    uint32

	CSN   uint16
	Bytes uint64
}

const (
	ackLen    = 24
	shortLen  = 8 // Solicit, Ping, Pong, Fault
	offerLen  = 16
	creditLen = 16
)

// size is how many bytes r takes.
func (r *Record) size() int {
	switch r.Type {
	case Ack:
		return ackLen + 8*int(r.Words)
	case Offer:
		return offerLen
	case CreditRequest, Credit:
		return creditLen
	case Solicit, Ping, Pong, Fault:
	}
	return shortLen
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
		b = be.AppendUint16(b, r.Cum)
		b = be.AppendUint16(b, r.Window)
		b = be.AppendUint16(b, r.EchoCSN)
		b = append(b, r.EchoXmit, r.Words)
		b = be.AppendUint32(b, r.RxDelay)
		b = be.AppendUint32(b, r.RecvLimit)
		b = be.AppendUint32(b, r.Nonce)
		for _, w := range r.Bitmap[:r.Words] {
			b = be.AppendUint64(b, w)
		}
	case Solicit, Ping, Pong:
		b = be.AppendUint32(b, r.Nonce)
	case Offer:
		b = be.AppendUint16(b, r.Epoch)
		b = append(b, 0, 0)
		b = be.AppendUint32(b, r.QPN)
		b = be.AppendUint32(b, r.PSN)
	case Fault:
		b = be.AppendUint16(b, r.CSN)
		b = append(b, 0, 0)
	case CreditRequest, Credit:
		b = append(b, 0, 0, 0, 0)
		b = be.AppendUint64(b, r.Bytes)
	}
	return b
}

// decode fills r from the front of b and returns how many bytes it took.
func (r *Record) decode(b []byte) (int, error) {
	if len(b) < shortLen {
		return 0, malformedf("record of %d bytes, none has less than %d", len(b), shortLen)
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
		r.Flow, r.Nonce = third, be.Uint32(b[4:])
		err = zero(r.Type, uint64(b[1]))
	case Ping, Pong:
		r.Path, r.Nonce = third, be.Uint32(b[4:])
		err = zero(r.Type, uint64(b[1]))
	case Offer:
		r.Flags, r.Path = b[1], third
		n, err = r.decodeOffer(b)
	case Fault:
		r.Status, r.Flow, r.CSN = b[1], third, be.Uint16(b[4:])
		err = zero(r.Type, uint64(be.Uint16(b[6:])))
		if err == nil && r.Status == 0 {
			err = malformedf("fault with the status of success")
		}
	case CreditRequest, Credit:
		if n = creditLen; len(b) < n {
			return 0, malformedf("credit of %d bytes, want %d", len(b), n)
		}
		r.Flow, r.Bytes = third, be.Uint64(b[8:])
		err = zero(r.Type, uint64(b[1])|uint64(be.Uint32(b[4:])))
	default:
		err = malformedf("record of unknown type %d", r.Type)
	}
	if err == nil && r.Flow > MaxFlow {
		err = malformedf("record for flow %d, the last is %d", r.Flow, MaxFlow)
	}
	return n, err
}

// zero is an error unless the reserved bits are.
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
	r.Cum, r.Window, r.EchoCSN = be.Uint16(b[4:]), be.Uint16(b[6:]), be.Uint16(b[8:])
	r.EchoXmit, r.Words = b[10], b[11]
	r.RxDelay, r.RecvLimit, r.Nonce = be.Uint32(b[12:]), be.Uint32(b[16:]), be.Uint32(b[20:])
	if r.Words > MaxAckWords || len(b) < r.size() {
		return 0, malformedf("acknowledgement with %d words in %d bytes", r.Words, len(b))
	}
	for i := range int(r.Words) {
		r.Bitmap[i] = be.Uint64(b[ackLen+8*i:])
	}
	switch {
	case r.Flags&^ackFlagsAll != 0:
		return 0, malformedf("acknowledgement with unknown flags %#x", r.Flags)
	case r.Flags&AckEcho == 0 && (r.EchoCSN != 0 || r.EchoXmit != 0 || r.RxDelay != 0):
		return 0, malformedf("acknowledgement with an echo that its flags do not announce")
	case r.Flags&AckNonce == 0 && r.Nonce != 0:
		return 0, malformedf("acknowledgement with a nonce that its flags do not announce")
	case r.Words > 0 && r.Bitmap[r.Words-1] == 0:
		return 0, malformedf("acknowledgement whose last word is empty")
	}
	return r.size(), nil
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
