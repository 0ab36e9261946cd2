package reliable

import (
	"slices"

	"ibverbx/verbs"
)

// pd is a protection domain. The lock of the context guards it.
type pd struct {
	ctx     *pathContext
	inner   verbs.PD
	engines []*engine // run its QPs; the first QP makes the first of them
	regions regions   // the open regions, of which every engine has a copy
	dmaBufs bool      // reports that a dma-buf was registered
	closed  bool      // set when the PD is closed
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

// CreateSRQ implements verbs.PD. It fails: a wrapped QP has a receive queue of its own.
func (p *pd) CreateSRQ(verbs.SRQConfig) (verbs.SRQ, error) {
	p.ctx.mu.Lock()
	defer p.ctx.mu.Unlock()
	err := verbs.ErrNotSupported
	if p.closed || p.ctx.closed.Load() {
		err = verbs.ErrClosed
	}
	return nil, p.ctx.opError("create SRQ", 0, err)
}

func (p *pd) CreateAH(attr verbs.AHAttr) (verbs.AH, error) { return p.inner.CreateAH(attr) }

func (p *pd) Close() error {
	p.ctx.mu.Lock()
	defer p.ctx.mu.Unlock()
	if p.closed {
		return nil
	}
	if slices.ContainsFunc(p.engines, func(e *engine) bool { return e.hub.users > 0 }) {
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

// engineOf returns the engine for a QP. The first QP makes it.
func (p *pd) engineOf() (*engine, error) {
	if len(p.engines) > 0 {
		return p.engines[0], nil
	}
	e, err := newEngine(p)
	if err == nil {
		p.engines = append(p.engines, e)
	}
	return e, err
}
