package measure

import (
	"fmt"
	"math"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// Defaults and limits. Depth and the limit of UC and UD QPs are perftest's; lanes, fragments and
// requests have the limits of ibverbx.Config.
const (
	defaultDuration = 200 * time.Millisecond
	defaultTxDepth  = 128
	defaultRails    = 2
	lanesPerRail    = 4
	maxQPs          = 16384
	maxMessage      = 1 << 31
	maxChain        = 64
	atomicSize      = 8

	// MaxLanes is the maximum number of data lanes.
	MaxLanes = 4094
	// MaxRequests is the maximum number of requests in a VirtualQP.
	MaxRequests = 1 << 16
	// MaxFragment is the maximum fragment size in bytes.
	MaxFragment = 1 << 30
)

// Config describes a test. The zero value measures RDMA_WRITE bandwidth over one VirtualQP with
// eight lanes on two rails, for a short sweep of sizes. A client sends the fields with a JSON name
// to the server.
type Config struct {
	// Op is the operation. If empty, Write.
	Op Op `json:"op"`
	// Imm makes Write a WRITE_WITH_IMM: the target waits for a notification of each message,
	// and in latency mode the notification is the ping.
	Imm bool `json:"imm"`
	// Mode selects bandwidth or latency. If empty, Bandwidth.
	Mode Mode `json:"mode"`
	// Sizes are the message sizes in bytes, one row each. If empty, a short sweep.
	Sizes []int `json:"sizes"`
	// Iterations is the number of messages per row and direction that the VirtualQP, or each UC or
	// UD QP, sends. If zero, a row lasts Duration.
	Iterations int `json:"iterations"`
	// Duration is the measuring time of a row, without copies. It cannot be combined with
	// Iterations. If both are zero, 200 ms.
	Duration time.Duration `json:"duration_ns"`
	// TxDepth is the number of messages that the VirtualQP, or each UC or UD QP, keeps in flight.
	// If zero, 128, reduced to fit 16 MiB (at least 2).
	TxDepth int `json:"tx_depth"`
	// CQMod is the number of messages posted at once; only the last is signaled. If zero, half of
	// the depth, at most 64, reduced to fit 256 KiB.
	CQMod int `json:"cq_mod"`
	// Bidirectional makes both sides send at the same time; rates are then sums.
	Bidirectional bool `json:"bidirectional"`
	// Check compares every byte that arrives.
	Check bool `json:"check"`
	// Rails is the number of NICs per side, each on its own link. If zero, 2, but at most the
	// number of lanes; 1 on UC and UD.
	Rails int `json:"rails"`
	// QPs is the number of QPs carrying data: lanes of the VirtualQP, or UC or UD QPs that each
	// send their own messages. If zero, 4 per rail on RC, otherwise 1. A single lane passes
	// requests through unchanged.
	QPs int `json:"lanes"`
	// Fragment is ibverbx.Config.FragmentSize, in bytes.
	Fragment int `json:"fragment"`
	// Transport selects the reliability layer under RC QPs. If empty, peer.TransportRC, which UC and UD
	// require.
	Transport peer.Transport `json:"transport,omitempty"`

	// Impair makes software NICs lose, delay or corrupt packets, at both sides.
	Impair []peer.Impair `json:"impair,omitempty"`

	// Memory holds the buffer locations of the initiator and the target. Between processes each
	// side sets its own: a client the first, a server the second. It is not sent.
	Memory [2]Memory `json:"memory,omitzero"`

	// Connection is the type of the QPs. If zero, RC: the QPs are lanes of one VirtualQP. UC
	// and UD QPs, which a VirtualQP cannot use, are measured without one, on one rail.
	Connection verbs.QPType `json:"-"`
	// Scheme is ibverbx.Config.Scheme.
	Scheme ibverbx.Scheme `json:"-"`
	// Policy is ibverbx.Config.Policy.
	Policy ibverbx.Policy `json:"-"`
	// All selects perftest's sweep: powers of two from 2 to 2^23 bytes, up to the transport's
	// limit. It cannot be combined with Sizes.
	All bool `json:"-"`
	// MTU is the path MTU in bytes. If zero, the port MTU.
	MTU int `json:"-"`
	// Lend is the maximum memory that a server allocates for the buffers of a client's test, in
	// bytes. If zero, 256 MiB. It is capped at 2 GiB.
	Lend int `json:"-"`
	// Kill takes a rail down during the test and up again.
	Kill Kill `json:"-"`
	// Live makes the test one long transfer in one process.
	Live Live `json:"-"`
	// Timing overrides this side's timeouts.
	Timing Timing `json:"-"`
}

// Timing holds timeouts. Zero fields select the defaults.
type Timing struct {
	// Drain limits the wait for messages in flight after a cancellation. Zero means 2 s.
	Drain time.Duration
	// Request limits a server's wait for each message of a client's request. Zero means 30 s.
	Request time.Duration
}

// ConfigError rejects a Config.
type ConfigError struct {
	// Where names the flag, followed by its value if it has one: "--size 8192".
	Where string
	// Problem is the reason for the refusal.
	Problem string
	// Fix suggests a valid setting.
	Fix string
}

// Error implements error.
func (e *ConfigError) Error() string {
	if e.Problem == "" {
		return fmt.Sprintf("%s: %s", e.Where, e.Fix)
	}
	return fmt.Sprintf("%s: %s; %s", e.Where, e.Problem, e.Fix)
}

// withDefaults returns c with the defaults that do not depend on the device.
func (c Config) withDefaults() Config {
	if c.Op == "" {
		c.Op = Write
	}
	if c.Mode == "" {
		c.Mode = Bandwidth
	}
	if c.Connection == 0 {
		c.Connection = verbs.RC
	}
	if c.Transport == "" {
		c.Transport = peer.TransportRC
	}
	if c.Kill.On {
		c.Kill.withDefaults(&c)
	}
	if c.Iterations == 0 && c.Duration == 0 {
		c.Duration = defaultDuration
	}
	if c.Rails == 0 {
		c.Rails = 1
		if c.virtual() && c.QPs != 1 {
			c.Rails = defaultRails
		}
	}
	if c.QPs == 0 {
		c.QPs = 1
		if c.virtual() {
			c.QPs = lanesPerRail * c.Rails
		}
	}
	return c
}

// virtual reports whether the QPs are lanes of a VirtualQP.
func (c *Config) virtual() bool { return c.Connection == verbs.RC }

// direct reports whether the VirtualQP has a single lane, which passes requests through unchanged.
func (c *Config) direct() bool { return c.virtual() && c.QPs == 1 }

// op returns the operation; Write with Imm is WriteImm.
func (c *Config) op() Op {
	if c.Op == Write && c.Imm {
		return WriteImm
	}
	return c.Op
}

// Complete returns c with its defaults filled in, or a *ConfigError if no device can run the test.
func (c Config) Complete() (Config, error) {
	c = c.withDefaults()
	return c, c.Validate()
}

// limit returns the largest message of the test between devices that accept maxMsg bytes in one
// physical request, over the given MTU. A WRITE or a READ is fragmented, up to the maximum request
// length. A SEND uses one lane.
func (c *Config) limit(maxMsg uint64, mtu int) uint64 {
	switch {
	case c.Connection == verbs.UD:
		return uint64(mtu)
	case !c.virtual() || c.direct():
		return min(maxMsg, math.MaxUint32, math.MaxInt)
	case c.Op == Send:
		return min(maxMsg, maxMessage)
	}
	return min(math.MaxUint32, math.MaxInt)
}

// rows returns the sizes to measure. limit is the largest message that the transport carries.
// Sweeps stop at limit; a larger explicit size is an error.
func (c *Config) rows(limit uint64) ([]int, error) {
	for _, s := range c.Sizes {
		if uint64(s) > limit {
			problem := fmt.Sprintf("a message has at most %s here", FormatSize(int(limit)))
			fix := "use a smaller size"
			switch {
			case c.Connection == verbs.UD:
				problem = fmt.Sprintf("a UD message is one packet, at most %d bytes with this MTU", limit)
				fix += ", or --connection RC"
			case c.direct() && c.Op != Send && uint64(s) <= math.MaxUint32:
				problem = fmt.Sprintf("a single lane does not cut messages, and the devices carry at most %s", FormatSize(int(limit)))
				fix += ", or several lanes, such as --lanes 2"
			}
			return nil, Refuse("size", s, problem, fix)
		}
	}
	if len(c.Sizes) > 0 {
		return c.Sizes, nil
	}
	sweep := []int{8, 64, 512, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
	switch {
	case c.Kill.On:
		sweep = []int{killSize}
	case c.Op == Atomic:
		sweep = []int{atomicSize}
	case c.All:
		sweep = nil
		for s := 2; s <= 1<<23; s *= 2 {
			sweep = append(sweep, s)
		}
	case c.Mode == Latency:
		sweep = []int{8, 64, 512, 4 << 10, 64 << 10, 1 << 20}
	case c.Connection == verbs.UD:
		sweep = []int{8, 64, 256, 512, 1024, 2048, 4096}
	}
	return slices.DeleteFunc(sweep, func(s int) bool { return uint64(s) > limit }), nil
}

// FormatSize formats n in the largest unit that divides it: 8 B, 64 KiB, 16 MiB.
func FormatSize(n int) string {
	unit := 0
	for n != 0 && n&1023 == 0 && unit < 3 {
		n, unit = n>>10, unit+1
	}
	return fmt.Sprintf("%d %s", n, [...]string{"B", "KiB", "MiB", "GiB"}[unit])
}
