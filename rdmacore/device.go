//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"fmt"
	"slices"

	"ibverbx/verbs"
)

// Device is an RDMA device listed by libibverbs. It implements verbs.Device and is safe for concurrent
// use.
type Device struct {
	lib  *Library
	info deviceInfo
}

var _ verbs.Device = (*Device)(nil)

// Name returns the kernel's device name, such as "mlx5_0" or "rxe0".
func (d *Device) Name() string { return d.info.name }

// GUID returns the node GUID.
func (d *Device) GUID() verbs.GUID { return d.info.guid }

// Driver returns the kernel driver's name, such as "mlx5_core" or "rdma_rxe". It is empty if sysfs does
// not list it.
func (d *Device) Driver() string { return driverOf(d.info.path) }

// Open returns a new context on the device. Each Open queries the library's device list, so an unplugged
// device returns verbs.ErrNotFound.
func (d *Device) Open() (verbs.Context, error) {
	const op = "open device"
	if d.lib == nil {
		return nil, verbs.NewOpError(op, "", 0, verbs.ErrClosed)
	}
	if err := d.lib.retain(); err != nil {
		return nil, verbs.NewOpError(op, d.Name(), 0, err)
	}
	x, err := d.open()
	if err != nil {
		d.lib.release()
		return nil, verbs.NewOpError(op, d.Name(), 0, err)
	}
	return x, nil
}

func (d *Device) open() (*nicContext, error) {
	list, infos, errno := cDevices(d.lib.h)
	if errno != 0 {
		return nil, noDeviceList(errno)
	}
	defer cFreeDevices(d.lib.h, list)
	i := slices.IndexFunc(infos, func(info deviceInfo) bool { return info.name == d.info.name })
	if i < 0 {
		return nil, fmt.Errorf("%w: the library no longer lists it", verbs.ErrNotFound)
	}
	o, errno := cOpen(d.lib.h, list, i)
	if errno != 0 {
		return nil, openError(errno)
	}
	x, err := newContext(d, o)
	if err != nil {
		_ = cClose(d.lib.h, o.ctx)
		return nil, err
	}
	return x, nil
}
