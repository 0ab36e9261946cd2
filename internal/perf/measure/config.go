package measure

import (
	"fmt"
	"math"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// Defaults and bounds. Depth and the upper bound of UC and UD QPs are perftest's; lanes,
// fragments and requests are bounded as ibverbx.Config bounds them.
const (
	defaultDuration = 200 * time.Millisecond
	defaultTxDepth  = 128
	defaultRails    = 2
	lanesPerRail    = 4
	maxQPs          = 16384
	maxMessage      = 1 << 31
	maxChain        = 64
	atomicSize      = 8

	// MaxLanes is the largest number of lanes for data.
	MaxLanes = 4094
	// MaxRequests is the largest number of requests that a VirtualQP holds.
	MaxRequests = 1 << 16
	// MaxFragment is the largest fragment in bytes.
	MaxFragment = 1 << 30
)

// Config is what to measure. The zero value measures the bandwidth of RDMA_WRITE over one
// VirtualQP of eight lanes on two rails, over a short sweep of sizes. Fields with a JSON name are
// what a client asks a server for.
type Config struct {
	// Op is the operation. If empty, Write.
	Op Op `json:"op"`
	// Imm makes Write a WRITE_WITH_IMM: the target waits for a notification of each message,
	// and in latency mode the notification is the ping.
	Imm bool `json:"imm"`
	// Mode is what is measured. If empty, Bandwidth.
	Mode Mode `json:"mode"`
	// Sizes are the message sizes in bytes, one row each. If empty, a short sweep.
	Sizes []int `json:"sizes"`
	// Iterations is how many messages the VirtualQP, or each UC or UD QP, sends per row and
	// direction. If zero, a row lasts Duration.
	Iterations int `json:"iterations"`
	// Duration is how long a row is measured, excluding the copy next to it. It excludes
	// Iterations. If both are zero, 200 ms.
	Duration time.Duration `json:"duration_ns"`
	// TxDepth is how many messages the VirtualQP, or each UC or UD QP, keeps in flight. If
	// zero, 128, or fewer if that is more than 16 MiB (at least 2).
	TxDepth int `json:"tx_depth"`
	// CQMod is how many messages are posted at once, of which the last asks for a
	// completion. If zero, up to half of the depth and 64, or fewer if that is more than
	// 256 KiB.
	CQMod int `json:"cq_mod"`
	// Bidirectional makes both ends send at once; rates are then sums.
	Bidirectional bool `json:"bidirectional"`
	// Check compares every byte that arrives.
	Check bool `json:"check"`
	// Rails is how many NICs each end has, each on its own link. If zero, 2, but no more
	// than there are lanes; 1 on UC and UD.
	Rails int `json:"rails"`
	// QPs is how many QPs carry data: the lanes of the VirtualQP, or UC or UD QPs that each
	// send their own messages. If zero, 4 for each rail on RC, otherwise 1. A single lane
	// passes requests through unchanged.
	QPs int `json:"lanes"`
	// Fragment is ibverbx.Config.FragmentSize, in bytes.
	Fragment int `json:"fragment"`
	// Transport is what makes RC QPs reliable. If empty, TransportRC. It must be that for
	// UC and UD.
	Transport Transport `json:"transport,omitempty"`

	// Impair makes software NICs lose, delay or damage packets, at both sides.
	Impair []Impair `json:"impair,omitempty"`

	// Memory is where the buffers of the initiator and of the target are. Between processes each side sets its own:
	// a client the first, a server the second. It is not sent.
	Memory [2]Memory `json:"memory,omitzero"`

	// Connection is the type of the QPs. If zero, RC: the QPs are lanes of one VirtualQP. UC
	// and UD QPs, which a VirtualQP cannot use, are measured without one, on one rail.
	Connection verbs.QPType `json:"-"`
	// Scheme is ibverbx.Config.Scheme.
	Scheme ibverbx.Scheme `json:"-"`
	// Policy is ibverbx.Config.Policy.
	Policy ibverbx.Policy `json:"-"`
	// All is perftest's sweep, 2 to 2^23 bytes in powers of two, as far as the transport can
	// carry them. It excludes Sizes.
	All bool `json:"-"`
	// MTU is the path MTU in bytes. If zero, that of the ports.
	MTU int `json:"-"`
	// Lend is the most memory that a server takes for the buffers of a client's test, in
	// bytes. If zero, 256 MiB; more than 2 GiB is never taken.
	Lend int `json:"-"`
	// Kill loses a rail during the test and gets it back.
	Kill Kill `json:"-"`
	// Live makes the test one long transfer in one process.
	Live Live `json:"-"`
}

// ConfigError refuses a Config.
type ConfigError struct {
	// Where names the flag, with its value if there is one: "--size 8192".
	Where string
	// Problem says why it is refused.
	Problem string
	// Fix says what to do instead.
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
		c.Transport = TransportRC
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

// direct reports whether there is one lane, which passes requests through unchanged.
func (c *Config) direct() bool { return c.virtual() && c.QPs == 1 }

// op is the operation, where Write with Imm is WriteImm.
func (c *Config) op() Op {
	if c.Op == Write && c.Imm {
		return WriteImm
	}
	return c.Op
}

// Complete returns c with its defaults filled in, and a *ConfigError if no device could measure
// it.
func (c Config) Complete() (Config, error) {
	c = c.withDefaults()
	return c, c.Validate()
}

// Limit is the largest message of the test between devices that take maxMsg bytes in one physical
// request, over the given MTU. A WRITE or a READ is cut into fragments, up to the largest length
// of a request. A SEND goes over one lane.
func (c *Config) Limit(maxMsg uint64, mtu int) uint64 {
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

// Rows returns the sizes to measure. limit is the largest message that the transport carries.
// Sweeps end there; a larger size that was asked for is an error.
func (c *Config) Rows(limit uint64) ([]int, error) {
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
				fix += ", or several lanes, such as --qp 2"
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
