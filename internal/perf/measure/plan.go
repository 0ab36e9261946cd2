package measure

import (
	"fmt"

	"ibverbx/verbs"
)

// Limits of one row.
const (
	cacheLine = 64
	pageBytes = 4096
	// cycleBytes is the range over which small messages are spread, so that they do not share a
	// cache line. It is a page, like perftest's cycle_buffer.
	cycleBytes = 4096
	// chainBytes limits a chain, so that one post does not run for milliseconds on a NIC that works
	// inside the call.
	chainBytes = 256 << 10
	// roundMessages and roundBytes limit what one queue posts in chains before the next poll. A poll
	// and a clock reading after each 8-byte WRITE took 0.4 of the time over shared memory.
	roundMessages = 16
	roundBytes    = 16 << 10
	// deviceChainBytes is chainBytes for device memory: the device copies a chain with one
	// synchronization, which takes as long as copying some hundred KiB.
	deviceChainBytes = 4 << 20
	// windowBytes limits a QP's bytes in flight if TxDepth is zero. It exceeds the capacity of any
	// path.
	windowBytes = 16 << 20
	// checkBytes limits the bytes in flight per direction with Check, where every message has its
	// own slot.
	checkBytes = 64 << 20
	// bufferBytes limits the size of one side's buffers within one process.
	bufferBytes = 4 << 30
	// minLaneDepth is the minimum request capacity of a lane.
	minLaneDepth = 16
	// maxLaneDepth is the maximum request capacity of a lane. More requests never queue.
	maxLaneDepth = 1024
	// laneRequests is the approximate maximum number of requests in all lanes together.
	laneRequests = 1 << 18
	// wantFragment is the upper limit of an automatic fragment size (ibverbx.Config.FragmentSize).
	wantFragment = 1 << 20
)

// plan is the layout of one row: queues, chains and buffers.
type plan struct {
	size int // message size in bytes
	// qps is the number of QPs that messages are posted to. A VirtualQP counts as one.
	qps int
	// directions is 1, or 2 if both sides initiate.
	directions int
	// chain is the number of requests posted at once, with one completion.
	chain int
	// round is the maximum number of chains that a queue posts before the next poll.
	round int
	// window is the number of chains a QP keeps in flight.
	window int
	// slots is the number of message slots per QP at the source, and at the target of a one-sided
	// operation. Messages use them round-robin.
	slots int
	// recvs is the number of receives per QP, a multiple of chain; 0 unless the operation consumes
	// receives.
	recvs int
	// recvSlots is the number of receive slots, 0 for notifications.
	recvSlots int
	// stride is the distance between slots in bytes.
	stride int
	// head is the number of bytes before a message in its slot, so that a message behind a GRH is
	// aligned like any other.
	head int
	// laneDepth is ibverbx.Config.LaneDepth.
	laneDepth int
	// notifyDepth is ibverbx.Config.NotifyDepth.
	notifyDepth int
}

// newPlan lays out a row of c for messages of the given size, on devices whose queues hold up to
// maxWR requests.
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
		p.setDepth(c, pingChain, pingChain*pingWindow)
	}
	depth := p.chain * p.window
	p.slots = max(1, min(p.chain, cycleBytes/p.stride))
	if c.onDevice() { // the device copies a chain's messages in parallel if each has its own slot
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

// setLanes chooses the lane depth. A lane gets a part of each message, or whole messages
// round-robin. For every policy, and while only one side is polled, the window must neither wait
// for a lane nor run it out of receives: an RNR would make the sender wait for a timer and distort
// the measurement.
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
	chain := c.CQMod
	if chain == 0 {
		limit := chainBytes
		if c.onDevice() {
			limit = deviceChainBytes
		}
		chain = max(1, min(maxChain, depth/2, limit/p.stride))
	}
	p.setDepth(c, chain, depth)
	p.round = max(1, min(roundMessages, roundBytes/p.stride)/p.chain)
}

// setDepth sets the chain length, and a window of chains for the depth. With Check, both are reduced to fit checkBytes.
func (p *plan) setDepth(c *Config, chain, depth int) {
	if c.Check {
		places := max(1, checkBytes/(p.stride*p.qps))
		chain, depth = min(chain, places), min(depth, places)
	}
	p.chain, p.window = chain, max(1, depth/chain)
}

