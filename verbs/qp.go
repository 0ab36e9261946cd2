package verbs

// QPType is the transport service of a QP.
type QPType uint8

// QP types, numbered as in enum ibv_qp_type.
const (
	RC QPType = 2 // reliable connected
	UC QPType = 3 // unreliable connected
	UD QPType = 4 // unreliable datagram
)

// String returns the short name.
func (t QPType) String() string { return nameOf(t, "QPType", []string{RC: "RC", UC: "UC", UD: "UD"}) }

// QPState is the state of a QP.
type QPState uint8

// QP states, numbered as in enum ibv_qp_state.
const (
	StateReset QPState = 0 // new; nothing can be posted
	StateInit  QPState = 1 // receives can be posted
	StateRTR   QPState = 2 // ready to receive
	StateRTS   QPState = 3 // ready to send
	StateSQD   QPState = 4 // the send queue drains or is drained
	StateSQE   QPState = 5 // a send failed (UC, UD); receives go on
	StateErr   QPState = 6 // everything is flushed
)

var stateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// String returns the name of libibverbs without its prefix.
func (s QPState) String() string { return nameOf(s, "QPState", stateNames[:]) }

// QPConfig describes a queue pair.
type QPConfig struct {
	// Type is RC, UC or UD; zero is an error.
	Type QPType
	// SendCQ and RecvCQ take the completions; they may be the same. Nil is an error.
	SendCQ, RecvCQ CQ
	// SRQ, if not nil, is where receives come from; then MaxRecvWR must be zero
	// and PostRecv on the QP is refused.
	SRQ SRQ
	// MaxSendWR and MaxRecvWR are the depths of the work queues; providers may
	// round up. Zero means a queue to which nothing can be posted.
	MaxSendWR, MaxRecvWR int
	// MaxSendSGE and MaxRecvSGE bound the elements of a work request; zero means 1.
	MaxSendSGE, MaxRecvSGE int
	// MaxInline is how many inline bytes a send must take; zero means none.
	MaxInline int
	// SignalAll makes every send signaled.
	SignalAll bool

	// Port is the local port that Endpoint and Connect use; zero means 1.
	Port uint8
	// GID is the source address that Endpoint and Connect use. Zero means that the
	// provider chooses (a routable RoCE v2 entry first).
	GID GID
}

// QP is a queue pair: a send queue, a receive queue, and the transport between it
// and its peer.
type QP interface {
	// Num is the QP number, unique on the device.
	Num() uint32
	Type() QPType
	// State is the present state; it may have changed when the caller looks.
	State() QPState

	// Modify changes the attributes that mask names, as ibv_modify_qp(3) does. A
	// transition that is not legal, or lacks or has too many attributes, is a
	// *TransitionError and changes nothing.
	Modify(attr QPAttr, mask QPAttrMask) error
	// Query returns all attributes, as they were set; the PSNs are the initial ones.
	Query() (QPAttr, error)

	// Endpoint returns what a peer needs to connect to this QP. It stays the same
	// until the QP goes to RESET.
	Endpoint() (Endpoint, error)
	// Connect takes the QP from RESET or INIT to RTS, connected to remote, with the
	// defaults of ConnectAttr. On UD remote is not looked at. If it fails the QP
	// stays in the last state that it reached.
	Connect(remote Endpoint) error

	// PostSend posts a chain of sends with one doorbell. wrs[:n] were taken,
	// nothing after n was. err says why it stopped: ErrQueueFull if there is no
	// room, otherwise an *OpError about wrs[n].
	PostSend(wrs []SendWR) (n int, err error)
	// PostRecv posts a chain of receives; n and err as in PostSend.
	PostRecv(wrs []RecvWR) (n int, err error)

	// Close destroys the QP. Outstanding requests end without a completion, and
	// completions of the QP that were not polled are discarded.
	Close() error
}
