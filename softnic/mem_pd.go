package softnic

import (
	"fmt"
	"time"

	"ibverbx/verbs"
)

// pd is a protection domain, guarded by the core's lock.
type pd struct {
	ctx *hostContext
	// id identifies the domain within its NIC.
	id     uint32
	closed bool
	mrs    creationOrder[*mr]
	qps    creationOrder[*qp]
	srqs   creationOrder[*srq]
	ahs    creationOrder[*ah]
	// keyGuesses counts wrong keys used by UC peers.
	keyGuesses keyGuessLimiter
}

var _ verbs.PD = (*pd)(nil)

func (d *pd) usable() error {
	if d.closed {
		return verbs.ErrClosed
	}
	return d.ctx.usable()
}

func (d *pd) RegisterMemory(m *verbs.Memory, access verbs.Access) (verbs.MR, error) {
	return locked(d.ctx, d, "register memory", func() (verbs.MR, error) { return d.registerMemory(m, nil, access, nil) })
}

// RegisterMemoryAt is RegisterMemory with a caller-chosen base address for work requests, iova
// (ibv_reg_mr_iova(3)). INLINE requests use the real addresses. It is not part of verbs.PD; callers use
// a type assertion.
func (d *pd) RegisterMemoryAt(m *verbs.Memory, iova uint64, access verbs.Access) (verbs.MR, error) {
	return locked(d.ctx, d, "register memory", func() (verbs.MR, error) { return d.registerMemory(m, &iova, access, nil) })
}

// ReregisterMemoryAt is RegisterMemoryAt for a region that replaces old, a region of the same NIC, and
// inherits its key (ibv_rereg_mr(3)). Success closes old; an error leaves it unchanged. The caller must
// ensure that old is not in use. It is not part of verbs.PD; callers use a type assertion.
func (d *pd) ReregisterMemoryAt(old verbs.MR, m *verbs.Memory, iova uint64, access verbs.Access) (verbs.MR, error) {
	return locked(d.ctx, d, "register memory again", func() (verbs.MR, error) {
		o, ok := old.(*mr)
		if !ok || o == nil || o.closed || o.pd.ctx.nic != d.ctx.nic {
			return nil, verbs.Invalidf("the region is nil, closed or of another NIC")
		}
		return d.registerMemory(m, &iova, access, o)
	})
}

// RegisterDMABuf implements verbs.PD. The software NIC maps the dma-buf, so its exporter must support
// mapping: host memory, a udmabuf, or a memfd instead of a dma-buf. The file must not shrink while
// registered.
func (d *pd) RegisterDMABuf(fd int, offset, length, iova uint64, access verbs.Access) (verbs.MR, error) {
	return locked(d.ctx, d, "register dma-buf", func() (verbs.MR, error) { return d.registerDMABuf(fd, offset, length, iova, access) })
}

func (d *pd) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	return locked(d.ctx, d, "create QP", func() (verbs.QP, error) { return d.createQP(cfg) })
}

func (d *pd) CreateSRQ(cfg verbs.SRQConfig) (verbs.SRQ, error) {
	return locked(d.ctx, d, "create SRQ", func() (verbs.SRQ, error) { return d.createSRQ(cfg) })
}

func (d *pd) CreateAH(attr verbs.AHAttr) (verbs.AH, error) {
	return locked(d.ctx, d, "create AH", func() (verbs.AH, error) { return d.createAH(attr) })
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

// destroy closes the domain and all its objects.
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

// Limits for wrong keys on UC. The sender of a wrong key is not notified there, so an attacker could
// try all keys. On RC a wrong key fails the QP, and a duplicate READ must repeat an earlier successful
// one.
const (
	maxKeyGuesses    = 16
	keyGuessInterval = int64(100 * time.Millisecond)
)

// keyGuessLimiter limits the wrong keys that peers may try on the UC QPs of a PD to 16 in 100 ms. Beyond that,
// all WRITEs are dropped until the interval expires, even with a valid key: otherwise the outcome would
// reveal which keys are valid. The QPs stay open.
type keyGuessLimiter struct {
	// wrong counts wrong keys since until-keyGuessInterval.
	wrong uint32
	until int64
}

// blocked reports whether WRITEs must be dropped.
func (g *keyGuessLimiter) blocked(c *core) bool {
	if g.wrong < maxKeyGuesses {
		return false
	}
	if c.clock() < g.until {
		return true
	}
	g.wrong = 0
	return false
}

// count records a wrong key.
func (g *keyGuessLimiter) count(c *core) {
	if g.wrong == 0 {
		g.until = c.clock() + keyGuessInterval
	}
	g.wrong++
}
