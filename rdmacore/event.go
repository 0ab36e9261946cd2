//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// Bounds of the queue of events that nobody takes. What concerns the device or a CQ is
// not crowded out by what concerns one QP.
const (
	maxEvents       = 1 << 14
	maxDeviceEvents = 1 << 10
)

// eventQueue holds asynchronous events until they are taken, and the objects that events
// can be about.
type eventQueue struct {
	mu      sync.Mutex
	objects map[handle]verbs.Event // by key: an event with the object set
	pending []verbs.Event
	waker   *verbs.Waker
	fatal   bool
	closed  bool
}

// know makes events about an object find it. subject has the object set.
func (e *eventQueue) know(key handle, subject verbs.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.objects[key] = subject
}

// forget drops an object and its events, before it is destroyed: nobody is handed an
// object that is closed.
func (e *eventQueue) forget(key handle) {
	e.mu.Lock()
	defer e.mu.Unlock()
	dead, ok := e.objects[key]
	if !ok {
		return
	}
	delete(e.objects, key)
	keep := e.pending[:0]
	for _, ev := range e.pending {
		if dead.Type = ev.Type; ev != dead {
			keep = append(keep, ev)
		}
	}
	clear(e.pending[len(keep):])
	e.pending = keep
}

// without destroys an object by call while no event finds it. If that fails events find it again.
func (e *eventQueue) without(key handle, call func() syscall.Errno) syscall.Errno {
	subject, _ := e.lookup(key)
	e.forget(key)
	errno := call()
	if errno != 0 {
		e.know(key, subject)
	}
	return errno
}

// lookup returns the object with a key as an event.
func (e *eventQueue) lookup(key handle) (verbs.Event, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ev, ok := e.objects[key]
	return ev, ok
}

// raise queues an event and wakes whoever waits for events. It runs under the lock, so
// that an object whose event is queued is one that is open.
func (e *eventQueue) raise(raw asyncEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ev := verbs.Event{}
	typ := verbs.EventType(raw.typ)
	switch typ {
	case verbs.EventDeviceFatal:
		e.fatal = true
	case verbs.EventPortActive, verbs.EventPortErr, verbs.EventLIDChange, verbs.EventPKeyChange, verbs.EventSMChange,
		verbs.EventClientReregister, verbs.EventGIDChange:
		ev.Port = uint8(raw.element)
	default:
		known, ok := e.objects[raw.element]
		if !ok {
			return
		}
		ev = known
	}
	ev.Type = typ
	if c, ok := ev.CQ.(*cq); ok && typ == verbs.EventCQErr {
		c.overrun.Store(true)
	}
	limit := maxEvents
	if ev.QP == nil && ev.SRQ == nil {
		limit += maxDeviceEvents
	}
	if len(e.pending) >= limit {
		return
	}
	e.pending = append(e.pending, ev)
	if e.waker != nil {
		e.waker.Wake()
	}
}

// fail makes the device count as failed, if its events cannot be read any more.
func (e *eventQueue) fail() {
	e.raise(asyncEvent{typ: int32(verbs.EventDeviceFatal)})
}

func (e *eventQueue) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.pending, e.waker = nil, nil
	clear(e.objects)
}

// takeAsync takes all asynchronous events that the kernel has. The library keeps an
// object from being destroyed between an event and its acknowledgement.
func (x *nicContext) takeAsync() (end bool) {
	return x.drain(func() syscall.Errno {
		ev, errno := cAsyncEvent(x.lib, x.h)
		if errno == 0 {
			x.events.raise(ev)
			cAckAsyncEvent(x.lib, ev)
		}
		return errno
	})
}

// drain calls take until the kernel has no more events. It reports whether none can come any more.
func (x *nicContext) drain(take func() syscall.Errno) (end bool) {
	for {
		switch take() {
		case 0, unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			x.events.fail()
			return true
		}
	}
}

func (x *nicContext) Events(dst []verbs.Event) (int, error) {
	const op = "take events"
	e := &x.events
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return 0, verbs.NewOpError(op, x.dev.Name(), 0, verbs.ErrClosed)
	}
	n := copy(dst, e.pending)
	rest := copy(e.pending, e.pending[n:])
	clear(e.pending[rest:])
	e.pending = e.pending[:rest]
	if n == 0 && rest == 0 && e.fatal {
		return 0, verbs.NewOpError(op, x.dev.Name(), 0, verbs.ErrDeviceFatal)
	}
	return n, nil
}

func (x *nicContext) NotifyEvents(w *verbs.Waker) error {
	e := &x.events
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return verbs.NewOpError("notify events", x.dev.Name(), 0, verbs.ErrClosed)
	}
	e.waker = w
	if w != nil && len(e.pending) > 0 {
		w.Wake()
	}
	return nil
}
