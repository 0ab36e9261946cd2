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

// QPState is a QP's state.
type QPState uint8

// QP states, numbered as in enum ibv_qp_state.
const (
	StateReset QPState = 0 // new; rejects all posts
	StateInit  QPState = 1 // receives can be posted
	StateRTR   QPState = 2 // ready to receive
	StateRTS   QPState = 3 // ready to send
	StateSQD   QPState = 4 // the send queue is draining or drained
	StateSQE   QPState = 5 // a send failed (UC, UD); receives still work
	StateErr   QPState = 6 // all requests are flushed
)

var stateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// String returns libibverbs' name without its prefix.
func (s QPState) String() string { return nameOf(s, "QPState", stateNames[:]) }

// QPConfig configures a queue pair.
type QPConfig struct {
	// Type is RC, UC or UD; zero is an error.
	Type QPType
	// SendCQ and RecvCQ receive the completions. They may be the same CQ; nil is an
	// error.
	SendCQ, RecvCQ CQ
	// SRQ, if not nil, supplies the receives. MaxRecvWR must then be zero, and the QP rejects PostRecv.
	SRQ SRQ
	// MaxSendWR and MaxRecvWR are the work queue depths; providers may round up. A queue of depth zero
	// rejects all posts.
	MaxSendWR, MaxRecvWR int
	// MaxSendSGE and MaxRecvSGE are the maximum number of elements per work request; zero means 1.
	MaxSendSGE, MaxRecvSGE int
	// MaxInline is the required number of inline bytes per send.
	MaxInline int
	// SignalAll makes every send signaled.
	SignalAll bool

	// Port is the local port that Endpoint and Connect use; zero means 1.
	Port uint8
	// GID is the source address that Endpoint and Connect use. If zero, the
	// provider chooses one, preferring a routable RoCE v2 entry.
	GID GID
	// Path configures the path for Connect. At most one of Path.GIDIndex and GID may be set.
	Path PathConfig
}

// QP is a queue pair: a send queue, a receive queue, and the transport to the peer. It is safe for
// concurrent use.
type QP interface {
	// Num is the QP number, unique on the device.
	Num() uint32
	// Type returns RC, UC or UD.
	Type() QPType
	// State returns the current state, which may change at any time.
	State() QPState

	// Modify changes the attributes in mask, as ibv_modify_qp(3) does. An illegal transition, or a
	// mask with missing or unexpected attributes, returns a *TransitionError and leaves the QP
	// unchanged.
	Modify(attr QPAttr, mask QPAttrMask) error
	// Query returns all attributes with the values last set. The PSNs are the initial ones.
	Query() (QPAttr, error)

	// Endpoint returns the address of this QP for its peer. It stays the same until the QP returns to
	// RESET.
	Endpoint() (Endpoint, error)
	// Connect moves the QP from RESET or INIT to RTS, connected to remote, with the attributes of
	// ConnectAttr and QPConfig.Path. UD ignores remote. It returns ErrInvalid for an invalid remote and
	// ErrState in other states. On failure the QP stays in the last state it reached.
	Connect(remote Endpoint) error

	// PostSend posts a chain of sends with one doorbell. wrs[:n] were posted, the rest was not. err is
	// ErrQueueFull, unwrapped, if the queue is full, and otherwise an *OpError about wrs[n]. PostSend
	// never blocks.
	PostSend(wrs []SendWR) (n int, err error)
	// PostRecv posts a chain of receives. n and err are as in PostSend.
	PostRecv(wrs []RecvWR) (n int, err error)

	// Close destroys the QP. Outstanding requests do not complete, and the QP's unpolled completions
	// are discarded.
	Close() error
}
