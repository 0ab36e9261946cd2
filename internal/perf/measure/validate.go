package measure

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"ibverbx"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// rule is a reason to refuse a Config.
type rule struct {
	broken  bool
	flag    string // without dashes
	value   any    // of the flag, nil without one
	problem string
	fix     string
}

// Refuse returns the error for a flag, with its value unless that is nil.
func Refuse(flag string, value any, problem, fix string) error {
	where := "--" + flag
	if value != nil {
		where = fmt.Sprintf("--%s %v", flag, value)
	}
	return &ConfigError{Where: where, Problem: problem, Fix: fix}
}

// Validate returns the first reason to reject c, whose defaults must be filled in.
func (c *Config) Validate() error {
	if _, err := ParseOp(string(c.Op)); err != nil {
		return err
	}
	if c.Mode != Bandwidth && c.Mode != Latency {
		return &ConfigError{Where: "mode " + strconv.Quote(string(c.Mode)), Problem: "there is no such mode", Fix: "use bandwidth or latency"}
	}
	return firstBroken(slices.Concat(
		c.qpRules(), c.plainRules(), c.fragmentRules(), c.sizeRules(), c.amountRules(), c.latencyRules(), c.killRules(), c.impairRules(), c.memoryRules()))
}

func firstBroken(rules []rule) error {
	for _, r := range rules {
		if r.broken {
			return Refuse(r.flag, r.value, r.problem, r.fix)
		}
	}
	return nil
}

// qpRules cover the QPs and the VirtualQP.
func (c *Config) qpRules() []rule {
	conn := c.Connection
	_, noMTU := verbs.MTUOf(c.MTU)
	measure := map[verbs.QPType]string{verbs.UC: "write or send", verbs.UD: "send"}[conn]
	return []rule{
		{conn != verbs.RC && conn != verbs.UC && conn != verbs.UD, "connection", conn, "there is no such transport", "use RC, UC or UD"},
		{!c.Op.runsOn(conn), "connection", conn, fmt.Sprintf("%s has no %s", conn, c.Op), "use --connection RC, or measure " + measure},
		{c.MTU != 0 && noMTU != nil, "mtu", c.MTU, "there is no such path MTU", "use 256, 512, 1024, 2048 or 4096"},
		{c.Transport != peer.TransportRC && c.Transport.Carrier() == 0, "transport", c.Transport, "there is no such transport", "use rc, uc or ud"},
		{
			c.Transport.Carrier() != 0 && !c.virtual(), "transport", c.Transport,
			fmt.Sprintf("it makes RC QPs of unreliable QPs, and --connection %s measures raw QPs", conn), fmt.Sprintf("drop it, or drop --connection %s", conn),
		},
		{c.Rails < 1 || c.Rails > ibverbx.MaxRails, "rails", c.Rails, "it counts the NICs of an end", fmt.Sprintf("use 1 to %d", ibverbx.MaxRails)},
		{c.Scheme > ibverbx.Spray, "scheme", c.Scheme, "there is no such scheme", "use tally, dqplb or spray"},
		{c.Policy > ibverbx.TwoChoices, "policy", c.Policy, "there is no such policy", "use auto, round-robin or two-choices"},
		{c.Imm && c.Op != Write, "imm", nil, fmt.Sprintf("it makes a WRITE a WRITE_WITH_IMM, and this is %s", c.Op), "measure write, or drop --imm"},
	}
}

// plainRules refuse options of raw QPs that need a VirtualQP.
func (c *Config) plainRules() []rule {
	if c.virtual() {
		return nil
	}
	problem := fmt.Sprintf("the lanes of a VirtualQP are RC QPs; %s QPs are measured one by one, on one rail", c.Connection)
	const fix = "drop it, or use --connection RC"
	return []rule{
		{c.Rails > 1, "rails", c.Rails, problem, fix},
		{c.Scheme != ibverbx.Tally, "scheme", c.Scheme, problem, fix},
		{c.Policy != ibverbx.AutoPolicy, "policy", c.Policy, problem, fix},
		{c.Fragment != 0, "fragment", c.Fragment, problem, fix},
		{c.Imm, "imm", nil, problem, fix},
	}
}

func (c *Config) fragmentRules() []rule {
	n := c.Fragment
	return []rule{
		{
			n < 0 || n > MaxFragment, "fragment", n, "a fragment has 1 byte to " + FormatSize(MaxFragment),
			"use a size in between, or 0 to choose it by the size of the message",
		},
		{
			n != 0 && (c.Op == Send || c.Op == Atomic), "fragment", n, fmt.Sprintf("%s is never cut: it goes over one lane", c.Op),
			"drop --fragment, or measure write or read",
		},
		{n != 0 && c.QPs == 1, "fragment", n, "a single lane passes requests through uncut", "use --lanes 2 or more, or drop --fragment"},
	}
}

