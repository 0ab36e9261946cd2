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

// events queues the asynchronous events of a context: those of wrapped objects, and
// those of the inner context, in which the user's objects replace the inner ones.
type events struct {
	inner verbs.Context

	mu     sync.Mutex        // guards the fields below; no other lock of this package is taken under it
	queue  []verbs.Event     // at most maxEvents
	err    error             // the last error of the inner context's Events
	notify *verbs.Waker      // woken by events; it may be nil
	cqs    []*cq             // the open CQs
	srqs   []borrowedSRQ     // the open SRQs whose receives are in inner ones
	owners u32map.Map[owner] // the owners of inner QPs, by QP number
}

// owner is the wrapped QP of an inner QP: of a handshake QP, and nil for others.
type owner struct {
	known  bool         // set for inner QPs of this package
	user   *qp          // the wrapped QP, or nil
	failed *atomic.Bool // set when the QP has failed; may be nil
}

// borrowedSRQ is an inner SRQ with the receives of a user's SRQ.
type borrowedSRQ struct {
	inner verbs.SRQ
	user  *srq
}

// Events implements verbs.Context.
func (ctx *pathContext) Events(dst []verbs.Event) (n int, err error) { return ctx.events.poll(dst) }

// NotifyEvents implements verbs.Context. The waker is also woken by events that Events does not return.
func (ctx *pathContext) NotifyEvents(w *verbs.Waker) error { return ctx.events.setWaker(w) }

// poll moves events to dst.
func (v *events) poll(dst []verbs.Event) (n int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drainLocked()
	n = copy(dst, v.queue)
	v.queue = v.queue[:copy(v.queue, v.queue[n:])]
	if n == 0 {
		err = v.err
	}
	return n, err
}

// setWaker sets the waker.
func (v *events) setWaker(w *verbs.Waker) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.notify = w
	if w != nil && len(v.queue) > 0 {
		w.Wake()
	}
	return v.inner.NotifyEvents(w)
}

// drain queues the events of the inner context, whose queue is short.
func (v *events) drain() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drainLocked()
}

// drainLocked is drain with the lock held.
func (v *events) drainLocked() {
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
		if o.failed != nil && (ev.Type == verbs.EventQPFatal || ev.Type == verbs.EventLastWQEReached) {
			o.failed.Store(true)
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

// register registers an inner QP of this package. user is the wrapped QP of a handshake QP, otherwise nil.
func (v *events) register(inner verbs.QP, user *qp) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.owners.Set(inner.Num(), owner{known: true, user: user})
}

// watch registers an inner QP of this package. failed is set when it fails.
func (v *events) watch(inner verbs.QP, failed *atomic.Bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.owners.Set(inner.Num(), owner{known: true, failed: failed})
}

// unregister undoes register, before the inner QP is closed.
func (v *events) unregister(inner verbs.QP) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drainLocked()
	v.owners.Delete(inner.Num())
}

// addCQ registers a CQ.
func (v *events) addCQ(c *cq) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.cqs = append(v.cqs, c)
}

// closeCQ removes a CQ and its events.
func (v *events) closeCQ(c *cq) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drainLocked()
	v.cqs = slices.DeleteFunc(v.cqs, func(o *cq) bool { return o == c })
	v.forget(func(ev verbs.Event) bool { return ev.CQ == verbs.CQ(c) })
}

// borrow registers an inner SRQ.
func (v *events) borrow(inner verbs.SRQ, user *srq) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.srqs = append(v.srqs, borrowedSRQ{inner, user})
}

// closeSRQ removes an SRQ and its events.
func (v *events) closeSRQ(s *srq) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drainLocked()
	v.srqs = slices.DeleteFunc(v.srqs, func(l borrowedSRQ) bool { return l.user == s })
	v.forget(func(ev verbs.Event) bool { return ev.SRQ == verbs.SRQ(s) })
}

// forgetQP removes the events of a closed QP.
func (v *events) forgetQP(q *qp) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forget(func(ev verbs.Event) bool { return ev.QP == verbs.QP(q) })
}

// forget removes queued events. The lock is held.
func (v *events) forget(of func(verbs.Event) bool) { v.queue = slices.DeleteFunc(v.queue, of) }
