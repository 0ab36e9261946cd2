package ibverbx

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"ibverbx/internal/ring"
	"ibverbx/internal/xorshift"
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
	// all are the lanes: those that carry data first (lanes), then the message lane and,
	// with Spray, the notify lane.
	all, lanes              []*lane
	messageLane, notifyLane *lane
	scheme                  notifier
	// direct says that the only lane passes everything through.
	direct bool
	// shared is where the engine's receives come from, nil if lanes have their own.
	shared *sharedReceives
	state  qpState
	err    error
	// emptied are the barriers of the rails from when the VirtualQP failed.
	emptied barriers

	sendRing
	inline []byte // MaxInline bytes for every slot of the send ring
	// inflight counts the physical requests that lanes have, messages those of them that
	// are SENDs or atomics, and owed the notifications that are still to be sent.
	inflight, messages, owed int
	wire                     [8]verbs.Opcode // what the fragments of a request are
	// carried has a bit for every lane that carried bytes to the peer's memory since the
	// last notification.
	carried laneSet
	receiver

	incarnation uint64 // of this VirtualQP
	peer        uint64 // and of the peer's
	remoteRails int    // rails of the peer, by which its keys are counted
	maxMsg      uint32 // bytes of a fragment at the most
	mtu         uint32 // the smallest of the rails

	// The policy: the lane that round robin looks at next, the lane that small requests
	// share, a state of random numbers, the time, and the rate of the fastest lane.
	cursor   int
	run      int
	runBytes uint32
	runLane  *lane
	random   xorshift.Source
	now      int64
	fastest  float64

	// Failover: how many lanes are out of service, what the rails told, and a place for
	// control messages.
	out          int
	nextDrive    int64            // when a poll that finds something looks at control and clock too
	railPast     [MaxRails]Counts // what lanes did on a rail that they left
	away         bool             // a message or notify lane was rebuilt on another rail
	asking       bool             // the oldest request has been
	askFor       uint32           // this one
	askAt        int64            // and the peer is asked at that time
	late         bool             // a deadline has passed,
	lateAt       barriers         // of the rails since then,
	lateSince    int64            // and the time that
	falls        [MaxRails]uint64
	deaths       [MaxRails]uint64
	control      [MaxControl]byte
	controlStats struct{ bad, stale, unsent uint64 }

	staged  []*lane // lanes with requests that wait for the doorbell
	touched bool    // in VirtualCQ.touched
	broken  bool    // a request that failed was reported
	// brokenLane cannot be used any more, for brokenErr; dispatch ends the VirtualQP.
	brokenLane *lane
	brokenErr  error

	counted struct {
		posted, passed, recvPosted, recvCompleted uint64
		highWater                                 int
	}

	chain     []verbs.SendWR // where a chain is made
	recvChain []verbs.RecvWR
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
	cfg.SendDepth = ring.CeilPow2(cfg.SendDepth)
	if cfg.Policy == AutoPolicy {
		cfg.Policy = c.rails.policy()
	}
	if cfg.Incarnation == 0 {
		cfg.Incarnation = rand.Uint64N(1<<53-1) + 1
	}
	c.qpCount++
	q := &VirtualQP{
		num: c.qpCount, incarnation: cfg.Incarnation, rails: c.rails, cq: c, cfg: cfg,
		direct: cfg.Lanes == 1 && !cfg.TrackSingleLane, chain: make([]verbs.SendWR, chainMax), recvChain: make([]verbs.RecvWR, chainMax),
		carried: newLaneSet(cfg.Lanes), random: xorshift.Source(uint64(c.qpCount)*0x9e3779b97f4a7c15 | 1),
	}
	c.qps = append(c.qps, q)
	q.maxMsg, q.mtu = maxMessage, 4096
	for i := range c.rails.rails {
		r := &c.rails.rails[i]
		q.maxMsg = uint32(min(uint64(q.maxMsg), r.attr.MaxMsgSize))
		q.mtu = min(q.mtu, uint32(max(r.mtu, 256)))
	}
	q.sends = make([]sendSlot, cfg.SendDepth)
	q.inline = make([]byte, cfg.SendDepth*cfg.MaxInline)
	q.initReceiver(&cfg)
	if err := q.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("make virtual QP: %w", err), q.Close())
	}
	return q, nil
}

