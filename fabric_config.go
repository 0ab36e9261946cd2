package ibverbx

import (
	"fmt"
	"log/slog"
	"time"

	"ibverbx/verbs"
)

// Policy selects the lane for each fragment.
type Policy uint8

// Policies. The zero value is AutoPolicy.
const (
	// AutoPolicy is TwoChoices if the rails differ in speed and RoundRobin otherwise, since round-robin
	// would slow a fast rail down to the slowest. If the ports report equal speeds, AutoPolicy
	// periodically measures whether a rail lags behind and switches accordingly.
	AutoPolicy Policy = iota
	// RoundRobin uses the lanes in round-robin order.
	RoundRobin
	// TwoChoices compares two lanes and picks the one expected to finish first, based on its outstanding
	// bytes, recent rate and latency. Slower lanes get smaller shares, and a lane that stops responding is
	// not used.
	TwoChoices
)

var policyNames = [...]string{"auto", "round-robin", "two-choices"}

// String returns the policy's name as used in command-line flags.
func (p Policy) String() string {
	if int(p) < len(policyNames) {
		return policyNames[p]
	}
	return fmt.Sprintf("Policy(%d)", uint8(p))
}

// UnmarshalText parses a name returned by String. Other names return verbs.ErrInvalid.
func (p *Policy) UnmarshalText(b []byte) error {
	for i, name := range policyNames {
		if name == string(b) {
			*p = Policy(i)
			return nil
		}
	}
	return verbs.Invalidf("unknown policy %q: want auto, round-robin or two-choices", b)
}

// Config configures a VirtualQP. The zero value is a good default. NewQP returns verbs.ErrInvalid for
// values out of range.
type Config struct {
	// Lanes is the number of data lanes, spread evenly over the rails. Zero means 4 per rail; the
	// maximum is 4094. It must be the same on both sides.
	Lanes int
	// Scheme selects how the receiver is notified of a WRITE_WITH_IMM. It must be the same on both
	// sides. Zero means Tally.
	Scheme Scheme
	// Policy selects the lane for each fragment. Zero means AutoPolicy. The peers may use different
	// policies.
	Policy Policy
	// SendDepth is the maximum number of outstanding send requests, rounded up to a power of two. Zero
	// means 256; the maximum is 65536. PostSend returns verbs.ErrQueueFull beyond it.
	SendDepth int
	// RecvDepth is the maximum number of posted receives of each kind: notification receives and data
	// receives. Zero means 256, or less if a device has smaller queues; the maximum is 65536.
	RecvDepth int
	// LaneDepth is the maximum number of outstanding physical requests per lane. Zero means 128, or less
	// if a device has smaller queues; the maximum is 65536.
	LaneDepth int
	// NotifyDepth is the number of receives that the engine keeps posted on each lane for scheme
	// messages. Zero means 64, or less if a device has smaller queues; the maximum is 65536.
	NotifyDepth int
	// FragmentSize is the fragment size in bytes, at most 1 GiB. Zero adapts it to the request length:
	// large requests use all lanes, and small requests are not fragmented.
	FragmentSize uint32
	// MaxInline is the maximum number of bytes in an inline request, at most 256. Zero means 64, or the
	// smallest limit of the devices. verbs.ExplicitZero disables inline data, including the engine's
	// own.
	MaxInline int
	// SignalInterval is the maximum number of physical requests on a lane that share one completion.
	// Zero means 16, or a whole doorbell if it carries at most 8 KiB and no messages. SENDs, atomics and,
	// with CxxPeer, Spray notifications always get their own completion. For messages that consume
	// receives, the peer's RecvDepth is a limit too.
	SignalInterval int
	// Now is a clock in nanoseconds, used by TwoChoices and Control. Posts and polls read it a few
	// times; AutoPolicy on equal rails reads it rarely. All VirtualQPs of a VirtualCQ must use the same
	// clock. Nil means the monotonic clock.
	Now func() int64
	// Control enables failover: the two sides use it to agree on lost lanes and to rebuild them. Both
	// sides must then keep polling while connected. The Rails consume the events of their Contexts
	// (verbs.Context.Events, NotifyEvents). Nil disables failover: a lost lane fails the VirtualQP, and
	// a single lane passes requests straight to its QP, without a ring or ledger.
	Control Control
	// Deadline bounds the time of a request, including recovery. When it expires, the VirtualQP fails
	// with ErrDeadline. Zero means 60 s. It requires Control: without it, NewQP accepts only zero.
	Deadline time.Duration
	// KeepAtomics keeps the VirtualQP up when an atomic is in doubt because its lane was lost. Then only
	// the atomic fails, with WCInDoubt, and WC.Err wraps ErrAtomicInDoubt. It needs Control.
	KeepAtomics bool
	// CheckGID checks an address of the peer, for a lane on a rail of this side, that was not the address of a lane in its card. If it was
	// missing there because a device had failed, an error fails the VirtualQP. If it was in Card.Addresses, an error keeps the lane
	// from moving there. Nil accepts every address. Polls call CheckGID.
	CheckGID func(rail int, gid verbs.GID) error
	// Seal makes the NICs encrypt and authenticate all lanes' packets, with a secret shared by this
	// VirtualQP and its peer (softnic.NewSeal). Nil means RailConfig.Path.Seal.
	Seal verbs.Seal
	// Log receives a record of every event: failure of the VirtualQP at Error level, a lost rail at Warn, its
	// recovery at Info, lanes at Debug. If a lane is lost and its rail is not, "degraded" is at Warn
	// and "recovered" at Info. Nil disables logging.
	// VirtualCQ.Events reports the events in any case.
	Log *slog.Logger
	// CxxPeer is set when the peer is a VirtualQP of the torchcomms C++ implementation; see
	// ConnectCxxPeer. The scheme must be DQPLB or Spray, and Control must be nil. Lanes are assigned to
	// rails as in torchcomms. With several lanes, SENDs and data receives are not available.
	CxxPeer bool
	// Incarnation is the VirtualQP's number in its card, less than 2^53. Zero means a random number.
	Incarnation uint64
}

