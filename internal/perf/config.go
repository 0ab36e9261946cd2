package perf

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
	defaultLend     = 256 << 20
	lanesPerRail    = 4
	maxQPs          = 16384
	maxLanes        = 4094
	maxRequests     = 1 << 16
	maxFragment     = 1 << 30
	maxMessage      = 1 << 31
	maxChain        = 64
	atomicSize      = 8
)

// Config says what to measure. The zero value measures the bandwidth of RDMA_WRITE over
// one VirtualQP of eight lanes on two rails, over a short sweep of sizes.
type Config struct {
	// Op is the operation. If empty, Write.
	Op Op
	// Imm makes Write a WRITE_WITH_IMM: the target waits for a notification of each
	// message, and in latency mode the notification is the ping.
	Imm bool
	// Mode is what is measured. If empty, Bandwidth.
	Mode Mode
	// Connection is the transport. If zero, RC: the QPs are lanes of one VirtualQP. UC
	// and UD QPs, which a VirtualQP cannot use, are measured by themselves on one rail.
	Connection verbs.QPType
	// Transport is what makes RC QPs reliable. If empty, TransportRC. With UC and UD it
	// must be that: nothing makes those reliable.
	Transport Transport
	// Rails is how many NICs each end has, each on a link of its own. If zero, 2, but no
	// more than there are lanes; 1 on UC and UD.
	Rails int
	// QPs is how many QPs carry data: the lanes of the VirtualQP, or UC or UD QPs that
	// each send messages of their own. If zero, 4 for each rail on RC, otherwise 1. A
	// single lane passes requests straight through.
	QPs int
	// Scheme, Policy and Fragment (bytes) are those of ibverbx.Config.
	Scheme   ibverbx.Scheme
	Policy   ibverbx.Policy
	Fragment int
	// Sizes are the message sizes in bytes, one row each. If empty, a short sweep.
	Sizes []int
	// All is perftest's sweep, 2 to 2^23 bytes in powers of two, as far as the
	// transport can carry them. It excludes Sizes.
	All bool
	// Iterations is how many messages the VirtualQP, or each UC or UD QP, sends per row
	// and direction. If zero, a row lasts Duration.
	Iterations int
	// Duration is how long a row is measured, excluding the copy next to it. It
	// excludes Iterations. If both are zero, 200 ms.
	Duration time.Duration
	// TxDepth is how many messages the VirtualQP, or each UC or UD QP, keeps in flight.
	// If zero, 128, or fewer if that is more than 16 MiB (at least 2).
	TxDepth int
	// CQMod is how many messages are posted at once, of which the last asks for a
	// completion. If zero, up to half of the depth and 64, or fewer if that is more than
	// 256 KiB.
	CQMod int
	// MTU is the path MTU in bytes. If zero, what both ports have.
	MTU int
	// Bidirectional makes both ends send at once; rates are then the sum.
	Bidirectional bool
	// Check compares every byte that arrives.
	Check bool
	// Lend is the most that a server takes for the buffers of a client's test, in bytes. If
	// zero, 256 MiB; more than 2 GiB is never taken.
	Lend int
	// Kill loses a rail in the midst of the test and gets it back.
	Kill Kill
}

// ConfigError says what in a Config cannot be, and what to do about it.
type ConfigError struct {
	// Where names the flag, with its value if there is one: "--size 8192".
	Where string
	// Problem says why it cannot be, Fix what to do instead.
	Problem, Fix string
}

// Error implements error.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("%s: %s; %s", e.Where, e.Problem, e.Fix)
}

func refuse(where, problem, fix string) error {
	return &ConfigError{Where: where, Problem: problem, Fix: fix}
}

func flagValue(flag string, value any) string { return fmt.Sprintf("--%s %v", flag, value) }

// withDefaults returns c with what can be filled in without knowing the device.
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

// direct reports whether there is one lane, which passes requests straight through.
func (c *Config) direct() bool { return c.virtual() && c.QPs == 1 }

// op is the operation with the immediate taken into account.
func (c *Config) op() Op {
	if c.Op == Write && c.Imm {
		return WriteImm
	}
	return c.Op
}

// Complete returns c with its defaults filled in, and a *ConfigError if something in it
// cannot be, whatever the devices are.
func (c Config) Complete() (Config, error) {
	c = c.withDefaults()
	return c, c.validate()
}

// limit is the largest message of the test between devices that take maxMsg bytes in one
// physical request, over the given MTU. Lanes cut a WRITE or a READ, up to what one request
// can say; a SEND goes over one lane.
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

// rows returns the sizes to measure. limit is the largest message that the transport
// carries; sweeps end there, while a size that was asked for by name is an error.
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
				problem = fmt.Sprintf("one lane does not cut, and the devices carry messages of at most %s", FormatSize(int(limit)))
				fix += ", or several lanes, such as --qp 2"
			}
			return nil, refuse(flagValue("size", s), problem, fix)
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
