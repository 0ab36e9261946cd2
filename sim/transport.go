package sim

import (
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// transport is the context of a host on a wrapped rail. It runs package reliable on the clock of the
// world, and knows the QPs that carry each lane.
type transport struct {
	verbs.Context
	stepper  reliable.Stepper
	nic      *softnic.NIC
	deadline int64                           // time of the next step
	seen     uint64                          // packets that the NIC had received at the last step
	touched  bool                            // the host has polled or posted since the last step
	qps      map[uint32]reliable.StatsReader // wrapped QPs by number, also closed ones
}

// wrap wraps a context with package reliable.
func (w *world) wrap(ctx verbs.Context, nic *softnic.NIC, rail, host int) (*transport, error) {
	p := &w.plan.Rails[rail]
	qps := 0
	w.eachEnd(host, func(c *ConnectPlan, _ *EndPlan) { qps += c.Lanes + 2 })
	wrapped, err := reliable.Wrap(ctx, reliable.Config{
		Paths: p.UCPaths, Flows: p.Flows, NoCredits: !p.Credits, ChunkBytes: p.Chunk,
		// Twice, because a lane is rebuilt while its peer still has the old one.
		RecvBytes: 2 * recvShare * qps * p.Chunk,
		Now:       func() int64 { return w.now },
	})
	if err != nil {
		return nil, err
	}
	return &transport{
		Context: wrapped, stepper: wrapped.(reliable.Stepper), nic: nic, deadline: never, qps: make(map[uint32]reliable.StatsReader),
	}, nil
}

// recvShare is the number of receive buffers per connection of package reliable.
const recvShare = 16

func (t *transport) AllocPD() (verbs.PD, error) {
	pd, err := t.Context.AllocPD()
	return &transportPD{PD: pd, of: t}, err
}

// transportPD records the QPs of a transport.
type transportPD struct {
	verbs.PD
	of *transport
}

func (p *transportPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	q, err := p.PD.CreateQP(cfg)
	if c, ok := q.(reliable.StatsReader); ok && err == nil {
		p.of.qps[q.Num()] = c
	}
	return q, err
}

// step runs the transport if something may be due. It reports whether completions may be available.
func (t *transport) step(now int64) bool {
	got := t.nic.Stats().PacketsReceived
	due := got != t.seen || now >= t.deadline
	if !due && !t.touched {
		return false
	}
	t.seen, t.touched = got, false
	at, pending := t.stepper.Step()
	if t.deadline = at; !pending {
		t.deadline = never
	}
	return due
}

// next is the time of the next step.
func (t *transport) next(now int64) int64 {
	if t.touched {
		return now
	}
	return t.deadline
}

// carriers returns the numbers of the QPs that carry a lane: its own QP and its paths.
func (t *transport) carriers(lane uint32) []uint32 {
	nums := []uint32{lane}
	if c := t.qps[lane]; c != nil {
		for _, p := range c.Paths() {
			if p.QPN != 0 {
				nums = append(nums, p.QPN)
			}
		}
	}
	return nums
}

// carriers returns the numbers of the QPs of a rail that carry a lane.
func (h *host) carriers(rail int, lane uint32) []uint32 {
	if t := h.transports[rail]; t != nil {
		return t.carriers(lane)
	}
	return []uint32{lane}
}

// step runs the transports of a host, and wakes the host if completions may be available.
func (h *host) step() {
	for _, t := range h.transports {
		if t != nil && t.step(h.w.now) {
			h.wake()
		}
	}
}

// touch makes the transports run again after a turn of the host.
func (h *host) touch() {
	for _, t := range h.transports {
		if t != nil {
			t.touched = true
		}
	}
}
