package reliable

import (
	"slices"

	"ibverbx/verbs"
)

// maxEvents bounds the number of waiting events. Later ones are dropped.
const maxEvents = 1024

func (ctx *pathContext) Events(dst []verbs.Event) (n int, err error) {
	e := ctx.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	e.collect()
	n = copy(dst, e.events)
	e.events = e.events[:copy(e.events, e.events[n:])]
	if n == 0 {
		err = e.eventErr
	}
	return n, err
}

func (ctx *pathContext) NotifyEvents(w *verbs.Waker) error {
	e := ctx.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notify = w
	if w != nil && len(e.events) > 0 {
		w.Wake()
	}
	if e.keeper != nil && !e.closed {
		return nil // the keeper is woken by the inner context's events
	}
	return ctx.inner.NotifyEvents(w)
}

// collect takes the events of the inner context.
func (e *engine) collect() {
	var buf [16]verbs.Event
	for {
		n, err := e.ctx.inner.Events(buf[:])
		if err != nil {
			e.eventErr = err
		}
		if n == 0 {
			return
		}
		for _, ev := range buf[:n] {
			if ev, ok := e.translate(ev); ok {
				e.raise(ev)
			}
		}
	}
}

// translate replaces the inner object in an event by the user's object. It reports whether the user
// knows the object.
func (e *engine) translate(ev verbs.Event) (verbs.Event, bool) {
	switch {
	case ev.QP != nil:
		for _, q := range e.qps {
			if q != nil && q.side.QP == ev.QP {
				ev.QP = q
				return ev, true
			}
		}
		return ev, e.routes.Find(ev.QP.Num()) == route{} && ev.Type != verbs.EventLastWQEReached
	case ev.CQ != nil:
		for _, c := range e.cqs {
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
func (e *engine) raise(ev verbs.Event) {
	if len(e.events) < maxEvents {
		e.events = append(e.events, ev)
	}
	if e.notify != nil {
		e.notify.Wake()
	}
}

// forget removes the events of a closed object.
func (e *engine) forget(of func(verbs.Event) bool) {
	e.collect()
	e.events = slices.DeleteFunc(e.events, of)
}
