package verbs

// MaxEndpointExtra bounds Endpoint.Extra.
const MaxEndpointExtra = 4096

// Endpoint is the address of one QP, as its peer needs it to connect. Endpoints come
// from peers and are validated before use.
type Endpoint struct {
	QPN uint32
	PSN uint32 // the first PSN that this side sends
	LID uint16
	GID GID
	// MTU is the largest path MTU of this side. A connection uses the smaller of both.
	MTU MTU
	// MaxRdAtomic is how many READs and atomics this side may have outstanding; zero
	// means none.
	MaxRdAtomic uint8
	// MaxDestRdAtomic is how many READs and atomics this side serves; zero means none.
	MaxDestRdAtomic uint8
	// QKey is the Q_Key of a UD QP.
	QKey uint32
	// Extra is provider data for the peer's provider, at most MaxEndpointExtra bytes.
	Extra []byte
}

// Validate returns an error that names the first invalid field.
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

// Defaults of Connect. Timeout code 14 is 67 ms. RNR timer code 12 is 0.64 ms. Seven
// RNR retries mean no limit. The retry count is 6, not 7, because the kernel's
// Soft-RoCE also reads a retry count of 7 as no limit.
const (
	DefaultTimeout     = 14
	DefaultRetryCount  = 6
	DefaultRNRRetry    = 7
	DefaultMinRNRTimer = 12
	DefaultQKey        = 0x11111111
)

// ConnectAttr returns the attributes with which Connect takes a QP from INIT to RTS:
// the defaults above, the smaller MTU, and READ and atomic depths that both ends
// support. local is the QP's own endpoint, sgidIndex its row in the GID table of port.
// Callers that need other values change them (PathConfig.Apply) and call ConnectWith.
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

// ConnectWith takes qp from RESET or INIT to RTS with the given attributes, using
// Modify. Providers implement Connect with it.
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

// InitQP takes qp from RESET to INIT. In INIT, receives can be posted before the peer
// is known. Connect continues from there.
func InitQP(qp QP, port uint8) error {
	if port == 0 {
		port = 1
	}
	attr := QPAttr{Port: port, QKey: DefaultQKey, Access: AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic}
	return step(qp, attr, StateInit)
}

// step modifies qp to the next state with only the attributes that the step needs.
func step(qp QP, attr QPAttr, to QPState) error {
	from := to - 1
	attr.State = to
	if qp.Type() == UC {
		attr.Access &^= AccessRemoteRead | AccessRemoteAtomic // UC supports neither, and drivers reject them
	}
	mask := AttrState | transitions[[2]QPState{from, to}].must[qp.Type()]
	if to == StateRTR && attr.PKeyIndex != 0 {
		mask |= AttrPKeyIndex // InitQP has set 0
	}
	return qp.Modify(attr, mask)
}
