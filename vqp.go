package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// VirtualQP is many RC queue pairs, on several rails, that behave like one. Requests are
// cut into fragments that the lanes carry side by side, and complete once each, in
// posting order.
//
// What one QP orders and many lanes cannot: WRITEs and READs of different requests are
// not ordered among themselves. verbs.SendFence makes a request wait for all before it.
//
// A VirtualQP is for one goroutine at a time, and for the one that uses its VirtualCQ.
type VirtualQP struct {
	num   uint32
	rails *Rails
	cq    *VirtualCQ
	cfg   Config
	lanes []*lane
	// direct says that the only lane passes everything through.
	direct bool
	state  qpState
	err    error

	sendRing
	inline []byte // MaxInline bytes for every slot of the send ring

	remoteRails int    // rails of the peer, by which its keys are counted
	maxMsg      uint32 // bytes of a fragment at the most
	mtu         uint32 // the smallest of the rails

	cursor  int     // lane that round robin looks at next
	staged  []*lane // lanes with requests that wait for the doorbell
	touched bool    // in VirtualCQ.touched
	batch   []verbs.SendWR
}

// qpState is where a VirtualQP is in its life.
type qpState uint8

const (
	stateNew qpState = iota
	stateConnected
	stateFailed
	stateClosed
)

// NewQP makes a VirtualQP whose completions go to c. Its lanes are spread evenly over the
// rails.
func (c *VirtualCQ) NewQP(cfg Config) (*VirtualQP, error) {
	cfg = cfg.withDefaults(c.rails.Len())
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("make virtual QP: %w", err)
	}
	cfg.SendDepth = ceilPow2(cfg.SendDepth)
	c.qpCount++
	q := &VirtualQP{
		num: c.qpCount, rails: c.rails, cq: c, cfg: cfg,
		direct: cfg.Lanes == 1 && !cfg.Track, batch: make([]verbs.SendWR, chainMax),
	}
	q.maxMsg, q.mtu = maxFragment, 4096
	for i := range c.rails.rails {
		r := &c.rails.rails[i]
		q.maxMsg = uint32(min(uint64(q.maxMsg), r.attr.MaxMsgSize))
		q.mtu = min(q.mtu, uint32(max(r.mtu, 256)))
	}
	q.sends = make([]sendSlot, cfg.SendDepth)
	q.inline = make([]byte, cfg.SendDepth*cfg.MaxInline)
	for i := range cfg.Lanes {
		if err := q.addLane(i, i%c.rails.Len()); err != nil {
			return nil, errors.Join(fmt.Errorf("make virtual QP: lane %d: %w", i, err), q.Close())
		}
	}
	q.staged = make([]*lane, 0, len(q.lanes))
	return q, nil
}

// addLane makes a lane, books its completions and routes them to it.
func (q *VirtualQP) addLane(index, rail int) error {
	if err := q.cq.reserve(rail, q.laneCompletions()); err != nil {
		return err
	}
	l, err := newLane(q, index, rail)
	if err != nil {
		q.cq.release(rail, q.laneCompletions())
		return err
	}
	q.lanes = append(q.lanes, l)
	q.cq.routes[rail].add(l)
	return nil
}

// laneCompletions is how many completions a lane can have outstanding.
func (q *VirtualQP) laneCompletions() int { return q.cfg.LaneDepth + q.cfg.RecvDepth }

// Num is a number that is unique on the VirtualCQ.
func (q *VirtualQP) Num() uint32 { return q.num }

// Err returns nil as long as the VirtualQP works, and otherwise what ended it: at once,
// even while requests before the failed one are still outstanding.
func (q *VirtualQP) Err() error { return q.err }

// Close destroys the lanes. Outstanding requests end without a completion.
func (q *VirtualQP) Close() error {
	var errs []error
	for _, l := range q.lanes {
		rail := int(l.rail)
		errs = append(errs, l.qp.Close())
		q.cq.routes[rail].rebuild(l)
		q.cq.release(rail, q.laneCompletions())
	}
	q.lanes, q.state = nil, stateClosed
	q.reported, q.dispatched, q.posted = 0, 0, 0
	if q.touched {
		q.cq.forget(q)
	}
	return errors.Join(errs...)
}

// LaneStats returns what each lane did: proof of which NIC carried what.
func (q *VirtualQP) LaneStats() []LaneStats {
	s := make([]LaneStats, len(q.lanes))
	for i, l := range q.lanes {
		s[i] = l.stats
	}
	return s
}
