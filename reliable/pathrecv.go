package reliable

import (
	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// Where UC QPs cannot use a shared receive queue each path has receives of its own, Config.PathRecv
// of them. The peer is told of three quarters, an equal part for each path, and keeps to it
// path by path. Their buffers belong to the path for good: a path that comes back takes them
// along, and what its former QP received is not looked at any more.

// pathShare is how many receive buffers a link has, and needs, if its paths have their own.
func (cfg *Config) pathShare() int { return cfg.Paths * cfg.PathRecv }

// quota is how many receive buffers of the PD a link needs at the least.
func (d *device) quota() int {
	if d.shared {
		return minShare
	}
	return d.cfg.pathShare()
}

// makeReceives makes the receive buffers of the paths.
func (l *link) makeReceives() (err error) {
	d := l.ctx
	if d.shared {
		return nil
	}
	l.share = d.cfg.Paths * advertised(d.cfg.PathRecv)
	for i := range l.paths {
		l.paths[i].refill = make([]verbs.RecvWR, 0, d.cfg.PathRecv)
	}
	l.arrival, err = newPool(l.pd.inner, d.cfg.pathShare(), d.arrivalSize())
	return err
}

// openReceives takes the QP of path i to INIT and posts all of its receives.
func (l *link) openReceives(i int, attr *verbs.QPAttr) error {
	p := &l.paths[i]
	if l.ctx.shared || p.qp.State() != verbs.StateReset {
		return nil
	}
	init := verbs.QPAttr{State: verbs.StateInit, Port: attr.Port, PKeyIndex: attr.PKeyIndex, Access: attr.Access}
	if err := p.qp.Modify(init, verbs.AttrState|verbs.AttrPort|verbs.AttrPKeyIndex|verbs.AttrAccess); err != nil {
		return err
	}
	p.refill = p.refill[:0]
	for k := range l.ctx.cfg.PathRecv {
		l.recyclePath(i, k)
	}
	l.topUpPath(i)
	if len(p.refill) != 0 {
		return l.ctx.opError("post receive", p.qp.Num(), verbs.ErrQueueFull)
	}
	return nil
}

// recyclePath notes that receive buffer k of path i is free.
func (l *link) recyclePath(i, k int) {
	wr := verbs.RecvWR{WRID: tagPathRecv.with(l.id, i, uint32(k)), NumSGE: 1}
	wr.SGE[0] = l.arrival.sge(i*l.ctx.cfg.PathRecv+k, l.arrival.size)
	p := &l.paths[i]
	p.refill = append(p.refill, wr)
}

// topUpPath posts the free receive buffers of path i, all in one chain.
func (l *link) topUpPath(i int) {
	p := &l.paths[i]
	n, _ := p.qp.PostRecv(p.refill) // what is refused is posted the next time
	p.refill = p.refill[:copy(p.refill, p.refill[n:])]
}

// refillPaths posts the receives of every path that has used some.
func (l *link) refillPaths() {
	low := max(l.ctx.cfg.PathRecv/4, 1)
	for i := range l.paths {
		if p := &l.paths[i]; p.qp != nil && len(p.refill) >= low {
			l.topUpPath(i)
		}
	}
}

// arrivedOn takes a message in receive buffer k of path i.
func (l *link) arrivedOn(i int, k uint32, wc *verbs.WC) {
	if i >= len(l.paths) || int(k) >= l.ctx.cfg.PathRecv {
		return
	}
	p := &l.paths[i]
	if p.qp == nil || wc.QPN != p.qp.Num() {
		return // of an epoch that is over: the buffer is posted anew
	}
	if wc.Status != verbs.StatusSuccess {
		l.ev = core.Event{Kind: core.EvPathFailed, Path: uint16(i), Epoch: p.epoch}
		l.step(&l.ev)
		return
	}
	if l.conn != nil {
		l.take1(i, wc, l.arrival.slot(i*l.ctx.cfg.PathRecv+int(k)))
	}
	if p.qp != nil && wc.QPN == p.qp.Num() { // it may have been taken out of service
		l.recyclePath(i, int(k))
		l.touch()
	}
}
