package softnic

import (
	"slices"

	"ibverbx/verbs"
)

// eventQueue holds the unread asynchronous events of a context.
type eventQueue struct {
	pending []verbs.Event
	waker   wakeTarget
}

// wakeTarget is an optional Waker.
type wakeTarget struct{ w *verbs.Waker }

func (t wakeTarget) wake() {
	if t.w != nil {
		t.w.Wake()
	}
}

// raise queues an event. It counts and drops events if the queue is full. The caller holds the lock.
func (x *hostContext) raise(e verbs.Event) {
	limit := maxEvents
	if e.QP == nil && e.SRQ == nil {
		limit += maxDeviceEvents // the events of one QP must not displace events for many QPs
	}
	if len(x.events.pending) >= limit {
		x.nic.stats.EventsLost++
		return
	}
	x.events.pending = append(x.events.pending, e)
	x.events.waker.wake()
}

func (x *hostContext) Events(dst []verbs.Event) (int, error) {
	x.core.mu.hold()
	defer x.core.mu.Unlock()
	if x.closed {
		return 0, verbs.NewOpError("take events", x.nic.name, 0, verbs.ErrClosed)
	}
	n := copy(dst, x.events.pending)
	x.events.pending = slices.Delete(x.events.pending, 0, n)
	if n == 0 && len(x.events.pending) == 0 && x.nic.failed {
		return 0, verbs.NewOpError("take events", x.nic.name, 0, verbs.ErrDeviceFatal)
	}
	return n, nil
}

func (x *hostContext) NotifyEvents(w *verbs.Waker) error {
	x.core.mu.hold()
	defer x.core.mu.Unlock()
	if x.closed {
		return verbs.NewOpError("notify events", x.nic.name, 0, verbs.ErrClosed)
	}
	x.events.waker = wakeTarget{w}
	if len(x.events.pending) > 0 {
		x.events.waker.wake()
	}
	return nil
}

// purge drops the pending events of a QP, CQ or SRQ under destruction, so that Events never returns a
// closed object.
func (x *hostContext) purge(dead func(verbs.Event) bool) {
	x.events.pending = slices.DeleteFunc(x.events.pending, dead)
}
