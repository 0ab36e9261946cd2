package perf

import (
	"fmt"

	"ibverbx/verbs"
)

// Bounds of what one row uses.
const (
	cacheLine = 64
	pageBytes = 4096
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
	// A lane holds so many requests, as many as would make it wait for nothing, and all
	// lanes together about laneRequests, whatever their number.
	minLaneDepth = 16
	maxLaneDepth = 1024
	laneRequests = 1 << 18
	// wantFragment is what a chosen fragment grows to (ibverbx.Config.FragmentSize).
	wantFragment = 1 << 20
)

// plan is how one row is laid out: queues, chains and buffers.
type plan struct {
	size int
	// qps is how many QPs messages are posted to. The lanes of a VirtualQP are one.
	qps int
	// directions is 1, or 2 if both ends initiate.
	directions int
	// A QP has up to window chains of chain requests in flight.
	chain, window int
	// slots is how many places for a message a QP has at the source, and at the
	// target of a one-sided operation. Messages take them in turn.
	slots int
	// recvs is how many receives a QP has, a multiple of chain; 0 unless the operation
	// takes receives. recvSlots is how many places they have, 0 for notifications.
	recvs, recvSlots int
	// stride is the distance of places; head is what lies before the message at the
	// target, so that a message behind a GRH is as aligned as any other.
	stride, head int
	// laneDepth and notifyDepth are those of ibverbx.Config.
	laneDepth, notifyDepth int
}

// newPlan lays out a row of c for messages of the given size, on devices whose queues
// hold up to maxWR requests.
func newPlan(c *Config, size, maxWR int) plan {
	p := plan{size: size, qps: c.QPs, directions: 1, chain: 1, window: 1}
	if c.virtual() {
		p.qps = 1
	}
	op := c.op()
	if c.Bidirectional || (c.Mode == Latency && op.received()) {
		p.directions = 2
	}
	if c.Connection == verbs.UD {
		p.head = cacheLine
	}
	p.stride = (p.head + size + cacheLine - 1) &^ (cacheLine - 1)
	if c.Mode == Bandwidth {
		p.setWindow(c)
	} else if op.received() {
		p.chain, p.window = pingChain, pingWindow
	}
	depth := p.chain * p.window
	p.slots = max(1, min(p.chain, cycleBytes/p.stride))
	if c.Check {
		p.slots = depth
	}
	if op.received() {
		p.recvs = depth + p.chain
	}
	if op == Send {
		p.recvSlots = p.slots
		if c.Check {
			p.recvSlots = p.recvs
		}
	}
	p.setLanes(c, maxWR)
	return p
}

// setLanes chooses how much a lane holds. A lane gets a part of each message, or whole
// messages in turn; whatever the policy, and while only one end is polled, the window
// should neither wait for a lane nor find it without receives: then a sender meets RNR and
// a timer, which is legal but measures the timer.
func (p *plan) setLanes(c *Config, maxWR int) {
	depth := p.depth()
	if c.direct() {
		p.laneDepth, p.notifyDepth = depth, 1
		return
	}
	share := p.size/(wantFragment*c.QPs) + 1
	if c.Fragment > 0 {
		share = (p.size-1)/c.Fragment/c.QPs + 1
	}
	limit := min(maxLaneDepth, max(minLaneDepth, laneRequests/c.QPs), maxWR)
	n := max(min(minLaneDepth, limit), min(2*depth*share, limit))
	p.laneDepth, p.notifyDepth = n, 1
	if c.op() == WriteImm {
		p.notifyDepth = n
	}
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

// targetSlots is how many places for a message a QP has at the end that is sent to.
func (p *plan) targetSlots() int { return max(p.slots, p.recvSlots) }

// bytes is how much memory the buffers of the row take.
func (p *plan) bytes() uint64 {
	return uint64(p.directions) * uint64(p.qps) * uint64(p.stride) * uint64(p.slots+p.targetSlots())
}

// areaBytes is what so many places per QP take, in whole pages.
func (p *plan) areaBytes(places int) int {
	return (p.qps*places*p.stride + pageBytes - 1) &^ (pageBytes - 1)
}

// endBytes is what the buffers of one end take: it may be the source of one direction and
// the target of the other.
func (p *plan) endBytes(side int) (n int) {
	if side < p.directions {
		n += p.areaBytes(p.slots)
	}
	if 1-side < p.directions {
		n += p.areaBytes(p.targetSlots())
	}
	return n
}

// fits returns an error if a device cannot bear the plan.
func (p *plan) fits(c *Config, attr *verbs.DeviceAttr) error {
	depth := max(p.depth(), p.recvs)
	switch {
	case c.Connection == verbs.UC && attr.Capabilities&verbs.CapUC == 0, c.Connection == verbs.UD && attr.Capabilities&verbs.CapUD == 0:
		return refuse(flagValue("connection", c.Connection), "the device has no such QPs", "use --connection RC")
	case c.Op == Atomic && attr.Atomic == verbs.AtomicNone:
		return refuse("operation atomic", "the device has no atomics", "measure write, read or send")
	case p.deviceQPs(c) > attr.MaxQP:
		return refuse(flagValue("qp", c.QPs), fmt.Sprintf("the device has at most %d QPs, and this needs %d on it", attr.MaxQP, p.deviceQPs(c)), "use fewer")
	case c.virtual() && depth > maxRequests:
		return refuse(flagValue("tx-depth", max(c.TxDepth, p.depth())),
			fmt.Sprintf("a VirtualQP holds at most %d requests, and this needs %d", maxRequests, depth), "use a smaller depth")
	case depth > attr.MaxQPWR && (p.recvs > 0 || !c.virtual() || c.direct()):
		return refuse(flagValue("tx-depth", max(c.TxDepth, p.depth())),
			fmt.Sprintf("the device holds at most %d requests per queue, and this needs %d", attr.MaxQPWR, depth), "use a smaller depth")
	case p.completions(c) > attr.MaxCQE:
		return refuse(flagValue("qp", c.QPs),
			fmt.Sprintf("%d QPs need a completion queue of %d, and the device has at most %d", c.QPs, p.completions(c), attr.MaxCQE),
			"use fewer QPs or a smaller --tx-depth")
	case p.bytes() > bufferBytes:
		return refuse(flagValue("size", p.size),
			fmt.Sprintf("the buffers would take %d GiB", p.bytes()>>30), "use fewer QPs, a smaller size or a smaller --tx-depth")
	}
	return nil
}

// deviceQPs is how many QPs one device has at the most: on several lanes the message lane
// and the notify lane come on top.
func (p *plan) deviceQPs(c *Config) int {
	if !c.virtual() || c.direct() {
		return c.QPs
	}
	return (c.QPs-1)/c.Rails + 1 + 2
}

// completions is how many of them one device can have outstanding: every request of every
// QP, so that not even a flush overruns a completion queue.
func (p *plan) completions(c *Config) int {
	if !c.virtual() || c.direct() {
		return p.qps * (p.depth() + max(1, p.recvs))
	}
	return p.deviceQPs(c)*(p.laneDepth+p.notifyDepth) + max(1, p.recvs)
}
