package verbs

// MaxEndpointExtra bounds Endpoint.Extra.
const MaxEndpointExtra = 4096

// Endpoint is the address of one QP: what a peer needs to connect to it. It comes
// from a peer and is checked before use.
type Endpoint struct {
	QPN uint32
	PSN uint32 // the first PSN that this side sends
	LID uint16
	GID GID
	// MTU is the largest path MTU of this side; the smaller of both is used.
	MTU MTU
	// MaxRdAtomic and MaxDestRdAtomic say how many READs and atomics this side can
	// have outstanding and can serve; zero means none.
	MaxRdAtomic     uint8
	MaxDestRdAtomic uint8
	// QKey is the Q_Key of a UD QP.
	QKey uint32
	// Extra belongs to the provider: at most MaxEndpointExtra bytes that the peer's
	// provider understands.
	Extra []byte
}

// Validate returns an error that says which field cannot be right.
func (e *Endpoint) Validate() error {
	switch {
	case e.QPN == 0 || e.QPN >= 1<<24:
		return Invalidf("endpoint: QPN %#x is not a 24-bit QP number above 0", e.QPN)
	case e.PSN >= 1<<24:
		return Invalidf("endpoint: PSN %#x has more than 24 bits", e.PSN)
	case e.MTU.Bytes() == 0:
		return Invalidf("endpoint: MTU code %d is not one of 1 to 5", uint8(e.MTU))
	case e.GID.IsZero() && e.LID == 0:
		return Invalidf("endpoint: neither GID nor LID is set")
	case len(e.Extra) > MaxEndpointExtra:
		return Invalidf("endpoint: %d bytes of Extra, at most %d are allowed", len(e.Extra), MaxEndpointExtra)
	}
	return nil
}

// Defaults of Connect. A timeout code of 14 is 67 ms; 7 RNR retries are without
// limit; RNR timer code 12 is 0.64 ms. Seven retries would be the most, but the kernel's
// Soft-RoCE takes 7 for "without limit" there too.
const (
	DefaultTimeout     = 14
	DefaultRetryCount  = 6
	DefaultRNRRetry    = 7
	DefaultMinRNRTimer = 12
	DefaultQKey        = 0x11111111
)

// ConnectAttr returns the attributes with which Connect takes a QP from INIT to RTS:
// the defaults above, the smaller MTU, and READ and atomic depths that both ends can
// bear. local is the QP's own endpoint, sgidIndex its row in the GID table of port.
// Callers who want other values change them and call ConnectWith.
func ConnectAttr(local, remote Endpoint, port uint8, sgidIndex int) QPAttr {
	return QPAttr{
		PathMTU:         min(local.MTU, remote.MTU),
		QKey:            local.QKey,
		RQPSN:           remote.PSN,
		SQPSN:           local.PSN,
		DestQPN:         remote.QPN,
		Access:          AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic,
		AH:              AHAttr{DGID: remote.GID, SGIDIndex: sgidIndex, HopLimit: 64, DLID: remote.LID, Port: port},
		Port:            port,
		MaxRdAtomic:     min(local.MaxRdAtomic, remote.MaxDestRdAtomic),
		MaxDestRdAtomic: min(local.MaxDestRdAtomic, remote.MaxRdAtomic),
		MinRNRTimer:     DefaultMinRNRTimer,
		Timeout:         DefaultTimeout,
		RetryCount:      DefaultRetryCount,
		RNRRetry:        DefaultRNRRetry,
	}
}

// ConnectWith takes qp from RESET or INIT to RTS with the given attributes, by
// Modify. It is what providers build Connect from.
func ConnectWith(qp QP, attr QPAttr) error {
	if qp.Type() != UD && attr.DestQPN == 0 {
		return Invalidf("connect: destination QPN is 0")
	}
	if qp.State() == StateReset {
		if err := step(qp, attr, StateInit); err != nil {
			return err
		}
	}
	if err := step(qp, attr, StateRTR); err != nil {
		return err
	}
	return step(qp, attr, StateRTS)
}

// InitQP takes qp from RESET to INIT, where receives can be posted before the peer
// is known. Connect goes on from there.
func InitQP(qp QP, port uint8) error {
	if port == 0 {
		port = 1
	}
	attr := QPAttr{Port: port, QKey: DefaultQKey, Access: AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic}
	return step(qp, attr, StateInit)
}

// step modifies qp to the next state, naming just the attributes that it needs.
func step(qp QP, attr QPAttr, to QPState) error {
	from := to - 1
	attr.State = to
	if qp.Type() == UC {
		attr.Access &^= AccessRemoteRead | AccessRemoteAtomic // UC has neither, and drivers refuse them
	}
	return qp.Modify(attr, AttrState|transitions[[2]QPState{from, to}].must[qp.Type()])
}
