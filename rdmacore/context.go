//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// nicContext is an open device.
//
// Locks are acquired in field order, followed by the locks of QPs and CQs. Destroying an object in
// the library may wait for the goroutines that handle events, so these goroutines acquire only the
// event lock.
type nicContext struct {
	dev        *Device
	lib        handle
	h          handle
	opened     opened
	attr       verbs.DeviceAttr
	clockKHz   uint64    // the timestamp clock, 0 without timestamps
	singlePoll bool      // the driver's ibv_next_poll is broken; see datapath.h
	probed     sync.Once // fills caps
	caps       verbs.Capabilities

	// lifecycle is held for reading by calls that create, change or destroy an object, and for
	// writing by Close.
	lifecycle sync.RWMutex
	closed    bool
	// qpNumbers is held while a QP is created or destroyed. It keeps the number of a
	// destroyed QP from being reused before its completions are removed from its CQs.
	qpNumbers sync.Mutex
	// mu guards the sets below and the users of every object. It is never held for long.
	mu      sync.Mutex
	pds     set[*pd]
	cqs     set[*cq]
	serial  uint64 // number of the last CQ or AH
	channel channel

	ahMu sync.RWMutex
	ahs  map[verbs.AHHandle]*ah

	events  eventQueue
	watcher *watcher // handles asynchronous events
}

// set is a set of open objects.
type set[T comparable] map[T]struct{}

func (s *set[T]) add(v T) {
	if *s == nil {
		*s = set[T]{}
	}
	(*s)[v] = struct{}{}
}

var (
	_ verbs.Context     = (*nicContext)(nil)
	_ verbs.ClockReader = (*nicContext)(nil)
)

func newContext(d *Device, o opened) (*nicContext, error) {
	x := &nicContext{dev: d, lib: d.lib.h, h: o.ctx, opened: o, singlePoll: d.Driver() == driverRXE, ahs: map[verbs.AHHandle]*ah{}}
	x.events.objects = map[handle]verbs.Event{}
	if err := x.describe(); err != nil {
		return nil, err
	}
	w, err := watch(o.asyncFD, "asynchronous events", x.drainAsync)
	if err != nil {
		return nil, err
	}
	x.watcher = w
	return x, nil
}

func (x *nicContext) Device() verbs.Device { return x.dev }

// do runs f if the context is open, and keeps it open until f returns.
func (x *nicContext) do(op string, f func() error) error {
	x.lifecycle.RLock()
	defer x.lifecycle.RUnlock()
	if x.closed {
		return verbs.NewOpError(op, x.dev.Name(), 0, verbs.ErrClosed)
	}
	return verbs.NewOpError(op, x.dev.Name(), 0, f())
}

// withResult runs f through do, which is x.do, pd.create or qp.do, and returns the results of f.
func withResult[T any](do func(op string, f func() error) error, op string, f func() (T, error)) (v T, err error) {
	err = do(op, func() (err error) {
		v, err = f()
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return v, nil
}

func (x *nicContext) AllocPD() (verbs.PD, error) {
	return withResult(x.do, "allocate PD", func() (verbs.PD, error) {
		h, errno := cAllocPD(x.lib, x.h)
		if errno != 0 {
			return nil, errnoErr(errno)
		}
		d := &pd{ctx: x, h: h}
		x.mu.Lock()
		defer x.mu.Unlock()
		x.pds.add(d)
		return d, nil
	})
}

func (x *nicContext) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	return withResult(x.do, "create CQ", func() (verbs.CQ, error) { return x.createCQ(cfg) })
}

// destroyObject destroys an object with call, and then removes it with remove, with the lock held. It is a
// no-op if *closed is set. If the object has users it fails, and the error names them as what. An object
// that the library cannot destroy stays open.
func (x *nicContext) destroyObject(closed *bool, users *int, what string, call func() syscall.Errno, remove func()) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case *closed:
		return nil
	case users != nil && *users > 0:
		return fmt.Errorf("%w: %d %s", verbs.ErrBusy, *users, what)
	}
	*closed = true // from here on, new calls are rejected
	x.mu.Unlock()
	errno := call()
	x.mu.Lock()
	if errno != 0 {
		*closed = false
		return errnoErr(errno)
	}
	remove()
	return nil
}

// destroyed returns the result of a call that destroys an object. When the kernel removes a failed device, it destroys
// the objects itself, and libibverbs then returns EIO (unless RDMAV_ALLOW_DISASSOC_DESTROY is set). EIO from any other
// device means that the object still exists.
func (x *nicContext) destroyed(errno syscall.Errno) syscall.Errno {
	if errno == unix.EIO && x.events.failed() {
		return 0
	}
	return errno
}

// Close destroys all open objects: QPs before the objects they use, and the PDs last.
func (x *nicContext) Close() error {
	x.lifecycle.Lock()
	defer x.lifecycle.Unlock()
	if x.closed {
		return nil
	}
	var errs []error
	for d := range x.pds {
		errs = append(errs, d.destroyContents())
	}
	for c := range x.cqs {
		errs = append(errs, c.destroy())
	}
	for d := range x.pds {
		errs = append(errs, d.destroy())
	}
	if err := errors.Join(errs...); err != nil {
		return verbs.NewOpError("close device", x.dev.Name(), 0, fmt.Errorf("an object cannot be destroyed: %w", err))
	}
	x.channel.close(x.lib)
	x.watcher.stop()
	if errno := cClose(x.lib, x.h); errno != 0 {
		return verbs.NewOpError("close device", x.dev.Name(), 0, errnoErr(errno))
	}
	x.closed = true
	x.events.close()
	x.dev.lib.release()
	return nil
}

// nextSerial returns a unique number for a CQ or an AH of the context.
func (x *nicContext) nextSerial() uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.serial++
	return x.serial
}
