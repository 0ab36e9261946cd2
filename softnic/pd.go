package softnic

import (
	"fmt"

	"ibverbx/verbs"
)

// pd is a protection domain. Everything in it is guarded by the core's lock.
type pd struct {
	ctx    *hostContext
	closed bool
	mrs    family[*mr]
	qps    family[*qp]
	srqs   family[*srq]
	ahs    family[*ah]
}

var _ verbs.PD = (*pd)(nil)

// lock takes the lock and checks that the domain can be used; on error it is released
// again.
func (d *pd) lock(op string) error {
	d.ctx.core.mu.Lock()
	if err := d.usable(); err != nil {
		d.ctx.core.mu.Unlock()
		return verbs.NewOpError(op, d.ctx.nic.name, 0, err)
	}
	return nil
}

func (d *pd) usable() error {
	if d.closed {
		return verbs.ErrClosed
	}
	return d.ctx.usable()
}

func (d *pd) RegisterMemory(m *verbs.Memory, access verbs.Access) (verbs.MR, error) {
	const op = "register memory"
	if err := d.lock(op); err != nil {
		return nil, err
	}
	defer d.ctx.core.mu.Unlock()
	region, err := d.registerMemory(m, access)
	if err != nil {
		return nil, verbs.NewOpError(op, d.ctx.nic.name, 0, err)
	}
	return region, nil
}

func (d *pd) RegisterDMABuf(int, uint64, uint64, uint64, verbs.Access) (verbs.MR, error) {
	err := fmt.Errorf("%w: a software NIC cannot reach device memory", verbs.ErrNotSupported)
	return nil, verbs.NewOpError("register dma-buf", d.ctx.nic.name, 0, err)
}

func (d *pd) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	const op = "create QP"
	if err := d.lock(op); err != nil {
		return nil, err
	}
	defer d.ctx.core.mu.Unlock()
	q, err := d.createQP(cfg)
	if err != nil {
		return nil, verbs.NewOpError(op, d.ctx.nic.name, 0, err)
	}
	return q, nil
}

func (d *pd) CreateSRQ(cfg verbs.SRQConfig) (verbs.SRQ, error) {
	const op = "create SRQ"
	if err := d.lock(op); err != nil {
		return nil, err
	}
	defer d.ctx.core.mu.Unlock()
	s, err := d.createSRQ(cfg)
	if err != nil {
		return nil, verbs.NewOpError(op, d.ctx.nic.name, 0, err)
	}
	return s, nil
}

func (d *pd) CreateAH(attr verbs.AHAttr) (verbs.AH, error) {
	const op = "create AH"
	if err := d.lock(op); err != nil {
		return nil, err
	}
	defer d.ctx.core.mu.Unlock()
	a, err := d.createAH(attr)
	if err != nil {
		return nil, verbs.NewOpError(op, d.ctx.nic.name, 0, err)
	}
	return a, nil
}

func (d *pd) Close() error {
	d.ctx.core.mu.Lock()
	defer d.ctx.core.mu.Unlock()
	if d.closed {
		return nil
	}
	if n := d.mrs.len() + d.qps.len() + d.srqs.len() + d.ahs.len(); n > 0 {
		err := fmt.Errorf("%w: %d MRs, %d QPs, %d SRQs and %d AHs are open in it",
			verbs.ErrBusy, d.mrs.len(), d.qps.len(), d.srqs.len(), d.ahs.len())
		return verbs.NewOpError("close PD", d.ctx.nic.name, 0, err)
	}
	d.destroy()
	return nil
}

// destroy closes the domain and all in it.
func (d *pd) destroy() {
	for _, q := range d.qps.inOrder() {
		q.destroy()
	}
	for _, s := range d.srqs.inOrder() {
		s.destroy()
	}
	for _, a := range d.ahs.inOrder() {
		a.destroy()
	}
	for _, m := range d.mrs.inOrder() {
		m.destroy()
	}
	d.closed = true
	d.ctx.pds.remove(d)
}
