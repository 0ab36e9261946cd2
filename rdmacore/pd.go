//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// pd is a protection domain. Its fields are guarded by the lock of the context.
type pd struct {
	ctx    *nicContext
	h      handle
	closed bool
	users  int // objects that stand on it, those in the making too
	mrs    set[*mr]
	qps    set[*qp]
	srqs   set[*srq]
	ahs    set[*ah]
}

var _ verbs.PD = (*pd)(nil)

// create runs make while the PD counts one user more, and keeps that if it succeeds.
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

// left takes an object out of a set of the PD. The lock of the context is held.
func left[T comparable](d *pd, s set[T], v T) {
	delete(s, v)
	d.users--
}

func (d *pd) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	var q *qp
	err := d.create("create QP", func() (err error) {
		q, err = d.createQP(cfg)
		return err
	})
	if err != nil {
		return nil, err
	}
	return q, nil
}

func (d *pd) CreateSRQ(cfg verbs.SRQConfig) (verbs.SRQ, error) {
	var s *srq
	err := d.create("create SRQ", func() (err error) {
		s, err = d.createSRQ(cfg)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (d *pd) CreateAH(attr verbs.AHAttr) (verbs.AH, error) {
	var a *ah
	err := d.create("create AH", func() (err error) {
		a, err = d.createAH(attr)
		return err
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

func (d *pd) Close() error {
	err := d.ctx.do("close PD", d.destroy)
	return ignoreClosed(err)
}

// ignoreClosed makes Close idempotent: what went with its context is closed.
func ignoreClosed(err error) error {
	if errors.Is(err, verbs.ErrClosed) {
		return nil
	}
	return err
}

func (d *pd) destroy() error {
	x := d.ctx
	x.mu.Lock()
	if d.closed {
		x.mu.Unlock()
		return nil
	}
	if d.users > 0 {
		defer x.mu.Unlock()
		return fmt.Errorf("%w: %d objects", verbs.ErrBusy, d.users)
	}
	d.closed = true
	x.mu.Unlock()
	errno := cDeallocPD(x.lib, d.h)
	x.mu.Lock()
	defer x.mu.Unlock()
	if errno != 0 {
		d.closed = false
		return inWords(errno)
	}
	delete(x.pds, d)
	return nil
}

// destroyContents destroys what stands on the PD, when its context is closed.
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