// Bounds of a Config.
const (
	maxDepth     = 1 << 16
	maxInline    = 256
	wantInline   = 64 // default of Config.MaxInline
	maxFragment  = 1 << 30
	maxMessage   = 1 << 31  // longest message of a QP (IBTA: 2^31 bytes)
	minFragment  = 16 << 10 // smallest fragment worth its doorbell
	wantFragment = 1 << 20  // larger fragments are not faster
)

// withDefaults fills in the defaults. inline is the inline limit of all rails.
func (c Config) withDefaults(r *Rails, inline int) Config {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	queue := r.least(func(a *verbs.DeviceAttr) int { return a.MaxQPWR })
	def(&c.Lanes, 4*r.Len())
	def(&c.SendDepth, 256)
	def(&c.RecvDepth, min(256, queue))
	def(&c.LaneDepth, min(128, queue))
	def(&c.NotifyDepth, min(64, queue))
	def(&c.MaxInline, min(wantInline, inline))
	if c.Deadline == 0 && c.Control != nil {
		c.Deadline = time.Minute
	}
	return c
}

// validate checks a Config whose defaults are filled in.
func (c *Config) validate() error {
	for _, f := range [...]struct {
		name        string
		v, min, max int
	}{
		{"Lanes", c.Lanes, 1, maxLanes - 2}, // leaves indices for the message and notify lanes
		{"SendDepth", c.SendDepth, 1, maxDepth},
		{"RecvDepth", c.RecvDepth, 1, maxDepth},
		{"LaneDepth", c.LaneDepth, 1, maxDepth},
		{"NotifyDepth", c.NotifyDepth, 1, maxDepth},
		{"MaxInline", c.MaxInline, verbs.ExplicitZero, maxInline},
		{"SignalInterval", c.SignalInterval, 0, maxDepth},
		{"FragmentSize", int(c.FragmentSize), 0, maxFragment},
	} {
		if f.v < f.min || f.v > f.max {
			return verbs.Invalidf("Config.%s is %d: want %d to %d", f.name, f.v, f.min, f.max)
		}
	}
	if c.Scheme > Spray {
		return verbs.Invalidf("Config.Scheme is %d: unknown scheme", c.Scheme)
	}
	if c.Deadline < 0 {
		return verbs.Invalidf("Config.Deadline is %v: want more than 0", c.Deadline)
	}
	if c.Control == nil && c.Deadline != 0 {
		return verbs.Invalidf("Config.Deadline is %v: it needs Config.Control", c.Deadline)
	}
	if c.Control == nil && c.KeepAtomics {
		return verbs.Invalidf("Config.KeepAtomics needs Config.Control")
	}
	if c.CxxPeer && c.Control != nil {
		return verbs.Invalidf("Config.Control: a C++ peer cannot rebuild lanes")
	}
	if c.CxxPeer && c.Scheme == Tally {
		return verbs.Invalidf("Config.Scheme is tally: a C++ peer knows dqplb and spray")
	}
	if c.Incarnation >= 1<<53 {
		return verbs.Invalidf("Config.Incarnation is %d: want less than 2^53", c.Incarnation)
	}
	if c.Policy > TwoChoices {
		return verbs.Invalidf("Config.Policy is %d: unknown policy", c.Policy)
	}
	return nil
}