// requests is the number of requests in the longest queue of a VirtualQP.
func (p *plan) requests() int { return max(p.depth(), p.recvs) }

// depth is the number of requests a QP keeps in flight.
func (p *plan) depth() int { return p.chain * p.window }

// targetSlots is the number of message slots per QP at the side that does not initiate.
func (p *plan) targetSlots() int { return max(p.slots, p.recvSlots) }

// areaBytes is the size of the given number of slots per QP, in whole pages.
func (p *plan) areaBytes(places int) int {
	return (p.qps*places*p.stride + pageBytes - 1) &^ (pageBytes - 1)
}

// sideBytes is the size of one side's buffers. A side may be the source of one direction and the
// target of the other.
func (p *plan) sideBytes(side int) (n int) {
	if side < p.directions {
		n += p.areaBytes(p.slots)
	}
	if 1-side < p.directions {
		n += p.areaBytes(p.targetSlots())
	}
	return n
}

// fits returns an error if the plan exceeds the limits of a device.
func (p *plan) fits(c *Config, attr *verbs.DeviceAttr) error {
	if c.Op == Atomic && attr.Atomic == verbs.AtomicNone {
		return &ConfigError{Where: "operation atomic", Problem: "the device has no atomics", Fix: "measure write, read or send"}
	}
	caps := map[verbs.QPType]verbs.Capabilities{verbs.UC: verbs.CapUC, verbs.UD: verbs.CapUD}[c.Connection]
	depth, qps, cqes := p.requests(), p.deviceQPs(c), p.completions(c)
	return firstBroken(append([]rule{
		{attr.Capabilities&caps != caps, "connection", c.Connection, "the device has no such QPs", "use --connection RC"},
		{qps > attr.MaxQP, "lanes", c.QPs, fmt.Sprintf("the device has at most %d QPs, and this needs %d on it", attr.MaxQP, qps), "use fewer"},
		{
			depth > attr.MaxQPWR && (p.recvs > 0 || !c.virtual() || c.direct()), "tx-depth", max(c.TxDepth, p.depth()),
			fmt.Sprintf("the device holds at most %d requests per queue, and this needs %d", attr.MaxQPWR, depth), "use a smaller depth",
		},
		{
			cqes > attr.MaxCQE, "lanes", c.QPs, fmt.Sprintf("%d QPs need a completion queue of %d, and the device has at most %d", c.QPs, cqes, attr.MaxCQE),
			"use fewer QPs or a smaller --tx-depth",
		},
	}, p.bounds(c, bufferBytes)...))
}

// bounds are the limits of a row on any device. most is the maximum size of one side's buffers.
func (p *plan) bounds(c *Config, most int) []rule {
	depth, bytes := p.requests(), max(p.sideBytes(0), p.sideBytes(1))
	return []rule{
		{
			c.virtual() && depth > MaxRequests, "tx-depth", max(c.TxDepth, p.depth()),
			fmt.Sprintf("a VirtualQP holds at most %d requests, and this needs %d", MaxRequests, depth), "use a smaller depth",
		},
		{
			bytes > most, "size", p.size, fmt.Sprintf("the buffers would take %d MiB at one end, at most %d are allowed", bytes>>20, most>>20),
			"use a smaller size, a smaller --tx-depth or fewer QPs",
		},
	}
}

// deviceQPs is the maximum number of QPs per device. Several lanes also need a message lane and a
// notify lane.
func (p *plan) deviceQPs(c *Config) int {
	if !c.virtual() || c.direct() {
		return c.QPs
	}
	return (c.QPs-1)/c.Rails + 1 + 2
}

// completions is the maximum number of outstanding completions per device: one for every request of
// every QP, so that even a flush cannot overrun a completion queue.
func (p *plan) completions(c *Config) int {
	if !c.virtual() || c.direct() {
		return p.qps * (p.depth() + max(1, p.recvs))
	}
	return p.deviceQPs(c)*(p.laneDepth+p.notifyDepth) + max(1, p.recvs)
}
