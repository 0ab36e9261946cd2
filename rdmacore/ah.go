//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"fmt"
	"syscall"

	"ibverbx/verbs"
)

// ah is an address handle.
type ah struct {
	pd     *pd
	h      handle
	num    verbs.AHHandle
	closed bool // guarded by the lock of the context
}

var _ verbs.AH = (*ah)(nil)

func (d *pd) createAH(attr verbs.AHAttr) (*ah, error) {
	x := d.ctx
	global, err := x.checkAV(&attr)
	if err != nil {
		return nil, err
	}
	h, errno := cCreateAH(x.lib, d.h, &attr, global)
	if errno != 0 {
		return nil, fmt.Errorf("destination %s: %w", attr.DGID, errnoErr(errno))
	}
	a := &ah{pd: d, h: h, num: verbs.AHHandle(x.nextSerial())}
	x.ahMu.Lock()
	x.ahs[a.num] = a
	x.ahMu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	d.ahs.add(a)
	return a, nil
}

// checkAV fills in the defaults of an address vector, checks it, and reports whether packets carry
// a GRH: always on Ethernet, and on InfiniBand with a destination GID but without a LID.
func (x *nicContext) checkAV(a *verbs.AHAttr) (global bool, err error) {
	if a.Port == 0 {
		a.Port = 1
	}
	if a.HopLimit == 0 {
		a.HopLimit = 64
	}
	if err := x.checkPort(int(a.Port)); err != nil {
		return false, fmt.Errorf("address vector: %w", err)
	}
	ethernet := x.attr.Link == verbs.LinkLayerEthernet.String()
	switch {
	case a.Seal != nil:
		return false, fmt.Errorf("%w: address vector: Seal is set: only software NICs seal packets", verbs.ErrNotSupported)
	case a.DGID.IsZero() && (ethernet || a.DLID == 0):
		return false, verbs.Invalidf("address vector: no destination")
	case a.SGIDIndex < 0 || a.SGIDIndex > 255:
		return false, verbs.Invalidf("address vector: source GID index %d, want 0 to 255", a.SGIDIndex)
	case a.FlowLabel >= 1<<20:
		return false, verbs.Invalidf("address vector: flow label %#x has more than 20 bits", a.FlowLabel)
	case a.SL > 15:
		return false, verbs.Invalidf("address vector: service level %d, want at most 15", a.SL)
	}
	return ethernet || !a.DGID.IsZero() && a.DLID == 0, nil
}

func (a *ah) Handle() verbs.AHHandle { return a.num }

func (a *ah) Close() error {
	return ignoreClosed(a.pd.ctx.do("close AH", a.destroy))
}

func (a *ah) destroy() error {
	x := a.pd.ctx
	return x.destroyObject(&a.closed, nil, "", func() syscall.Errno {
		// Datagram posts hold the table while the driver reads the handle.
		x.ahMu.Lock()
		delete(x.ahs, a.num)
		x.ahMu.Unlock()
		return x.destroyed(cDestroyAH(x.lib, a.h))
	}, func() { dropFrom(a.pd, a.pd.ahs, a) })
}
