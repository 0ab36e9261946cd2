//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"errors"
	"fmt"
	"syscall"

	"ibverbx/verbs"
)

// registerDevice registers device memory, such as GPU memory: as a dma-buf, or without dma-buf support by its
// address, which requires a kernel module for peer memory. Work requests use device addresses.
func (d *pd) registerDevice(m *verbs.Memory, access verbs.Access) (region, error) {
	got, err := d.registerExport(m, access)
	if !errors.Is(err, verbs.ErrNotSupported) {
		return got, err
	}
	// Device addresses are never mapped in the CPU's address space, so a kernel without the module returns EFAULT.
	got, errno := cRegMR(d.ctx.lib, d.h, m.Addr(), uint64(m.Len()), access)
	switch errno {
	case 0:
		return got, nil
	case syscall.EFAULT, syscall.EINVAL, syscall.EOPNOTSUPP:
		return region{}, fmt.Errorf("memory of %s: %w; without dma-bufs the NIC needs the kernel module nvidia-peermem, which is not loaded or does not know this memory (%w): "+
			"load it, update kernel, rdma-core and GPU driver for dma-bufs, or use software NICs", m.Device().Name(), err, errno)
	default:
		return region{}, registerError(errno, uint64(m.Len()))
	}
}

// registerExport registers device memory as a dma-buf.
func (d *pd) registerExport(m *verbs.Memory, access verbs.Access) (region, error) {
	file, offset, err := m.DMABuf()
	if err != nil {
		return region{}, err
	}
	got, err := d.registerDMABuf(int(file.Fd()), offset, uint64(m.Len()), m.Addr(), access)
	_ = file.Close() // the registration keeps the dma-buf
	return got, err
}
