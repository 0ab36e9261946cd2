package verbs

// MaxEndpointExtra is the maximum length of Endpoint.Extra in bytes.
const MaxEndpointExtra = 4096

// Endpoint is a QP's address, which its peer needs to connect. Endpoints received from peers are
// untrusted; Connect validates them.
type Endpoint struct {
	QPN uint32 // QP number, 24 bits, not 0
	PSN uint32 // the first PSN that this side sends
	LID uint16 // InfiniBand only
	GID GID    // port address
	// MTU is the largest path MTU of this side. A connection uses the smaller MTU of both sides.
	MTU MTU
	// MaxRdAtomic is the maximum number of READs and atomics that this side has outstanding; zero
	// disables them.
	MaxRdAtomic uint8
	// MaxDestRdAtomic is the maximum number of outstanding READs and atomics that this side serves; zero
	// disables them.
	MaxDestRdAtomic uint8
	// QKey is the Q_Key of a UD QP.
	QKey uint32
	// Extra is opaque data for the peer's provider, at most MaxEndpointExtra bytes.
	Extra []byte
}

// Validate returns nil or an error that wraps ErrInvalid and names the first invalid field.
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

// Defaults of Connect. The retry count is 6, because the kernel's Soft-RoCE treats 7 as unlimited.
const (
	DefaultTimeout     = 14         // code of AckTimeout: 67 ms
	DefaultRetryCount  = 6          // retransmissions after timeouts
	DefaultRNRRetry    = 7          // 7 means unlimited
	DefaultMinRNRTimer = 12         // code of RNRTimer: 0.64 ms
	DefaultQKey        = 0x11111111 // Q_Key of UD QPs
)

// ConnectAttr returns the attributes with which Connect moves a QP from INIT to RTS: the defaults
// above, the smaller MTU, and READ and atomic depths supported by both sides. local is the QP's own
// endpoint, sgidIndex its row in the GID table of port. To use other values, change the result
// (PathConfig.Apply) and call ConnectWith.
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

// ConnectWith moves qp from RESET or INIT to RTS with the given attributes, using Modify. Providers
// implement Connect with it. On error qp stays in the last state it reached.
func ConnectWith(qp QP, attr QPAttr) error {
	if qp == nil {
		return Invalidf("connect: the QP is nil")
	}
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

// InitQP moves qp from RESET to INIT, where receives can be posted before the peer is known. Connect
// continues from there.
func InitQP(qp QP, port uint8) error {
	if qp == nil {
		return Invalidf("initialize: the QP is nil")
	}
	if port == 0 {
		port = 1
	}
	attr := QPAttr{Port: port, QKey: DefaultQKey, Access: AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic}
	return step(qp, attr, StateInit)
}

// step moves qp to the next state with only the required attributes.
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