// plan says which lanes a VirtualQP has: those that carry data, spread over the rails,
// then the message lane and, with Spray, the notify lane. The C++ original lays blocks of
// QPs over the rails, and has one QP more for notifications, which takes atomics too.
func (q *VirtualQP) plan() (lanes []laneConfig) {
	n, rails := q.cfg.Lanes, q.rails.Len()
	for i := range n {
		lc := laneConfig{index: i, rail: i % rails, recvs: q.cfg.NotifyDepth}
		if q.cfg.CxxPeer {
			lc.rail = i * rails / n
		}
		if q.direct {
			lc.recvs = q.cfg.RecvDepth
		}
		lanes = append(lanes, lc)
	}
	if q.direct {
		return lanes
	}
	// The message lane holds the user's receives. It is on the same rail for all
	// VirtualQPs, because atomics of two NICs are not atomic together.
	message := laneConfig{index: n, role: roleMessage, recvs: q.cfg.RecvDepth}
	notify := laneConfig{index: n + 1, role: roleNotify, rail: (n + 1) % rails, recvs: q.cfg.NotifyDepth}
	switch {
	case q.cfg.Scheme != Spray:
		return append(lanes, message)
	case q.cfg.CxxPeer:
		notify.index, notify.rail = n, 0
		return append(lanes, notify)
	}
	return append(lanes, message, notify)
}

// build makes the lanes and takes them to INIT, with the engine's receives posted.
func (q *VirtualQP) build() (err error) {
	if !q.direct {
		q.shared = q.cq.shared
		if q.scheme, err = q.newNotifier(); err != nil {
			return err
		}
		for op := range q.wire {
			q.wire[op] = q.scheme.wire(verbs.Opcode(op))
		}
	}
	for i, lc := range q.plan() {
		if q.shared != nil && lc.role != roleMessage {
			lc.srq, lc.recvs = q.shared.rails[lc.rail].srq, 0
		}
		if err := q.addLane(lc); err != nil {
			return fmt.Errorf("lane %d: %w", i, err)
		}
		switch l := q.all[i]; lc.role {
		case roleMessage:
			q.messageLane = l
		case roleNotify:
			q.notifyLane = l
			if q.messageLane == nil {
				q.messageLane = l
			}
		case roleData:
		}
	}
	q.lanes = q.all[:q.cfg.Lanes]
	q.staged = make([]*lane, 0, len(q.all))
	for _, l := range q.all {
		if err := q.prepare(l); err != nil {
			return fmt.Errorf("lane %d: %w", l.index, err)
		}
	}
	return nil
}

// prepare takes a lane from RESET to INIT and posts the engine's receives.
func (q *VirtualQP) prepare(l *lane) error {
	if err := verbs.InitQP(l.qp, q.rails.rails[l.rail].cfg.Port); err != nil {
		return err
	}
	l.recvHead, l.recvTail = 0, 0
	if q.state == stateConnected && l.role != roleMessage {
		q.feedLane(l) // unless too many messages wait already
		return nil
	}
	return q.replenish(l)
}

// addLane makes a lane, books its completions and routes them to it.
func (q *VirtualQP) addLane(lc laneConfig) error {
	if err := q.cq.reserve(lc.rail, q.cfg.LaneDepth+lc.recvs); err != nil {
		return err
	}
	l, err := newLane(q, lc)
	if err != nil {
		q.cq.release(lc.rail, q.cfg.LaneDepth+lc.recvs)
		return err
	}
	q.all = append(q.all, l)
	q.cq.routes[lc.rail].Set(l.num, l)
	return nil
}

// Num is a number that is unique on the VirtualCQ.
func (q *VirtualQP) Num() uint32 { return q.num }

// Err returns nil as long as the VirtualQP works, and otherwise what ended it: at once,
// even while requests before the failed one are still outstanding.
func (q *VirtualQP) Err() error { return q.err }

// Close destroys the lanes. Outstanding requests end without a completion.
func (q *VirtualQP) Close() error {
	var errs []error
	if q.state == stateClosed {
		return nil
	}
	if q.state == stateConnected {
		q.tellReset()
	}
	if q.shared != nil {
		q.drain()
	}
	for _, l := range q.all {
		rail := int(l.rail)
		errs = append(errs, l.qp.Close())
		q.cq.release(rail, q.cfg.LaneDepth+int(l.recvDepth))
	}
	for i := range q.cq.routes {
		q.cq.routes[i].DeleteFunc(func(_ uint32, l *lane) bool { return l.owner == q })
	}
	if q.scheme != nil {
		errs = append(errs, q.scheme.close())
	}
	q.all, q.lanes, q.state = nil, nil, stateClosed
	q.reported, q.dispatched, q.posted = 0, 0, 0
	q.receiver = receiver{}
	q.cq.forget(q)
	return errors.Join(errs...)
}
