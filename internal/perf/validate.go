package perf

import (
	"fmt"

	"ibverbx"
	"ibverbx/verbs"
)

// validate returns the first thing in c that cannot be. c has its defaults.
func (c *Config) validate() error {
	if _, err := ParseOp(string(c.Op)); err != nil {
		return err
	}
	if c.Mode != Bandwidth && c.Mode != Latency {
		return refuse("mode "+quote(string(c.Mode)), "there is no such mode", "use bandwidth or latency")
	}
	for _, check := range []func() error{
		c.validateTransport, c.validateReliable, c.validateVirtual, c.validateSizes, c.validateAmount, c.validateQueues, c.validateLatency, c.validateKill,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
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

// validateVirtual checks what shapes a VirtualQP.
func (c *Config) validateVirtual() error {
	switch {
	case c.Rails < 1 || c.Rails > ibverbx.MaxRails:
		return refuse(flagValue("rails", c.Rails), "it counts the NICs of an end", fmt.Sprintf("use 1 to %d", ibverbx.MaxRails))
	case c.Scheme > ibverbx.Spray:
		return refuse(flagValue("scheme", c.Scheme), "there is no such scheme", "use tally, dqplb or spray")
	case c.Policy > ibverbx.TwoChoices:
		return refuse(flagValue("policy", c.Policy), "there is no such policy", "use auto, round-robin, least-bytes or two-choices")
	case c.Imm && c.Op != Write:
		return refuse("--imm", fmt.Sprintf("it makes a WRITE a WRITE_WITH_IMM, and this is %s", c.Op), "measure write, or drop --imm")
	}
	if !c.virtual() {
		return c.validatePlain()
	}
	return c.validateFragment()
}

// validatePlain refuses on UC and UD what only a VirtualQP has.
func (c *Config) validatePlain() error {
	where := ""
	switch {
	case c.Rails > 1:
		where = flagValue("rails", c.Rails)
	case c.Scheme != ibverbx.Tally:
		where = flagValue("scheme", c.Scheme)
	case c.Policy != ibverbx.AutoPolicy:
		where = flagValue("policy", c.Policy)
	case c.Fragment != 0:
		where = flagValue("fragment", c.Fragment)
	case c.Imm:
		where = "--imm"
	default:
		return nil
	}
	return refuse(where, fmt.Sprintf("the lanes of a VirtualQP are RC QPs; %s QPs are measured one by one, on one rail", c.Connection),
		"drop it, or use --connection RC")
}

func (c *Config) validateFragment() error {
	if c.Fragment == 0 {
		return nil
	}
	where := flagValue("fragment", c.Fragment)
	switch {
	case c.Fragment < 0 || c.Fragment > maxFragment:
		return refuse(where, "a fragment has 1 byte to "+FormatSize(maxFragment), "use a size in between, or 0 to have it chosen by the length of the message")
	case c.Op == Send || c.Op == Atomic:
		return refuse(where, fmt.Sprintf("%s is never cut: it goes over one lane", c.Op), "drop --fragment, or measure write or read")
	case c.QPs == 1:
		return refuse(where, "a single lane passes requests straight through, uncut", "use --qp 2 or more, or drop --fragment")
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
	case c.virtual() && (c.QPs < 1 || c.QPs > maxLanes):
		return refuse(flagValue("qp", c.QPs), "it counts the lanes of a VirtualQP", fmt.Sprintf("use 1 to %d", maxLanes))
	case c.QPs < 1 || c.QPs > maxQPs:
		return refuse(flagValue("qp", c.QPs), "it counts QPs", fmt.Sprintf("use 1 to %d", maxQPs))
	case c.TxDepth < 0:
		return refuse(flagValue("tx-depth", c.TxDepth), "it counts messages in flight", "use 1 or more")
	case c.CQMod < 0:
		return refuse(flagValue("cq-mod", c.CQMod), "it counts messages per completion", "use 1 or more")
	case c.TxDepth > 0 && c.CQMod > c.TxDepth, c.TxDepth == 0 && c.CQMod > defaultTxDepth:
		return refuse(flagValue("cq-mod", c.CQMod), "the send queue would be full before it asks for a completion", "use at most --tx-depth")
	}
	return nil
}

// validateLatency refuses what a test with one message in flight cannot have.
func (c *Config) validateLatency() error {
	if c.Mode != Latency {
		return nil
	}
	const one = "latency is measured with one message in flight"
	switch {
	case c.QPs > 1 && !c.virtual():
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
