package perf

import (
	"fmt"
	"slices"
	"time"

	"ibverbx/verbs"
)

// Defaults and bounds. Depth and the upper bound of QPs are perftest's.
const (
	defaultDuration = 200 * time.Millisecond
	defaultTxDepth  = 128
	maxQPs          = 16384
	maxChain        = 64
	atomicSize      = 8
)

// Config says what to measure. The zero value measures the bandwidth of RDMA_WRITE on
// one RC QP over a short sweep of sizes.
type Config struct {
	// Op is the operation. If empty, Write.
	Op Op
	// Mode is what is measured. If empty, Bandwidth.
	Mode Mode
	// Connection is the transport. If zero, RC.
	Connection verbs.QPType
	// Sizes are the message sizes in bytes, one row each. If empty, a short sweep.
	Sizes []int
	// All is perftest's sweep, 2 to 2^23 bytes in powers of two, as far as the
	// transport can carry them. It excludes Sizes.
	All bool
	// Iterations is how many messages each QP sends per row. If zero, a row lasts
	// Duration.
	Iterations int
	// Duration is how long a row is measured, excluding the copy next to it. It
	// excludes Iterations. If both are zero, 200 ms.
	Duration time.Duration
	// QPs is how many QPs share the work. If zero, 1.
	QPs int
	// TxDepth is how many requests a QP keeps in flight. If zero, 128, or fewer if
	// that is more than 16 MiB (at least 2).
	TxDepth int
	// CQMod is how many requests go as one chain with one doorbell and one
	// completion. If zero, up to half of the depth and 64, or fewer if that is more
	// than 256 KiB.
	CQMod int
	// MTU is the path MTU in bytes. If zero, what both ports have.
	MTU int
	// Bidirectional makes both ends send at once; rates are then the sum.
	Bidirectional bool
	// Check compares every byte that arrives.
	Check bool
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
	if c.Iterations == 0 && c.Duration == 0 {
		c.Duration = defaultDuration
	}
	if c.QPs == 0 {
		c.QPs = 1
	}
	return c
}

// validate returns the first thing in c that cannot be. c has its defaults.
func (c *Config) validate() error {
	if _, err := ParseOp(string(c.Op)); err != nil {
		return err
	}
	if c.Mode != Bandwidth && c.Mode != Latency {
		return refuse("mode "+quote(string(c.Mode)), "there is no such mode", "use bandwidth or latency")
	}
	if err := c.validateTransport(); err != nil {
		return err
	}
	if err := c.validateSizes(); err != nil {
		return err
	}
	if err := c.validateAmount(); err != nil {
		return err
	}
	return c.validateQueues()
}

func (c *Config) validateTransport() error {
	switch c.Connection {
	case verbs.RC, verbs.UC, verbs.UD:
	default:
		return refuse(flagValue("connection", c.Connection), "there is no such transport", "use RC, UC or UD")
	}
	if !c.Op.runsOn(c.Connection) {
		fix := "use --connection RC"
		if c.Connection == verbs.UD {
			fix += ", or measure send"
		} else {
			fix += ", or measure write or send"
		}
		return refuse(flagValue("connection", c.Connection), fmt.Sprintf("%s has no %s", c.Connection, c.Op), fix)
	}
	if c.MTU != 0 {
		if _, err := verbs.MTUOf(c.MTU); err != nil {
			return refuse(flagValue("mtu", c.MTU), "there is no such path MTU", "use 256, 512, 1024, 2048 or 4096")
		}
	}
	return nil
}

func (c *Config) validateSizes() error {
	if c.All && len(c.Sizes) > 0 {
		return refuse("--all", "it brings its own sizes", "drop --all or --size")
	}
	if c.Op == Atomic && c.All {
		return refuse("--all", "an atomic is always 8 bytes", "drop --all")
	}
	for _, s := range c.Sizes {
		switch {
		case s < 1:
			return refuse(flagValue("size", s), "a message has at least 1 byte", "use a larger size")
		case c.Op == Atomic && s != atomicSize:
			return refuse(flagValue("size", s), "an atomic is always 8 bytes", "drop --size")
		}
	}
	return nil
}

func (c *Config) validateAmount() error {
	switch {
	case c.Iterations < 0:
		return refuse(flagValue("iters", c.Iterations), "it counts messages", "use 1 or more")
	case c.Duration < 0:
		return refuse(flagValue("duration", c.Duration), "time does not run backwards", "use a time above 0, such as 5 or 500ms")
	case c.Iterations > 0 && c.Duration > 0:
		return refuse("--iters with --duration", "a row ends by count or by time", "drop one of them")
	}
	return nil
}

func (c *Config) validateQueues() error {
	switch {
	case c.QPs < 1 || c.QPs > maxQPs:
		return refuse(flagValue("qp", c.QPs), "it counts QPs", fmt.Sprintf("use 1 to %d", maxQPs))
	case c.TxDepth < 0:
		return refuse(flagValue("tx-depth", c.TxDepth), "it counts requests in flight", "use 1 or more")
	case c.CQMod < 0:
		return refuse(flagValue("cq-mod", c.CQMod), "it counts requests per completion", "use 1 or more")
	case c.TxDepth > 0 && c.CQMod > c.TxDepth, c.TxDepth == 0 && c.CQMod > defaultTxDepth:
		return refuse(flagValue("cq-mod", c.CQMod), "a QP would be full before it asks for a completion", "use at most --tx-depth")
	}
	if c.Mode != Latency {
		return nil
	}
	const one = "latency is measured with one message in flight on one QP"
	switch {
	case c.QPs > 1:
		return refuse(flagValue("qp", c.QPs), one, "drop --qp or --lat")
	case c.TxDepth > 1:
		return refuse(flagValue("tx-depth", c.TxDepth), one, "drop --tx-depth or --lat")
	case c.CQMod > 1:
		return refuse(flagValue("cq-mod", c.CQMod), one, "drop --cq-mod or --lat")
	case c.Bidirectional:
		return refuse("--bidirectional", one, "drop --bidirectional or --lat")
	}
	return nil
}

// rows returns the sizes to measure. limit is the largest message that the transport
// carries; sweeps end there, while a size that was asked for by name is an error.
func (c *Config) rows(limit uint64) ([]int, error) {
	for _, s := range c.Sizes {
		if uint64(s) > limit {
			problem := fmt.Sprintf("the devices carry messages of at most %s", FormatSize(int(limit)))
			fix := "use a smaller size"
			if c.Connection == verbs.UD {
				problem = fmt.Sprintf("a UD message is one packet, at most %d bytes with this MTU", limit)
				fix += ", or --connection RC"
			}
			return nil, refuse(flagValue("size", s), problem, fix)
		}
	}
	if len(c.Sizes) > 0 {
		return c.Sizes, nil
	}
	sweep := []int{8, 64, 512, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
	switch {
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
