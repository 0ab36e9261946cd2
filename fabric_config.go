package ibverbx

import (
	"fmt"
	"log/slog"
	"time"

	"ibverbx/verbs"
)

// Policy chooses the lane of a fragment.
type Policy uint8

// Policies.
const (
	// AutoPolicy is TwoChoices if the rails differ in speed, and RoundRobin otherwise. Taking lanes in
	// turn would make a fast rail wait for a slow one. If the ports do not report different speeds,
	// AutoPolicy measures from time to time whether a rail is behind, and follows what it finds.
	AutoPolicy Policy = iota
	// RoundRobin takes the lanes in turn.
	RoundRobin
	// TwoChoices looks at two lanes and takes the one that would finish first, by its outstanding
	// bytes and its recent rate and latency. Lanes of unequal speed get unequal shares, and a silent
	// lane gets nothing.
	TwoChoices
)

var policyNames = [...]string{"auto", "round-robin", "two-choices"}

// String returns the name that the tool's flags use.
func (p Policy) String() string {
	if int(p) < len(policyNames) {
		return policyNames[p]
	}
	return fmt.Sprintf("Policy(%d)", uint8(p))
}

// UnmarshalText reads a name.
func (p *Policy) UnmarshalText(b []byte) error {
	for i, name := range policyNames {
		if name == string(b) {
			*p = Policy(i)
			return nil
		}
	}
	return verbs.Invalidf("there is no policy %q: want auto, round-robin or two-choices", b)
}

// Config describes a VirtualQP. The zero value is a good choice.
type Config struct {
	// Lanes is how many physical QPs carry data, spread evenly over the rails. Zero means 4 per rail.
	Lanes int
	// Scheme is how the receiver learns of a WRITE_WITH_IMM. It must be the same on both sides. Zero
	// means Tally.
	Scheme Scheme
	// Policy chooses the lane of a fragment. Zero means AutoPolicy.
	Policy Policy
	// SendDepth is how many requests can be outstanding. It is rounded up to a power of two. Zero
	// means 256.
	SendDepth int
	// RecvDepth is how many notification receives, and how many data receives, can be outstanding.
	// Zero means 256.
	RecvDepth int
	// LaneDepth is how many physical requests a lane can have outstanding. Zero means 128. This default
	// and those of RecvDepth and NotifyDepth are lower if a device has smaller queues.
	LaneDepth int
	// NotifyDepth is how many receives the engine keeps posted on a lane for messages of the scheme.
	// Zero means 64.
	NotifyDepth int
	// FragmentSize is how many bytes a fragment carries. Zero means that the length of the request
	// decides, so that a large request uses all lanes and a small one is not cut.
	FragmentSize uint32
	// MaxInline is how many bytes an inline request may carry. Zero means 64, or less if a device takes
	// less. verbs.ExplicitZero means none: then the engine sends nothing inline either.
	MaxInline int
	// SignalInterval is how many physical requests of a lane share one completion at most. Zero means 16, or
	// all of a doorbell that has at most 8 KiB and no messages. SENDs, atomics and notifications of Spray share
	// none. The peer's RecvDepth is a limit for messages that use receives.
	SignalInterval int
	// Now is a clock in nanoseconds, for the policy TwoChoices and for Control. It is read a few times in a
	// post or a poll. AutoPolicy on equal rails reads it in few of them. The VirtualQPs of a VirtualCQ must have the same
	// clock. Nil means the monotonic clock.
	Now func() int64
	// Control is how the two ends agree on lanes that are lost and bring them back. With it, both ends
	// must poll as long as they are connected, and the Rails take the events of their Contexts
	// (verbs.Context.Events, NotifyEvents). Nil means that the loss of a lane ends the VirtualQP, and that a
	// single lane passes requests straight through, without a ring and a ledger.
	Control Control
	// Deadline is how long a request may take, recovery included, before the VirtualQP ends in
	// ErrDeadline. Zero means 60 s. It needs Control: without it, NewQP refuses another value than zero.
	Deadline time.Duration
	// KeepAtomics keeps the VirtualQP up when an atomic is in doubt because its lane was lost. Then only
	// the atomic fails, with WCInDoubt, and WC.Err wraps ErrAtomicInDoubt. It needs Control.
	KeepAtomics bool
	// Seal makes the NICs encrypt and authenticate the packets of all lanes, with a secret of this VirtualQP
	// and its peer (softnic.NewSeal). Nil means RailConfig.Path.Seal.
	Seal verbs.Seal
	// Log gets a record of every event of the VirtualQP. Its failure is an error, a lost rail and the first
	// lost lane are warnings, recovery from them is information, and other lanes are for debugging. Nil
	// means no log. VirtualCQ.Events has the events in any case.
	Log *slog.Logger
	// CxxPeer says that the peer is a VirtualQP of the C++ implementation in torchcomms (ConnectCxxPeer).
	// The scheme must be DQPLB or Spray. Lanes are laid out over the rails as torchcomms does. With
	// several lanes there are no SENDs and no data receives.
	CxxPeer bool
	// Incarnation is the number of this VirtualQP in its card. Zero means a random one.
	Incarnation uint64
}

// Bounds of a Config.
const (
	maxDepth     = 1 << 16
	maxInline    = 256
	wantInline   = 64 // what Config.MaxInline is by default, if the devices have it
	maxFragment  = 1 << 30
	maxMessage   = 1 << 31  // longest message of a QP (IBTA: 2^31 bytes)
	minFragment  = 16 << 10 // smallest fragment that is worth its doorbell
	wantFragment = 1 << 20  // a larger fragment gains nothing
)

// withDefaults fills in the defaults. inline is what every rail takes.
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
		{"Lanes", c.Lanes, 1, maxLanes - 2}, // the message and notify lanes need a number too
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
		return verbs.Invalidf("Config.Scheme is %d: there is no such scheme", c.Scheme)
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
		return verbs.Invalidf("Config.Control: a C++ peer cannot bring lanes back")
	}
	if c.CxxPeer && c.Scheme == Tally {
		return verbs.Invalidf("Config.Scheme is tally: a C++ peer knows dqplb and spray")
	}
	if c.Incarnation >= 1<<53 {
		return verbs.Invalidf("Config.Incarnation is %d: want less than 2^53", c.Incarnation)
	}
	if c.Policy > TwoChoices {
		return verbs.Invalidf("Config.Policy is %d: there is no such policy", c.Policy)
	}
	return nil
}
