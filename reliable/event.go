package reliable

import (
	"slices"

	"ibverbx/verbs"
)

// maxEvents bounds the number of waiting events. Later ones are dropped.
const maxEvents = 1024

func (ctx *pathContext) Events(dst []verbs.Event) (n int, err error) {
	ctx.mu.Lock()
	defer ctx.mu.Unlock()
	ctx.collect()
	n = copy(dst, ctx.events)
	ctx.events = ctx.events[:copy(ctx.events, ctx.events[n:])]
	if n == 0 {
		err = ctx.eventErr
	}
	return n, err
}

func (ctx *pathContext) NotifyEvents(w *verbs.Waker) error {
	ctx.mu.Lock()
	defer ctx.mu.Unlock()
	ctx.notify = w
	if w != nil && len(ctx.events) > 0 {
		w.Wake()
	}
	if ctx.keeper != nil && !ctx.closed {
		return nil // the keeper is woken by the inner context's events
	}
	return ctx.inner.NotifyEvents(w)
}

// collect takes the events of the inner context.
func (ctx *pathContext) collect() {
	var buf [16]verbs.Event
	for {
		n, err := ctx.inner.Events(buf[:])
		if err != nil {
			ctx.eventErr = err
		}
		if n == 0 {
			return
		}
		for _, ev := range buf[:n] {
			if ev, ok := ctx.translate(ev); ok {
				ctx.raise(ev)
			}
		}
	}
}

// translate replaces the inner object in an event by the user's object. It reports whether the user
// knows the object.
func (ctx *pathContext) translate(ev verbs.Event) (verbs.Event, bool) {
	switch {
	case ev.QP != nil:
		for _, q := range ctx.qps {
			if q != nil && q.side.QP == ev.QP {
				ev.QP = q
				return ev, true
			}
		}
		return ev, ctx.routes.Find(ev.QP.Num()) == route{} && ev.Type != verbs.EventLastWQEReached
	case ev.CQ != nil:
		for _, c := range ctx.cqs {
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
func (ctx *pathContext) raise(ev verbs.Event) {
	if len(ctx.events) < maxEvents {
		ctx.events = append(ctx.events, ev)
	}
	if ctx.notify != nil {
		ctx.notify.Wake()
	}
}

// forget removes the events of a closed object.
func (ctx *pathContext) forget(of func(verbs.Event) bool) {
	ctx.collect()
	ctx.events = slices.DeleteFunc(ctx.events, of)
}
