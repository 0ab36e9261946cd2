//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// Bounds of the event queue. Events of single QPs cannot crowd out device and CQ events.
const (
	maxEvents       = 1 << 14
	maxDeviceEvents = 1 << 10
)

// eventQueue holds undelivered asynchronous events, and the objects that events can refer to.
type eventQueue struct {
	mu      sync.Mutex
	objects map[handle]verbs.Event // by key; each value is an event with only the object set
	pending []verbs.Event
	waker   *verbs.Waker
	fatal   bool
	closed  bool
}

// add adds an object that events can refer to. subject has the object set.
func (e *eventQueue) add(key handle, subject verbs.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.objects[key] = subject
}

// remove removes an object and its events before it is destroyed, so that no caller gets an
// event with a closed object.
func (e *eventQueue) remove(key handle) {
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

// removeDuring destroys an object with call after remove. If call fails, the object is added again.
func (e *eventQueue) removeDuring(key handle, call func() syscall.Errno) syscall.Errno {
	subject := e.lookup(key)
	e.remove(key)
	errno := call()
	if errno != 0 {
		e.add(key, subject)
	}
	return errno
}

// lookup returns an event with the object of a key set.
func (e *eventQueue) lookup(key handle) verbs.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.objects[key]
}

// queueEvent queues an event and wakes the Waker. It runs under the lock, so a queued event always
// refers to an open object.
func (e *eventQueue) queueEvent(raw asyncEvent) {
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
		if c.waker != nil { // no completion will wake it
			c.waker.Wake()
		}
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

// fail marks the device as failed because its events can no longer be read.
func (e *eventQueue) fail() {
	e.queueEvent(asyncEvent{typ: int32(verbs.EventDeviceFatal)})
}

// failed reports whether the device has failed.
func (e *eventQueue) failed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fatal
}

func (e *eventQueue) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.pending, e.waker = nil, nil
	clear(e.objects)
}

// drainAsync reads all pending asynchronous events. The library does not destroy an object
// between an event and its acknowledgement.
func (x *nicContext) drainAsync() (end bool) {
	return x.drain(func() syscall.Errno {
		ev, errno := cAsyncEvent(x.lib, x.h)
		if errno == 0 {
			x.events.queueEvent(ev)
			cAckAsyncEvent(x.lib, ev)
		}
		return errno
	})
}

// drain calls next until no event is pending. It reports whether the source has failed for good.
func (x *nicContext) drain(next func() syscall.Errno) (end bool) {
	for {
		switch next() {
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
