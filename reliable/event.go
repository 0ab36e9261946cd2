package reliable

import (
	"slices"

	"ibverbx/verbs"
)

// maxEvents bounds the events that wait to be taken.
const maxEvents = 1024

// Events implements verbs.Context.
func (d *device) Events(dst []verbs.Event) (n int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.collect()
	n = copy(dst, d.events)
	d.events = d.events[:copy(d.events, d.events[n:])]
	if n == 0 {
		err = d.eventErr
	}
	return n, err
}

// NotifyEvents implements verbs.Context.
func (d *device) NotifyEvents(w *verbs.Waker) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notify = w
	if w != nil && len(d.events) > 0 {
		w.Wake()
	}
	if d.keeper != nil && !d.closed {
		return nil // it is woken by those of the inner context
	}
	return d.inner.NotifyEvents(w)
}

// collect takes the events of the inner context.
func (d *device) collect() {
	var buf [16]verbs.Event
	for {
		n, err := d.inner.Events(buf[:])
		if err != nil {
			d.eventErr = err
		}
		if n == 0 {
			return
		}
		d.sidesAt = 0 // it may be about one of them
		for _, ev := range buf[:n] {
			if ev, ok := d.translate(ev); ok {
				d.raise(ev)
			}
		}
	}
}

// translate names the user's object in an event of the inner context, and reports whether it
// is about something that the user knows.
func (d *device) translate(ev verbs.Event) (verbs.Event, bool) {
	switch {
	case ev.QP != nil:
		for _, q := range d.qps {
			if q != nil && q.side == ev.QP {
				ev.QP = q
				return ev, true
			}
		}
		return ev, d.routes.find(ev.QP.Num()) == nil && ev.Type != verbs.EventLastWQEReached
	case ev.CQ != nil:
		for _, c := range d.cqs {
			if c.inner == ev.CQ {
				ev.CQ = c
				return ev, true
			}
		}
		return ev, false
	}
	return ev, ev.SRQ == nil
}

// raise queues an event.
func (d *device) raise(ev verbs.Event) {
	if len(d.events) < maxEvents {
		d.events = append(d.events, ev)
	}
	if d.notify != nil {
		d.notify.Wake()
	}
}

// forget takes the events of a QP or a CQ out.
func (d *device) forget(of func(verbs.Event) bool) {
	d.collect()
	d.events = slices.DeleteFunc(d.events, of)
}
