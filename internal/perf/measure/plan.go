package measure

import (
	"fmt"

	"ibverbx/verbs"
)

// Bounds of what one row uses.
const (
	cacheLine = 64
	pageBytes = 4096
	// cycleBytes is how far small messages spread, so that they do not all use one cache
	// line. It is a page, as perftest's cycle_buffer.
	cycleBytes = 4096
	// chainBytes bounds a chain, so that one post does not run for milliseconds on a
	// NIC that works inside the call.
	chainBytes = 256 << 10
	// deviceChainBytes is chainBytes if a device has memory: it copies a chain with one synchronization, which takes as
	// long as a copy of some hundred KiB.
	deviceChainBytes = 4 << 20
	// windowBytes bounds what a QP has in flight if TxDepth was not asked for. No path holds
	// as much.
	windowBytes = 16 << 20
	// checkBytes bounds what a direction has in flight with Check, where every message has
	// its own place.
	checkBytes = 64 << 20
	// bufferBytes bounds all buffers of a row.
	bufferBytes = 8 << 30
	// minLaneDepth is how many requests a lane holds at least.
	minLaneDepth = 16
	// maxLaneDepth is how many requests a lane holds at most. More never wait.
	maxLaneDepth = 1024
	// laneRequests is about how many requests all lanes together hold at most.
	laneRequests = 1 << 18
	// wantFragment is what a chosen fragment grows to (ibverbx.Config.FragmentSize).
	wantFragment = 1 << 20
)

// plan is how one row is laid out: queues, chains and buffers.
type plan struct {
	size int // bytes of a message
	// qps is how many QPs messages are posted to. A VirtualQP counts as one.
	qps int
	// directions is 1, or 2 if both sides initiate.
	directions int
	// chain is how many requests are posted at once, with one completion.
	chain int
	// window is how many chains a QP has in flight.
	window int
	// slots is how many places for a message a QP has at the source, and at the target of a
	// one-sided operation. Messages take them in turn.
	slots int
	// recvs is how many receives a QP has, a multiple of chain; 0 unless the operation takes
	// receives.
	recvs int
	// recvSlots is how many places the receives have, 0 for notifications.
	recvSlots int
	// stride is the distance of places in bytes.
	stride int
	// head is how many bytes lie before a message in its place, so that a message behind a
	// GRH is aligned as any other.
	head int
	// laneDepth is ibverbx.Config.LaneDepth.
	laneDepth int
	// notifyDepth is ibverbx.Config.NotifyDepth.
	notifyDepth int
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
	if c.onDevice() { // which copies the messages of a chain at the same time if each has its own place
		p.slots = max(1, min(p.chain, deviceChainBytes/p.stride))
	}
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

// setLanes chooses how much a lane holds. A lane gets a part of each message, or whole messages in
// turn. For every policy, and while only one side is polled, the window should neither wait for a
// lane nor find it without receives: a sender that meets RNR waits for a timer, and the timer would
// be measured.
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
		limit := chainBytes
		if c.onDevice() {
			limit = deviceChainBytes
		}
		p.chain = max(1, min(maxChain, depth/2, limit/p.stride))
	}
	if c.Check {
		places := max(1, checkBytes/(p.stride*p.qps))
		p.chain = min(p.chain, places)
		depth = min(depth, places)
	}
	p.window = max(1, depth/p.chain)
}

// Footprint returns the bytes of the buffers that a side needs for messages of the given size, and the requests of the
// longest queue of its VirtualQP.
func (c *Config) Footprint(side, size int) (bytes, requests int) {
	p := newPlan(c, size, MaxRequests)
	return p.endBytes(side), max(p.depth(), p.recvs)
}

// depth is how many requests a QP has in flight.
func (p *plan) depth() int { return p.chain * p.window }

// targetSlots is how many places for a message a QP has at the side that does not initiate.
func (p *plan) targetSlots() int { return max(p.slots, p.recvSlots) }

// bytes is how much memory the buffers of the row take.
func (p *plan) bytes() uint64 {
	return uint64(p.directions) * uint64(p.qps) * uint64(p.stride) * uint64(p.slots+p.targetSlots())
}

// areaBytes is what so many places per QP take, in whole pages.
func (p *plan) areaBytes(places int) int {
	return (p.qps*places*p.stride + pageBytes - 1) &^ (pageBytes - 1)
}

// endBytes is what the buffers of one side take. It may be the source of one direction and the
// target of the other.
func (p *plan) endBytes(side int) (n int) {
	if side < p.directions {
		n += p.areaBytes(p.slots)
	}
	if 1-side < p.directions {
		n += p.areaBytes(p.targetSlots())
	}
	return n
}

// fits refuses the plan if a device cannot bear it.
func (p *plan) fits(c *Config, attr *verbs.DeviceAttr) error {
	if c.Op == Atomic && attr.Atomic == verbs.AtomicNone {
		return &ConfigError{Where: "operation atomic", Problem: "the device has no atomics", Fix: "measure write, read or send"}
	}
	caps := map[verbs.QPType]verbs.Capabilities{verbs.UC: verbs.CapUC, verbs.UD: verbs.CapUD}[c.Connection]
	depth, asked := max(p.depth(), p.recvs), max(c.TxDepth, p.depth())
	qps, cqes := p.deviceQPs(c), p.completions(c)
	return firstBroken([]rule{
		{attr.Capabilities&caps != caps, "connection", c.Connection, "the device has no such QPs", "use --connection RC"},
		{qps > attr.MaxQP, "qp", c.QPs, fmt.Sprintf("the device has at most %d QPs, and this needs %d on it", attr.MaxQP, qps), "use fewer"},
		{
			c.virtual() && depth > MaxRequests, "tx-depth", asked,
			fmt.Sprintf("a VirtualQP holds at most %d requests, and this needs %d", MaxRequests, depth), "use a smaller depth",
		},
		{
			depth > attr.MaxQPWR && (p.recvs > 0 || !c.virtual() || c.direct()), "tx-depth", asked,
			fmt.Sprintf("the device holds at most %d requests per queue, and this needs %d", attr.MaxQPWR, depth), "use a smaller depth",
		},
		{
			cqes > attr.MaxCQE, "qp", c.QPs, fmt.Sprintf("%d QPs need a completion queue of %d, and the device has at most %d", c.QPs, cqes, attr.MaxCQE),
			"use fewer QPs or a smaller --tx-depth",
		},
		{
			p.bytes() > bufferBytes, "size", p.size, fmt.Sprintf("the buffers would take %d GiB", p.bytes()>>30),
			"use fewer QPs, a smaller size or a smaller --tx-depth",
		},
	})
}

// deviceQPs is how many QPs one device has at most: several lanes need a message lane and a notify
// lane too.
func (p *plan) deviceQPs(c *Config) int {
	if !c.virtual() || c.direct() {
		return c.QPs
	}
	return (c.QPs-1)/c.Rails + 1 + 2
}

// completions is how many completions one device can have outstanding: one for every request of
// every QP, so that not even a flush overruns a completion queue.
func (p *plan) completions(c *Config) int {
	if !c.virtual() || c.direct() {
		return p.qps * (p.depth() + max(1, p.recvs))
	}
	return p.deviceQPs(c)*(p.laneDepth+p.notifyDepth) + max(1, p.recvs)
}
