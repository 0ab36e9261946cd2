package reliable

import (
	"slices"
	"sync/atomic"

	"ibverbx/verbs"
)

// pd is a protection domain, guarded by the context's lock.
type pd struct {
	ctx     *pathContext
	inner   verbs.PD
	engines []*engine    // at most maxEngines; see engineOf
	regions regions      // the open regions; every engine has a copy
	dmaBufs bool         // set once a dma-buf is registered
	recvs   atomic.Int64 // counts the receive buffers of the engines
	srqs    int          // counts the user's SRQs
	closed  bool         // set when the PD is closed
}

var _ verbs.PD = (*pd)(nil)

func (ctx *pathContext) AllocPD() (verbs.PD, error) {
	inner, err := ctx.inner.AllocPD()
	if err != nil {
		return nil, err
	}
	p := &pd{ctx: ctx, inner: inner}
	ctx.mu.Lock()
	defer ctx.mu.Unlock()
	ctx.pds = append(ctx.pds, p)
	return p, nil
}

func (p *pd) CreateAH(attr verbs.AHAttr) (verbs.AH, error) { return p.inner.CreateAH(attr) }

func (p *pd) Close() error {
	p.ctx.mu.Lock()
	defer p.ctx.mu.Unlock()
	if p.closed {
		return nil
	}
	if p.srqs > 0 || slices.ContainsFunc(p.engines, func(e *engine) bool { return e.resources.qps > 0 }) {
		return p.ctx.opError("close PD", 0, verbs.ErrBusy)
	}
	if err := p.inner.Close(); err != nil {
		return err
	}
	p.free()
	return nil
}

// free closes the engines and removes the PD from its context.
func (p *pd) free() {
	for _, e := range p.engines {
		e.close()
		p.ctx.doorbells.add(&e.doorbells)
		p.ctx.closedStats.Add(&e.closedStats)
	}
	p.closed = true
	p.ctx.pds = slices.DeleteFunc(p.ctx.pds, func(o *pd) bool { return o == p })
}

// each calls f for every engine, which is locked. The context is locked.
func (p *pd) each(f func(*engine)) {
	for _, e := range p.engines {
		e.mu.Lock()
		f(e)
		e.mu.Unlock()
	}
}

// maxEngines is the maximum number of engines per PD, as in UCCL per NIC. Each costs receive buffers, QPs
// and a CQ.
const maxEngines = 4

// engineOf returns the engine for a QP. QPs with the same send CQ share an engine, because the
// goroutine that polls the CQ drives the engine. Each further CQ gets a separate engine, up to the limit,
// and then the engine with the fewest QPs. All QPs of an SRQ share an engine. Sealed and plain QPs do not.
func (p *pd) engineOf(cfg *verbs.QPConfig, send *cq, s *srq) (*engine, error) {
	if s != nil && s.engine.Load() != nil {
		return p.prepare(s.engine.Load(), cfg)
	}
	var busy, idle *engine // the one with the fewest QPs, and one without any
	for _, e := range p.engines {
		switch {
		case e.resources.qps == 0:
			idle = e
		case !e.resources.suits(cfg):
		case send.isUsedBy(e):
			return e, nil
		case busy == nil || e.resources.qps < busy.resources.qps:
			busy = e
		}
	}
	if idle == nil && busy != nil && len(p.engines) >= p.ctx.maxEngines {
		return busy, nil
	}
	e, err := p.prepare(idle, cfg)
	if err != nil && busy != nil {
		return busy, nil // memory or QPs are exhausted
	}
	return e, err
}

// prepare prepares an idle engine, or a new one if e is nil, for its first QP.
func (p *pd) prepare(e *engine, cfg *verbs.QPConfig) (_ *engine, err error) {
	if e == nil {
		if e, err = newEngine(p); err != nil {
			return nil, err
		}
		p.engines = append(p.engines, e)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e, e.resources.prepare(cfg)
}