func (c *Config) sizeRules() []rule {
	rules := []rule{
		{c.All && len(c.Sizes) > 0, "all", nil, "it chooses all sizes", "drop --all or --size"},
		{c.All && c.Op == Atomic, "all", nil, "an atomic is always 8 bytes", "drop --all"},
	}
	for _, s := range c.Sizes {
		rules = append(rules,
			rule{s < 1, "size", s, "a message has at least 1 byte", "use a larger size"},
			rule{c.Op == Atomic && s != atomicSize, "size", s, "an atomic is always 8 bytes", "drop --size"})
	}
	return rules
}

// amountRules cover the amount of data sent and in flight.
func (c *Config) amountRules() []rule {
	qps, counts := maxQPs, "it counts QPs"
	if c.virtual() {
		qps, counts = MaxLanes, "it counts the lanes of a VirtualQP"
	}
	depth := c.TxDepth
	if depth == 0 {
		depth = defaultTxDepth
	}
	return []rule{
		{c.Iterations < 0, "iters", c.Iterations, "it counts messages", "use 1 or more"},
		{c.Duration < 0, "duration", c.Duration, "a time cannot be negative", "use a time above 0, such as 5 or 500ms"},
		{c.Iterations > 0 && c.Duration > 0, "iters with --duration", nil, "a row ends by count or by time", "drop one of them"},
		{c.QPs < 1 || c.QPs > qps, "lanes", c.QPs, counts, fmt.Sprintf("use 1 to %d", qps)},
		{c.TxDepth < 0, "tx-depth", c.TxDepth, "it counts messages in flight", "use 1 or more"},
		{c.CQMod < 0, "cq-mod", c.CQMod, "it counts messages per completion", "use 1 or more"},
		{c.CQMod > depth, "cq-mod", c.CQMod, "the send queue would be full before it asks for a completion", "use at most --tx-depth"},
	}
}

// latencyRules refuse options that need more than one message in flight.
func (c *Config) latencyRules() []rule {
	if c.Mode != Latency {
		return nil
	}
	const one = "latency is measured with one message in flight"
	return []rule{
		{c.QPs > 1 && !c.virtual(), "lanes", c.QPs, one, "drop --lanes or --lat"},
		{c.TxDepth > 1, "tx-depth", c.TxDepth, one, "drop --tx-depth or --lat"},
		{c.CQMod > 1, "cq-mod", c.CQMod, one, "drop --cq-mod or --lat"},
		{c.Bidirectional, "bidirectional", nil, one, "drop --bidirectional or --lat"},
	}
}

// impairRules refuse invalid impairments. Clients send them to servers.
func (c *Config) impairRules() []rule {
	f := peer.Fabric{RailCount: c.Rails, Impair: c.Impair}
	var wrong *peer.FabricError
	if !errors.As(f.CheckFabric(), &wrong) {
		return nil
	}
	return []rule{{true, "impair", nil, "", wrong.Problem}}
}

// killRules refuse configurations that cannot survive the loss of a rail.
func (c *Config) killRules() []rule {
	k, rail := &c.Kill, c.Kill.Rail
	if !k.On {
		return []rule{
			{k.At != 0, "at", k.At, "it is when --kill-rail takes a rail down", "add --kill-rail, or drop it"},
			{k.Back != 0, "back", k.Back, "it is how long --kill-rail takes a rail down", "add --kill-rail, or drop it"},
		}
	}
	const kill = "kill-rail"
	end := c.Duration
	return []rule{
		{!c.virtual(), kill, rail, fmt.Sprintf("%s QPs are measured one by one, and nothing takes over from them", c.Connection), "use --connection RC"},
		{c.Op == Atomic, kill, rail, "an atomic that was in flight is in doubt and cannot be replayed", "measure write, read or send"},
		{c.Mode == Latency, kill, rail, "it loses a rail under load, and latency is measured without load", "drop --kill-rail or --lat"},
		{c.QPs == 1, kill, rail, "a single lane has no other that takes over", "use --lanes 2 or more"},
		{c.Rails == 1, kill, rail, "a single rail has no other that takes over", "use --rails 2 or more"},
		{rail < 0 || rail >= c.Rails, kill, rail, fmt.Sprintf("there are %d rails", c.Rails), fmt.Sprintf("use 0 to %d", c.Rails-1)},
		{rail >= c.QPs, kill, rail, fmt.Sprintf("%d lanes are on rails 0 to %d, and it has none", c.QPs, c.QPs-1), "use a rail with lanes, or more --lanes"},
		{c.All || len(c.Sizes) > 1, kill, rail, "it shows one transfer, of one size", "use one --size"},
		{c.Iterations > 0, kill, rail, "the rail is lost at a time, so the transfer must last a time", "use --duration instead of --iters"},
		{k.At < 0, "at", k.At, "the loss comes after the start", "use a time above 0, such as 2s"},
		{k.Back < 0, "back", k.Back, "the return comes after the loss", "use a time above 0, such as 1s"},
		{k.At >= end, "at", k.At, fmt.Sprintf("the transfer ends after %v", end), "use a longer --duration, or a smaller --at"},
		{
			k.Back >= end-k.At, "back", k.Back, fmt.Sprintf("lost at %v, the rail would be back after the end at %v", k.At, end),
			"use a longer --duration, or a smaller --back",
		},
	}
}
