package reliable

import (
	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// Endpoint implements verbs.QP: that of the side QP, with all the rest in Extra.
func (q *qp) Endpoint() (verbs.Endpoint, error) {
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	if q.closed {
		return verbs.Endpoint{}, q.opError("query endpoint", verbs.ErrClosed)
	}
	ep, err := q.side.Endpoint()
	if err != nil {
		return ep, err
	}
	c := card{window: q.ctx.cfg.Window, credit: q.share, chunk: uint32(q.ctx.cfg.ChunkBytes), conn: q.id}
	for i := range c.control {
		c.control[i] = q.pd.control[i].qp.Num()
	}
	for i := range q.paths {
		if q.paths[i].qp == nil {
			return ep, q.opError("query endpoint", verbs.ErrState)
		}
		pe, err := q.paths[i].qp.Endpoint()
		if err != nil {
			return ep, err
		}
		c.paths = append(c.paths, pathAddr{pe.QPN, pe.PSN})
	}
	ep.Extra = c.encode()
	return ep, nil
}

// Connect implements verbs.QP.
func (q *qp) Connect(remote verbs.Endpoint) error {
	if err := remote.Validate(); err != nil {
		return q.opError("connect QP", err)
	}
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	if q.closed {
		return q.opError("connect QP", verbs.ErrClosed)
	}
	if q.state != verbs.StateReset && q.state != verbs.StateInit {
		return q.opError("connect QP", verbs.ErrState)
	}
	peer, err := decodeCard(remote.Extra, &q.ctx.cfg)
	if err != nil {
		return q.opError("connect QP", err)
	}
	return q.plug(peer, remote)
}

// plug connects all parts to those of the peer.
func (q *qp) plug(peer *card, remote verbs.Endpoint) error {
	d := q.ctx
	d.now = d.clock()
	remote.Extra = nil
	q.peer, q.remote = peer, remote
	attr, err := q.addressVector()
	if err != nil {
		return err
	}
	if q.ah, err = q.pd.inner.CreateAH(attr); err != nil {
		return err
	}
	if err := q.side.Connect(remote); err != nil {
		return err
	}
	for i, a := range peer.paths {
		if err := q.join(i, a); err != nil {
			return err
		}
	}
	q.conn, err = core.New(d.cfg.core(q.cfg.MaxSendWR, q.share, peer.credit))
	if err != nil {
		return q.opError("connect QP", err)
	}
	d.live = append(d.live, q)
	q.state = verbs.StateRTS
	if n := int(q.recvTail - q.recvHead); n > 0 {
		q.step(&core.Event{Kind: core.EvReceives, Count: n})
	}
	d.flush()
	return nil
}

// addressVector returns the way to the peer's port, as the side QP would take it.
func (q *qp) addressVector() (verbs.AHAttr, error) {
	local, err := q.side.Endpoint()
	if err != nil {
		return verbs.AHAttr{}, err
	}
	port := max(q.cfg.Port, 1)
	index, err := q.ctx.gidIndex(int(port), local.GID)
	if err != nil {
		return verbs.AHAttr{}, err
	}
	return verbs.ConnectAttr(local, q.remote, port, index).AH, nil
}

// gidIndex returns the row of a GID in a port's table.
func (d *device) gidIndex(port int, gid verbs.GID) (int, error) {
	attr, err := d.inner.QueryPort(port)
	if err != nil {
		return 0, err
	}
	for i := range attr.GIDs {
		if e, err := d.inner.QueryGID(port, i); err == nil && e.GID == gid {
			return i, nil
		}
	}
	return 0, d.opError("find GID", 0, verbs.ErrNotFound)
}

// join connects the QP of path i.
func (q *qp) join(i int, a pathAddr) error {
	ep := q.remote
	ep.QPN, ep.PSN = a.qpn, a.psn
	return q.paths[i].qp.Connect(ep)
}

// Modify implements verbs.QP, as far as it can be done without the peer: to INIT, ERR and
// RESET.
func (q *qp) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	if q.closed {
		return q.opError("modify QP", verbs.ErrClosed)
	}
	if mask&verbs.AttrCurState != 0 && attr.CurState != q.state {
		return q.opError("modify QP", verbs.ErrState)
	}
	to := q.state
	if mask&verbs.AttrState != 0 {
		to = attr.State
	}
	if err := verbs.CheckTransition(verbs.RC, q.state, to, mask); err != nil {
		return q.opError("modify QP", err)
	}
	switch to {
	case verbs.StateInit:
		if err := q.side.Modify(attr, mask); err != nil {
			return err
		}
		q.state = verbs.StateInit
	case verbs.StateErr:
		q.ctx.now = q.ctx.clock()
		q.fail()
		q.ctx.flush()
	case verbs.StateReset:
		return q.reset()
	default:
		return q.opError("modify QP", verbs.ErrNotSupported)
	}
	return nil
}

// reset makes the QP as new, with new paths.
func (q *qp) reset() error {
	q.unplug()
	q.sendCQ.discard(q.num)
	q.recvCQ.discard(q.num)
	q.sendHead, q.sendTail, q.recvHead, q.recvTail = 0, 0, 0, 0
	q.queue, q.faultLocal, q.state = q.queue[:0], 0, verbs.StateReset
	if err := q.side.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState); err != nil {
		return err
	}
	for i := range q.paths {
		q.dropPath(i)
		if err := q.makePath(i, 0); err != nil {
			return err
		}
	}
	return nil
}

// Query implements verbs.QP.
func (q *qp) Query() (verbs.QPAttr, error) {
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	if q.closed {
		return verbs.QPAttr{}, q.opError("query QP", verbs.ErrClosed)
	}
	a, err := q.side.Query()
	a.State, a.CurState = q.state, q.state
	return a, err
}
