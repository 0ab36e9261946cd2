package reliable

import (
	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// Where UC QPs cannot use a shared receive queue each path has receives of its own, Config.PathRecv
// of them. The peer is told of three quarters, an equal part for each path, and keeps to it
// path by path. Their buffers belong to the path for good: a path that comes back takes them
// along, and what its former QP received is not looked at any more.

// pathShare is how many receive buffers a QP has, and needs, if its paths have their own.
func (cfg *Config) pathShare() int { return cfg.Paths * cfg.PathRecv }

// quota is how many receive buffers of the PD a QP needs at the least.
func (d *device) quota() int {
	if d.shared {
		return minShare
	}
	return d.cfg.pathShare()
}

// makeReceives makes the receive buffers of the QP's paths.
func (q *qp) makeReceives() (err error) {
	d := q.ctx
	if d.shared {
		return nil
	}
	q.share = d.cfg.Paths * advertised(d.cfg.PathRecv)
	for i := range q.paths {
		q.paths[i].refill = make([]verbs.RecvWR, 0, d.cfg.PathRecv)
	}
	q.arrival, err = newPool(q.pd.inner, d.cfg.pathShare(), d.arrivalSize())
	return err
}

// openReceives takes the QP of path i to INIT and posts all of its receives.
func (q *qp) openReceives(i int, attr *verbs.QPAttr) error {
	p := &q.paths[i]
	if q.ctx.shared || p.qp.State() != verbs.StateReset {
		return nil
	}
	init := verbs.QPAttr{State: verbs.StateInit, Port: attr.Port, PKeyIndex: attr.PKeyIndex, Access: attr.Access}
	if err := p.qp.Modify(init, verbs.AttrState|verbs.AttrPort|verbs.AttrPKeyIndex|verbs.AttrAccess); err != nil {
		return err
	}
	p.refill = p.refill[:0]
	for k := range q.ctx.cfg.PathRecv {
		q.recyclePath(i, k)
	}
	q.topUpPath(i)
	if len(p.refill) != 0 {
		return q.opError("post receive", verbs.ErrQueueFull)
	}
	return nil
}

// recyclePath notes that receive buffer k of path i is free.
func (q *qp) recyclePath(i, k int) {
	wr := verbs.RecvWR{WRID: tagPathRecv.with(q.id, i, uint32(k)), NumSGE: 1}
	wr.SGE[0] = q.arrival.sge(i*q.ctx.cfg.PathRecv+k, q.arrival.size)
	p := &q.paths[i]
	p.refill = append(p.refill, wr)
}

// topUpPath posts the free receive buffers of path i, all in one chain.
func (q *qp) topUpPath(i int) {
	p := &q.paths[i]
	n, _ := p.qp.PostRecv(p.refill) // what is refused is posted the next time
	p.refill = p.refill[:copy(p.refill, p.refill[n:])]
}

// refillPaths posts the receives of every path that has used some.
func (q *qp) refillPaths() {
	low := max(q.ctx.cfg.PathRecv/4, 1)
	for i := range q.paths {
		if p := &q.paths[i]; p.qp != nil && len(p.refill) >= low {
			q.topUpPath(i)
		}
	}
}

// arrivedOn takes a message in receive buffer k of path i.
func (q *qp) arrivedOn(i int, k uint32, wc *verbs.WC) {
	if i >= len(q.paths) || int(k) >= q.ctx.cfg.PathRecv {
		return
	}
	p := &q.paths[i]
	if p.qp == nil || wc.QPN != p.qp.Num() {
		return // of an epoch that is over: the buffer is posted anew
	}
	if wc.Status != verbs.StatusSuccess {
		q.ev = core.Event{Kind: core.EvPathFailed, Path: uint16(i), Epoch: p.epoch}
		q.step(&q.ev)
		return
	}
	if q.conn != nil {
		q.take1(i, wc, q.arrival.slot(i*q.ctx.cfg.PathRecv+int(k)))
	}
	if p.qp != nil && wc.QPN == p.qp.Num() { // it may have been taken out of service
		q.recyclePath(i, int(k))
		q.touch()
	}
}
