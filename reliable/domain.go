package reliable

import (
	"fmt"
	"slices"

	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// domain is a protection domain with what its wrapped QPs share: receive buffers in one SRQ,
// if UC QPs can use one, and two control QPs. They are made with the first QP and freed with the last.
type domain struct {
	ctx    *device
	inner  verbs.PD
	byLKey keys
	byRKey keys
	recent *region // the last one found by lkey
	users  int     // links
	open   *link   // that takes the next QP, or nil
	closed bool

	id      uint32 // new with each prepare
	ready   bool   // what follows is there
	srq     verbs.SRQ
	arrival pool // bytes of chunks
	refill  []verbs.RecvWR
	control [2]controlQP
}

// pool is registered memory in slots of equal size.
type pool struct {
	mem  *verbs.Memory
	mr   verbs.MR
	size int
}

func newPool(pd verbs.PD, n, size int) (pool, error) {
	mem, err := verbs.AllocMemory(n*size, nil)
	if err != nil {
		return pool{}, err
	}
	mr, err := pd.RegisterMemory(mem, verbs.AccessLocalWrite)
	if err != nil {
		return pool{}, fmt.Errorf("%w (and %w)", err, mem.Free())
	}
	return pool{mem: mem, mr: mr, size: size}, nil
}

func (p *pool) slot(i int) []byte { return p.mem.Bytes()[i*p.size : (i+1)*p.size] }

func (p *pool) sge(i, n int) verbs.SGE {
	return verbs.SGE{Addr: p.mr.Addr() + uint64(i*p.size), Length: uint32(n), LKey: p.mr.LKey()}
}

func (p *pool) free() {
	if p.mr == nil {
		return
	}
	if p.mr.Close() == nil {
		_ = p.mem.Free() // it was registered here only
	}
	*p = pool{}
}

var _ verbs.PD = (*domain)(nil)

// AllocPD implements verbs.Context.
func (d *device) AllocPD() (verbs.PD, error) {
	inner, err := d.inner.AllocPD()
	if err != nil {
		return nil, err
	}
	p := &domain{ctx: d, inner: inner}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.domains = append(d.domains, p)
	return p, nil
}

// RegisterMemory implements verbs.PD.
func (p *domain) RegisterMemory(m *verbs.Memory, access verbs.Access) (verbs.MR, error) {
	mr, err := p.inner.RegisterMemory(m, access)
	if err != nil {
		return nil, err
	}
	r := &region{MR: mr, pd: p, access: access, mem: m, lkey: mr.LKey()}
	p.ctx.mu.Lock()
	defer p.ctx.mu.Unlock()
	p.byLKey.add(mr.LKey(), r)
	p.byRKey.add(mr.RKey(), r)
	return r, nil
}

// RegisterDMABuf implements verbs.PD: what is repeated is copied by the CPU, which cannot
// reach a dma-buf.
func (p *domain) RegisterDMABuf(int, uint64, uint64, uint64, verbs.Access) (verbs.MR, error) {
	return nil, p.ctx.opError("register dma-buf", 0, p.unsupported())
}

// CreateSRQ implements verbs.PD: a wrapped QP has a receive queue of its own.
func (p *domain) CreateSRQ(verbs.SRQConfig) (verbs.SRQ, error) {
	return nil, p.ctx.opError("create SRQ", 0, p.unsupported())
}

// unsupported is why something cannot be done: because nothing can, or because this cannot.
func (p *domain) unsupported() error {
	p.ctx.mu.Lock()
	defer p.ctx.mu.Unlock()
	if p.closed || p.ctx.closed {
		return verbs.ErrClosed
	}
	return verbs.ErrNotSupported
}

// CreateAH implements verbs.PD.
func (p *domain) CreateAH(attr verbs.AHAttr) (verbs.AH, error) { return p.inner.CreateAH(attr) }

// Close implements verbs.PD.
func (p *domain) Close() error {
	p.ctx.mu.Lock()
	defer p.ctx.mu.Unlock()
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

// free takes the domain out of its device.
func (p *domain) free() {
	p.release()
	p.closed = true
	p.ctx.domains = slices.DeleteFunc(p.ctx.domains, func(o *domain) bool { return o == p })
}

// prepare makes what QPs share, if it is not there.
func (p *domain) prepare() error {
	if p.ready {
		return nil
	}
	p.ctx.prepared++
	p.id = p.ctx.prepared & maxConn
	if err := p.makeReceives(); err != nil {
		p.release()
		return err
	}
	for i := range p.control {
		if err := p.control[i].open(p, i); err != nil {
			p.release()
			return err
		}
	}
	p.ready = true
	return nil
}

// makeReceives makes the shared receive queue and fills it, if UC QPs can use one.
func (p *domain) makeReceives() (err error) {
	if !p.ctx.shared {
		return nil
	}
	n := p.ctx.cfg.RecvDepth
	if p.srq, err = p.inner.CreateSRQ(verbs.SRQConfig{MaxWR: n, MaxSGE: 1}); err != nil {
		p.srq = nil
		return err
	}
	if p.arrival, err = newPool(p.inner, n, p.ctx.arrivalSize()); err != nil {
		return err
	}
	for i := range n {
		p.recycle(i)
	}
	p.topUp()
	return nil
}

// arrivalSize is how long a receive buffer is.
func (d *device) arrivalSize() int { return d.cfg.ChunkBytes + wire.HeaderLen }

// release undoes prepare.
func (p *domain) release() {
	for i := range p.control {
		p.control[i].close()
	}
	if p.srq != nil {
		_ = p.srq.Close() // its QPs are closed
		p.srq = nil
	}
	p.arrival.free()
	p.refill, p.ready = nil, false
}

// divide shares the receive buffers among the links. Each tells its peer of its part: at once if
// that has become smaller, so that peers know before a new QP is connected.
func (p *domain) divide() {
	if p.users == 0 || !p.ctx.shared {
		return
	}
	share := advertised(p.ctx.cfg.RecvDepth / p.users)
	for _, l := range p.ctx.links {
		if l != nil && l.pd == p {
			l.share = share
			if l.conn != nil {
				l.step(&core.Event{Kind: core.EvCredit, Count: share})
			}
		}
	}
}

// domain returns the domain of an id, or nil if it is gone.
func (d *device) domain(id uint32) *domain {
	for _, p := range d.domains {
		if p.id == id && p.ready {
			return p
		}
	}
	return nil
}

// recycle notes that receive buffer i is free.
func (p *domain) recycle(i int) {
	wr := verbs.RecvWR{WRID: tagArrival.with(p.id, 0, uint32(i)), NumSGE: 1}
	wr.SGE[0] = p.arrival.sge(i, p.arrival.size)
	p.refill = append(p.refill, wr)
}

// topUp posts free receive buffers, all in one chain.
func (p *domain) topUp() {
	if len(p.refill) == 0 || p.srq == nil {
		return
	}
	n, _ := p.srq.PostRecv(p.refill) // what is refused is posted the next time
	p.refill = p.refill[:copy(p.refill, p.refill[n:])]
}

// controlQP is a UD QP for control packets.
type controlQP struct {
	pd    *domain
	index int
	qp    verbs.QP
	in    pool
	out   pool
	// free lists slots of out that no request uses.
	free []uint32
	send [1]verbs.SendWR
	recv [1]verbs.RecvWR
}

const (
	controlRecvs = 256
	controlSends = 128
)

func (c *controlQP) open(p *domain, index int) error {
	c.pd, c.index = p, index
	qp, err := p.inner.CreateQP(verbs.QPConfig{
		Type: verbs.UD, SendCQ: p.ctx.cq, RecvCQ: p.ctx.cq, MaxSendWR: controlSends, MaxRecvWR: controlRecvs,
	})
	if err != nil {
		return err
	}
	c.qp = qp
	if c.in, err = newPool(p.inner, controlRecvs, verbs.GRHLen+wire.MaxControlLen); err != nil {
		return err
	}
	if c.out, err = newPool(p.inner, controlSends, wire.MaxControlLen); err != nil {
		return err
	}
	if err := qp.Connect(verbs.Endpoint{}); err != nil {
		return err
	}
	for i := range controlRecvs {
		c.post(uint32(i))
	}
	c.free = c.free[:0]
	for i := range controlSends {
		c.free = append(c.free, uint32(i))
	}
	p.ctx.routes.add(routeSlot{qpn: qp.Num(), control: c})
	return nil
}

// post posts receive buffer i.
func (c *controlQP) post(i uint32) {
	c.recv[0] = verbs.RecvWR{WRID: tagControlRecv.with(0, 0, i), NumSGE: 1}
	c.recv[0].SGE[0] = c.in.sge(int(i), c.in.size)
	_, _ = c.qp.PostRecv(c.recv[:]) // the queue has room for all
}

func (c *controlQP) close() {
	if c.qp != nil {
		c.pd.ctx.routes.remove(c.qp.Num())
		_ = c.qp.Close() // nothing stands on it
		c.qp = nil
	}
	c.in.free()
	c.out.free()
}
