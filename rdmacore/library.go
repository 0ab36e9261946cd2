//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"fmt"
	"sync"

	"ibverbx/verbs"
)

// Library is libibverbs, opened at run time. It is safe for concurrent use.
type Library struct {
	cfg Config
	h   handle

	mu     sync.Mutex
	open   int // number of open contexts
	closed bool
}

// Load opens libibverbs. Errors wrap ErrNoLibrary or ErrOldLibrary and include the dynamic linker's
// message. The library stays loaded until the process exits.
func Load(cfg Config) (*Library, error) {
	const op = "load libibverbs"
	h, text, res := cLoad(cfg.library())
	switch res {
	case loaded:
	case noLibrary:
		return nil, verbs.NewOpError(op, "", 0, fmt.Errorf("%w: %s; install the package libibverbs1 (rdma-core)", ErrNoLibrary, text))
	case oldLibrary:
		return nil, verbs.NewOpError(op, "", 0, fmt.Errorf("%w: %s has no %s; update rdma-core", ErrOldLibrary, cfg.library(), text))
	default:
		return nil, verbs.NewOpError(op, "", 0, fmt.Errorf("%w: no memory", ErrNoLibrary))
	}
	if cfg.ForkSafe {
		if errno := cForkInit(h); errno != 0 {
			cUnload(h)
			return nil, verbs.NewOpError("ibv_fork_init", "", 0, fmt.Errorf("%w: it must come before any registration in the process", errnoErr(errno)))
		}
	}
	return &Library{cfg: cfg, h: h}, nil
}

// Path returns the name or path of the opened library.
func (l *Library) Path() string { return l.cfg.library() }

// retain counts a context, so that Close cannot release the library while it is in use.
func (l *Library) retain() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.h == 0 {
		return verbs.ErrClosed
	}
	l.open++
	return nil
}

func (l *Library) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
}

// Devices returns the RDMA devices in library order. Without devices, the error wraps ErrNoDevice and
// explains how to fix it.
func (l *Library) Devices() ([]*Device, error) {
	const op = "list devices"
	if err := l.retain(); err != nil {
		return nil, verbs.NewOpError(op, "", 0, err)
	}
	defer l.release()
	list, infos, errno := cDevices(l.h)
	if errno != 0 {
		return nil, verbs.NewOpError(op, "", 0, noDeviceList(errno))
	}
	defer cFreeDevices(l.h, list)
	if len(infos) == 0 {
		return nil, verbs.NewOpError(op, "", 0, fmt.Errorf("%w: the library lists none; "+
			"is the driver of the NIC loaded, and its provider library (ibverbs-providers) installed?", ErrNoDevice))
	}
	devices := make([]*Device, len(infos))
	for i, info := range infos {
		devices[i] = &Device{lib: l, info: info}
	}
	return devices, nil
}

// Close releases the library. It returns verbs.ErrBusy while contexts are open.
func (l *Library) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.h == 0 {
		return nil
	}
	if l.open > 0 {
		return verbs.NewOpError("close libibverbs", "", 0, fmt.Errorf("%w: %d contexts are open", verbs.ErrBusy, l.open))
	}
	l.closed = true
	cUnload(l.h)
	return nil
}
