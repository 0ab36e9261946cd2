package reliable

import (
	"slices"

	"ibverbx/internal/table"
	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// pd is a protection domain with the parts that its connections share: receive buffers, in an SRQ if
// UC QPs can use one, and two control QPs. prepare makes these parts with the first QP, release frees
// them with the last.
type pd struct {
	ctx    *pathContext
	engine *engine // runs the connections
	inner  verbs.PD
	byLKey table.Table[*region] // the open regions, by local key
	byRKey table.Table[*region] // the open regions, by remote key
	recent *region              // the region that was last found by its local key, or nil
	users  int                  // counts the RC QPs
	shares int                  // counts the connections, which share the receive buffers
	closed bool                 // set when the PD is closed

	id      uint32         // the number of the PD in tags; every prepare gives it a new one
	ready   bool           // reports that prepare has succeeded: the fields below are valid
	srq     verbs.SRQ      // takes the messages of all paths, nil if UC QPs cannot use one
	arrival pool           // has the receive buffers of srq
	refill  refill         // lists the buffers of arrival that wait to be posted
	control [2]controlQP   // the control QPs
	copier  copier         // places chunks in dma-bufs, unused as long as dmaBufs is not set
	first   verbs.QPConfig // has the port, the GID and the path of the first QP

	dmaBufs bool // reports that a dma-buf was registered
}

var _ verbs.PD = (*pd)(nil)

func (ctx *pathContext) AllocPD() (verbs.PD, error) {
	inner, err := ctx.inner.AllocPD()
	if err != nil {
		return nil, err
	}
	e := ctx.engine
	p := &pd{ctx: ctx, engine: e, inner: inner}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pds = append(e.pds, p)
	return p, nil
}

// CreateSRQ implements verbs.PD. It fails: a wrapped QP has a receive queue of its own.
func (p *pd) CreateSRQ(verbs.SRQConfig) (verbs.SRQ, error) {
	p.engine.mu.Lock()
	defer p.engine.mu.Unlock()
	err := verbs.ErrNotSupported
	if p.closed || p.engine.closed {
		err = verbs.ErrClosed
	}
	return nil, p.ctx.opError("create SRQ", 0, err)
}

func (p *pd) CreateAH(attr verbs.AHAttr) (verbs.AH, error) { return p.inner.CreateAH(attr) }

func (p *pd) Close() error {
	p.engine.mu.Lock()
	defer p.engine.mu.Unlock()
	if p.closed {
		return nil
	}
	if p.users > 0 {
		return p.ctx.opError("close PD", 0, verbs.ErrBusy)
	}
	if err := p.inner.Close(); err != nil {
		return err
	}
	p.free()
	return nil
}

// free removes the PD from its context.
func (p *pd) free() {
	p.release()
	p.closed = true
	p.engine.pds = slices.DeleteFunc(p.engine.pds, func(o *pd) bool { return o == p })
}

// prepare makes the shared parts unless they exist. The control QPs have the port and the path of the
// first QP.
func (p *pd) prepare(cfg *verbs.QPConfig) error {
	if p.ready {
		return nil
	}
	p.engine.pdsPrepared++
	p.id = p.engine.pdsPrepared & maxConn
	err := p.makeReceives()
	for i := range p.control {
		if err == nil {
			err = p.control[i].open(p, i, cfg)
		}
	}
	p.first = verbs.QPConfig{Port: cfg.Port, GID: cfg.GID, Path: cfg.Path}
	if err == nil && p.dmaBufs {
		err = p.copier.open(p)
	}
	if err != nil {
		p.release()
		return err
	}
	p.ready = true
	return nil
}

// makeReceives makes the shared receive queue and fills it, if UC QPs can use one.
func (p *pd) makeReceives() error {
	if !p.ctx.sharedRecv {
		return nil
	}
	n := p.ctx.cfg.RecvDepth
	srq, err := p.inner.CreateSRQ(verbs.SRQConfig{MaxWR: n, MaxSGE: 1})
	if err != nil {
		return err
	}
	p.srq = srq
	if p.arrival, err = newPool(p.inner, n, p.ctx.arrivalSize()); err != nil {
		return err
	}
	for i := range n {
		p.recycle(i)
	}
	p.refill.post(p.srq)
	return nil
}

// arrivalSize is the length of a receive buffer in bytes.
func (ctx *pathContext) arrivalSize() int {
	return max(ctx.cfg.ChunkBytes, wire.FetchLen) + wire.HeaderLen
}

// release frees the shared parts. No QP uses them any more.
func (p *pd) release() {
	for i := range p.control {
		p.control[i].close()
	}
	p.copier.close()
	if p.srq != nil {
		_ = p.srq.Close() // no QP uses it
		p.srq = nil
	}
	p.arrival.free()
	p.refill, p.ready = nil, false
}

// divide shares the receive buffers among the connections. A peer whose share has become smaller is
// told at once, before a new connection uses the rest.
func (p *pd) divide() {
	if p.shares == 0 || !p.ctx.sharedRecv {
		return
	}
	share := advertised(p.ctx.cfg.RecvDepth / p.shares)
	for _, c := range p.engine.conns {
		if c != nil && c.pd == p {
			c.share = share
			if c.core != nil {
				c.step(&core.Event{Kind: core.EvCredit, Count: share})
			}
		}
	}
}

// topUp posts free receive buffers, where enough of them are free.
func (p *pd) topUp() {
	if len(p.refill) >= lowWater(p.ctx.cfg.RecvDepth) {
		p.engine.doorbells.refilled(p.refill.post(p.srq))
	}
	for i := range p.control {
		p.control[i].topUp()
	}
}

// ringControls rings the doorbells of the control QPs.
func (p *pd) ringControls() {
	for i := range p.control {
		p.control[i].ring()
	}
}

// arrived takes a message in a receive buffer of the SRQ.
func (p *pd) arrived(slot uint32, wc *verbs.WC) {
	if path := p.engine.routes.Find(wc.QPN).path; path != nil {
		path.receive(wc, p.arrival.slot(int(slot)))
	}
	p.recycle(int(slot))
}

// recycle marks receive buffer i as free.
func (p *pd) recycle(i int) { p.refill.add(tagArrival.with(p.id, 0, uint32(i)), &p.arrival, i) }
