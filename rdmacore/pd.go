//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"errors"
	"syscall"

	"ibverbx/verbs"
)

// pd is a protection domain. Its fields are guarded by the lock of the context.
type pd struct {
	ctx    *nicContext
	h      handle
	closed bool
	users  int // objects that use it, including ones being created
	mrs    set[*mr]
	qps    set[*qp]
	srqs   set[*srq]
	ahs    set[*ah]
}

var _ verbs.PD = (*pd)(nil)

// create runs make and counts one more user of the PD. If make fails, the count is undone.
func (d *pd) create(op string, make func() error) error {
	return d.ctx.do(op, func() error {
		d.ctx.mu.Lock()
		closed := d.closed
		if !closed {
			d.users++
		}
		d.ctx.mu.Unlock()
		if closed {
			return verbs.ErrClosed
		}
		err := make()
		if err != nil {
			d.ctx.mu.Lock()
			d.users--
			d.ctx.mu.Unlock()
		}
		return err
	})
}

// dropFrom removes an object from a set of the PD. The lock of the context is held.
func dropFrom[T comparable](d *pd, s set[T], v T) {
	delete(s, v)
	d.users--
}

func (d *pd) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	return withResult(d.create, "create QP", func() (verbs.QP, error) { return d.createQP(cfg) })
}

func (d *pd) CreateSRQ(cfg verbs.SRQConfig) (verbs.SRQ, error) {
	return withResult(d.create, "create SRQ", func() (verbs.SRQ, error) { return d.createSRQ(cfg) })
}

func (d *pd) CreateAH(attr verbs.AHAttr) (verbs.AH, error) {
	return withResult(d.create, "create AH", func() (verbs.AH, error) { return d.createAH(attr) })
}

func (d *pd) Close() error {
	return ignoreClosed(d.ctx.do("close PD", d.destroy))
}

// ignoreClosed makes Close idempotent, even for objects closed with their context.
func ignoreClosed(err error) error {
	if errors.Is(err, verbs.ErrClosed) {
		return nil
	}
	return err
}

func (d *pd) destroy() error {
	x := d.ctx
	return x.destroyObject(&d.closed, &d.users, "objects", func() syscall.Errno { return x.destroyed(cDeallocPD(x.lib, d.h)) }, func() { delete(x.pds, d) })
}

// destroyContents destroys the objects that use the PD, when the context is closed.
func (d *pd) destroyContents() error {
	var errs []error
	for q := range d.qps {
		errs = append(errs, q.destroy())
	}
	for s := range d.srqs {
		errs = append(errs, s.destroy())
	}
	for a := range d.ahs {
		errs = append(errs, a.destroy())
	}
	for m := range d.mrs {
		errs = append(errs, m.destroy())
	}
	return errors.Join(errs...)
}
