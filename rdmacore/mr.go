//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"fmt"
	"sync"
	"syscall"

	"ibverbx/verbs"
)

// mr is a registered region. closed is guarded by the lock of the context.
type mr struct {
	pd         *pd
	h          handle
	mem        *verbs.Memory // nil for a dma-buf of the caller
	addr, size uint64
	lkey, rkey uint32
	closing    sync.Mutex // held while the region is closed
	closed     bool
}

var _ verbs.MR = (*mr)(nil)

const accessFlags = verbs.AccessAll | verbs.AccessRelaxedOrdering

// checkAccess checks the rules of ibv_reg_mr(3), which some drivers do not check.
func checkAccess(a verbs.Access) error {
	switch {
	case a&^accessFlags != 0:
		return verbs.Invalidf("unknown access flags %#x", uint32(a&^accessFlags))
	case a&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 && a&verbs.AccessLocalWrite == 0:
		return verbs.Invalidf("access %#x: remote write and remote atomic need local write", uint32(a))
	}
	return nil
}

func (d *pd) RegisterMemory(m *verbs.Memory, access verbs.Access) (verbs.MR, error) {
	return withResult(d.create, "register memory", func() (verbs.MR, error) { return d.register(m, access) })
}

func (d *pd) register(m *verbs.Memory, access verbs.Access) (*mr, error) {
	if m == nil {
		return nil, verbs.Invalidf("no memory")
	}
	if err := checkAccess(access); err != nil {
		return nil, err
	}
	if err := m.Retain(); err != nil {
		return nil, err
	}
	size := uint64(m.Len())
	var got region
	var err error
	if m.Device() != nil {
		got, err = d.registerDevice(m, access)
	} else {
		var errno syscall.Errno
		if got, errno = cRegMR(d.ctx.lib, d.h, m.Addr(), size, access); errno != 0 {
			err = registerError(errno, size)
		}
	}
	if err != nil {
		m.Release()
		return nil, err
	}
	return d.addMR(&mr{pd: d, h: got.mr, mem: m, addr: m.Addr(), size: size, lkey: got.lkey, rkey: got.rkey}), nil
}

func (d *pd) RegisterDMABuf(fd int, offset, length, iova uint64, access verbs.Access) (verbs.MR, error) {
	return withResult(d.create, "register dma-buf", func() (verbs.MR, error) {
		if err := checkAccess(access); err != nil {
			return nil, err
		}
		got, err := d.registerDMABuf(fd, offset, length, iova, access)
		if err != nil {
			return nil, err
		}
		return d.addMR(&mr{pd: d, h: got.mr, addr: iova, size: length, lkey: got.lkey, rkey: got.rkey}), nil
	})
}

func (d *pd) registerDMABuf(fd int, offset, length, iova uint64, access verbs.Access) (region, error) {
	if d.ctx.capabilities()&verbs.CapDMABuf == 0 {
		return region{}, fmt.Errorf("%w: the device or the library does not support dma-buf registration", verbs.ErrNotSupported)
	}
	if length == 0 {
		return region{}, verbs.Invalidf("no bytes of the dma-buf")
	}
	got, errno := cRegDMABuf(d.ctx.lib, d.h, offset, length, iova, fd, access)
	switch errno {
	case 0:
		return got, nil
	case syscall.EBADF:
		return region{}, fmt.Errorf("%w: fd %d is not open: %w", verbs.ErrInvalid, fd, errno)
	case syscall.EINVAL:
		return region{}, fmt.Errorf("%w: fd %d is no dma-buf, it does not have %d bytes at %d, or the offset and the iova %#x have different places in a page",
			errnoErr(errno), fd, length, offset, iova)
	default:
		return region{}, registerError(errno, length)
	}
}

func (d *pd) addMR(m *mr) *mr {
	d.ctx.mu.Lock()
	defer d.ctx.mu.Unlock()
	d.mrs.add(m)
	return m
}

func (m *mr) Addr() uint64 { return m.addr }
func (m *mr) Len() uint64  { return m.size }
func (m *mr) LKey() uint32 { return m.lkey }
func (m *mr) RKey() uint32 { return m.rkey }

func (m *mr) Close() error {
	return ignoreClosed(m.pd.ctx.do("deregister memory", m.destroy))
}

// destroy deregisters the region. If that fails the memory stays retained, because the NIC
// may still access it.
func (m *mr) destroy() error {
	x := m.pd.ctx
	m.closing.Lock() // another Close may still be deregistering the region
	defer m.closing.Unlock()
	return x.destroyObject(&m.closed, nil, "", func() syscall.Errno { return x.destroyed(cDeregMR(x.lib, m.h)) }, func() {
		dropFrom(m.pd, m.pd.mrs, m)
		if m.mem != nil {
			m.mem.Release()
		}
	})
}
