package reliable

import (
	"slices"
	"sync"
	"sync/atomic"

	"ibverbx/internal/u32map"
	"ibverbx/verbs"
)

// maxEvents bounds the number of waiting events. Later ones are dropped.
const maxEvents = 1024

// events holds the asynchronous events of a context until the user takes them: those of wrapped objects, and
// those of the inner context, in which the user's objects replace the inner ones.
type events struct {
	inner verbs.Context

	mu     sync.Mutex        // guards the fields below; its owner takes no other lock of this package
	queue  []verbs.Event     // wait to be taken, at most maxEvents
	err    error             // the last error of the inner context's Events
	notify *verbs.Waker      // woken by events; it may be nil
	cqs    []*cq             // the open CQs
	srqs   []lent            // the open SRQs that inner ones replace
	owners u32map.Map[owner] // tells whose the inner QPs are, by QP number
}

// owner is what an inner QP belongs to: a wrapped QP whose side QP it is, or nothing that the user knows.
type owner struct {
	known bool         // reports that the inner QP is one of this package; false in the zero value
	user  *qp          // the wrapped QP, or nil
	ended *atomic.Bool // set when the QP has failed; may be nil
}

// lent is an inner SRQ that has the receives of a user's.
type lent struct {
	inner verbs.SRQ
	user  *srq
}

// Events implements verbs.Context.
func (ctx *pathContext) Events(dst []verbs.Event) (n int, err error) { return ctx.events.take(dst) }

// NotifyEvents implements verbs.Context. The waker is also woken by events that Events does not return.
func (ctx *pathContext) NotifyEvents(w *verbs.Waker) error { return ctx.events.notifyBy(w) }

// take moves events to dst.
func (v *events) take(dst []verbs.Event) (n int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.collect()
	n = copy(dst, v.queue)
	v.queue = v.queue[:copy(v.queue, v.queue[n:])]
	if n == 0 {
		err = v.err
	}
	return n, err
}

// notifyBy makes w the waker.
func (v *events) notifyBy(w *verbs.Waker) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.notify = w
	if w != nil && len(v.queue) > 0 {
		w.Wake()
	}
	return v.inner.NotifyEvents(w)
}

// fetch takes the events of the inner context, which has little room for them.
func (v *events) fetch() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.collect()
}

// collect takes the events of the inner context. The lock is held.
func (v *events) collect() {
	var buf [16]verbs.Event
	for {
		n, err := v.inner.Events(buf[:])
		if err != nil {
			v.err = err
		}
		if n == 0 {
			return
		}
		for _, ev := range buf[:n] {
			if ev, ok := v.translate(ev); ok {
				v.add(ev)
			}
		}
	}
}

// translate replaces the inner object in an event by the user's object. It reports whether the user
// knows the object.
func (v *events) translate(ev verbs.Event) (verbs.Event, bool) {
	switch {
	case ev.QP != nil:
		o := v.owners.Find(ev.QP.Num())
		if o.user != nil {
			ev.QP = o.user
			return ev, true
		}
		if o.ended != nil && (ev.Type == verbs.EventQPFatal || ev.Type == verbs.EventLastWQEReached) {
			o.ended.Store(true)
		}
		return ev, !o.known && ev.Type != verbs.EventLastWQEReached
	case ev.CQ != nil:
		for _, c := range v.cqs {
			if c.inner == ev.CQ {
				ev.CQ = c
				return ev, true
			}
		}
		return ev, false
	}
	for _, s := range v.srqs {
		if s.inner == ev.SRQ {
			ev.SRQ = s.user
			return ev, true
		}
	}
	return ev, ev.SRQ == nil
}

// add queues an event. The lock is held.
func (v *events) add(ev verbs.Event) {
	if len(v.queue) < maxEvents {
		v.queue = append(v.queue, ev)
	}
	if v.notify != nil {
		v.notify.Wake()
	}
}

// raise queues an event of a wrapped object.
func (v *events) raise(ev verbs.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.add(ev)
}

// own notes that an inner QP is one of this package. user is the wrapped QP whose side QP it is, or nil.
func (v *events) own(inner verbs.QP, user *qp) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.owners.Set(inner.Num(), owner{known: true, user: user})
}

// watch notes that an inner QP is one of this package. ended is set when it fails.
func (v *events) watch(inner verbs.QP, ended *atomic.Bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.owners.Set(inner.Num(), owner{known: true, ended: ended})
}

// disown undoes own, before the inner QP is closed.
func (v *events) disown(inner verbs.QP) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.collect()
	v.owners.Delete(inner.Num())
}

// open makes a CQ known.
func (v *events) open(c *cq) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.cqs = append(v.cqs, c)
}

// close forgets a CQ and its events.
func (v *events) close(c *cq) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.collect()
	v.cqs = slices.DeleteFunc(v.cqs, func(o *cq) bool { return o == c })
	v.forget(func(ev verbs.Event) bool { return ev.CQ == verbs.CQ(c) })
}

// lend makes an inner SRQ known.
func (v *events) lend(inner verbs.SRQ, user *srq) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.srqs = append(v.srqs, lent{inner, user})
}

// closeSRQ forgets an SRQ and its events.
func (v *events) closeSRQ(s *srq) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.collect()
	v.srqs = slices.DeleteFunc(v.srqs, func(l lent) bool { return l.user == s })
	v.forget(func(ev verbs.Event) bool { return ev.SRQ == verbs.SRQ(s) })
}

// forgetQP forgets the events of a closed QP.
func (v *events) forgetQP(q *qp) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forget(func(ev verbs.Event) bool { return ev.QP == verbs.QP(q) })
}

// forget removes queued events. The lock is held.
func (v *events) forget(of func(verbs.Event) bool) { v.queue = slices.DeleteFunc(v.queue, of) }
