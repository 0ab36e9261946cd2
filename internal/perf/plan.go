package perf

import (
	"fmt"

	"ibverbx/verbs"
)

// Bounds of what one row uses.
const (
	cacheLine = 64
	// cycleBytes is how far small messages spread: as perftest's cycle_buffer, one
	// page, so that they do not all fall on one cache line.
	cycleBytes = 4096
	// chainBytes bounds a chain, so that one post does not run for milliseconds on a
	// NIC that works inside the call.
	chainBytes = 256 << 10
	// windowBytes bounds what a QP has in flight if TxDepth was not asked for: far
	// more than any path holds.
	windowBytes = 16 << 20
	// checkBytes bounds what a direction has in flight with Check, where every message
	// has a place of its own.
	checkBytes = 64 << 20
	// bufferBytes bounds all buffers of a row.
	bufferBytes = 8 << 30
)

// plan is how one row is laid out: queues, chains and buffers.
type plan struct {
	size int
	qps  int
	// directions is 1, or 2 if both ends initiate.
	directions int
	// A QP has up to window chains of chain requests in flight.
	chain, window int
	// slots is how many places for a message a QP has at the source, and at the
	// target of a one-sided operation. Messages take them in turn.
	slots int
	// recvs is how many receives a QP has, a multiple of chain; 0 unless Send.
	// recvSlots is how many places they have.
	recvs, recvSlots int
	// stride is the distance of places; head is what lies before the message at the
	// target, so that a message behind a GRH is as aligned as any other.
	stride, head int
}

// newPlan lays out a row of c for messages of the given size.
func newPlan(c *Config, size int) plan {
	p := plan{size: size, qps: c.QPs, directions: 1, chain: 1, window: 1}
	if c.Bidirectional || (c.Mode == Latency && c.Op == Send) {
		p.directions = 2
	}
	if c.Op == Send && c.Connection == verbs.UD {
		p.head = cacheLine
	}
	p.stride = (p.head + size + cacheLine - 1) &^ (cacheLine - 1)
	if c.Mode == Bandwidth {
		p.setWindow(c)
	} else if c.Op == Send {
		p.chain, p.window = pingChain, pingWindow
	}
	depth := p.chain * p.window
	p.slots = max(1, min(p.chain, cycleBytes/p.stride))
	if c.Check {
		p.slots = depth
	}
	if c.Op == Send {
		p.recvs = depth + p.chain
		p.recvSlots = p.slots
		if c.Check {
			p.recvSlots = p.recvs
		}
	}
	return p
}

// setWindow chooses depth and chain length for bandwidth.
func (p *plan) setWindow(c *Config) {
	depth := c.TxDepth
	if depth == 0 {
		depth = min(defaultTxDepth, max(2, c.CQMod, windowBytes/p.stride))
	}
	p.chain = c.CQMod
	if p.chain == 0 {
		p.chain = max(1, min(maxChain, depth/2, chainBytes/p.stride))
	}
	if c.Check {
		places := max(1, checkBytes/(p.stride*p.qps))
		p.chain = min(p.chain, places)
		depth = min(depth, places)
	}
	p.window = max(1, depth/p.chain)
}

// depth is how many requests a QP has in flight.
func (p *plan) depth() int { return p.chain * p.window }

// bytes is how much memory the buffers of the row take.
func (p *plan) bytes() uint64 {
	return uint64(p.directions) * uint64(p.qps) * uint64(p.stride) * uint64(p.slots+max(p.slots, p.recvSlots))
}

// fits returns an error if a device cannot bear the plan.
func (p *plan) fits(c *Config, attr *verbs.DeviceAttr) error {
	depth := max(p.depth(), p.recvs)
	switch {
	case c.Connection == verbs.UC && attr.Capabilities&verbs.CapUC == 0, c.Connection == verbs.UD && attr.Capabilities&verbs.CapUD == 0:
		return refuse(flagValue("connection", c.Connection), "the device has no such QPs", "use --connection RC")
	case c.Op == Atomic && attr.Atomic == verbs.AtomicNone:
		return refuse("operation atomic", "the device has no atomics", "measure write, read or send")
	case p.qps > attr.MaxQP:
		return refuse(flagValue("qp", p.qps), fmt.Sprintf("the device has at most %d QPs", attr.MaxQP), "use fewer")
	case depth > attr.MaxQPWR:
		return refuse(flagValue("tx-depth", max(c.TxDepth, p.depth())),
			fmt.Sprintf("the device holds at most %d requests per queue, and this needs %d", attr.MaxQPWR, depth), "use a smaller depth")
	case p.qps*depth > attr.MaxCQE:
		return refuse(flagValue("qp", p.qps),
			fmt.Sprintf("%d QPs with %d requests each overrun a completion queue of at most %d", p.qps, depth, attr.MaxCQE),
			"use fewer QPs or a smaller --tx-depth")
	case p.bytes() > bufferBytes:
		return refuse(flagValue("size", p.size),
			fmt.Sprintf("the buffers of %d QPs would take %d GiB", p.qps, p.bytes()>>30), "use fewer QPs, a smaller size or a smaller --tx-depth")
	}
	return nil
}
