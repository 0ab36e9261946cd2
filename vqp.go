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
	// all are the lanes: those that carry data first (lanes), then the message lane and,
	// with Spray, the notify lane.
	all, lanes              []*lane
	messageLane, notifyLane *lane
	scheme                  notifier
	// direct says that the only lane passes everything through.
	direct bool
	state  qpState
	err    error

	sendRing
	inline []byte // MaxInline bytes for every slot of the send ring
	// open counts requests that were handed over and have not ended, data and messages.
	open [2]int
	receiver

	remoteRails int    // rails of the peer, by which its keys are counted
	maxMsg      uint32 // bytes of a fragment at the most
	mtu         uint32 // the smallest of the rails

	cursor  int     // lane that round robin looks at next
	staged  []*lane // lanes with requests that wait for the doorbell
	touched bool    // in VirtualCQ.touched
	// brokenLane cannot be used any more, for brokenErr; dispatch ends the VirtualQP.
	brokenLane *lane
	brokenErr  error

	counted struct {
		posted, completed, recvPosted, recvCompleted uint64
		highWater                                    int
	}

	batch     []verbs.SendWR
	recvBatch []verbs.RecvWR
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
		direct: cfg.Lanes == 1 && !cfg.Track, batch: make([]verbs.SendWR, chainMax), recvBatch: make([]verbs.RecvWR, chainMax),
	}
	q.maxMsg, q.mtu = maxFragment, 4096
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

// build makes the lanes and takes them to INIT, with the engine's receives posted.
func (q *VirtualQP) build() error {
	total, recvs := q.cfg.Lanes, q.cfg.NotifyDepth
	if q.direct {
		recvs = q.cfg.RecvDepth
	} else {
		var err error
		if q.scheme, err = q.newNotifier(); err != nil {
			return err
		}
		total = q.cfg.Lanes + 1
		if q.cfg.Scheme == Spray {
			total++
		}
	}
	for i := range total {
		n := recvs
		if i == q.cfg.Lanes {
			n = q.cfg.RecvDepth // the message lane holds the user's receives
		}
		rail := i % q.rails.Len()
		if i == q.cfg.Lanes {
			rail = 0 // the same for all VirtualQPs: atomics of two NICs are not atomic together
		}
		if err := q.addLane(i, rail, n); err != nil {
			return fmt.Errorf("lane %d: %w", i, err)
		}
	}
	q.lanes = q.all[:q.cfg.Lanes]
	if !q.direct {
		q.messageLane = q.all[q.cfg.Lanes]
	}
	if total > q.cfg.Lanes+1 {
		q.notifyLane = q.all[q.cfg.Lanes+1]
	}
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
	return q.replenish(l)
}

// addLane makes a lane, books its completions and routes them to it.
func (q *VirtualQP) addLane(index, rail, recvs int) error {
	if err := q.cq.reserve(rail, q.cfg.LaneDepth+recvs); err != nil {
		return err
	}
	l, err := newLane(q, index, rail, recvs)
	if err != nil {
		q.cq.release(rail, q.cfg.LaneDepth+recvs)
		return err
	}
	q.all = append(q.all, l)
	q.cq.routes[rail].add(l)
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
	for _, l := range q.all {
		rail := int(l.rail)
		errs = append(errs, l.qp.Close())
		q.cq.routes[rail].rebuild(l)
		q.cq.release(rail, q.cfg.LaneDepth+int(l.recvDepth))
	}
	if q.scheme != nil && q.state != stateClosed {
		errs = append(errs, q.scheme.close())
	}
	q.all, q.lanes, q.state = nil, nil, stateClosed
	q.reported, q.dispatched, q.posted = 0, 0, 0
	q.receiver = receiver{}
	if q.touched {
		q.cq.forget(q)
	}
	return errors.Join(errs...)
}
