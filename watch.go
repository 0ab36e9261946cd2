package ibverbx

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"ibverbx/verbs"
)

// watch takes the events of the NICs of a Rails and of its forks, once for all of them. A NIC that has
// events says so, and wakes all VirtualCQs. The one that polls first takes the events. They are counted by
// rail, and every VirtualQP compares the counts with those that it has seen.
type watch struct {
	// pending says that a NIC has events that were not taken.
	pending atomic.Bool
	// changes counts how often the losses of a rail have changed.
	changes atomic.Uint64
	rails   []railWatch // by rail

	// taking orders those who take events. It guards events, and fatal, refusals and refused of all rails.
	taking sync.Mutex
	events [8]verbs.Event // where take puts events

	// mu guards the fields below. NICs hold their locks when they report events, so no NIC is called with mu.
	mu  sync.Mutex
	cqs []*VirtualCQ // those that have joined
}

// railWatch is what a watch knows of a rail.
type railWatch struct {
	ctx    verbs.Context
	port   uint8
	leads  bool          // no rail before it has the same Context: events are taken by it
	falls  atomic.Uint64 // counts how often the port or the device was lost
	deaths atomic.Uint64 // counts how often a QP was lost without a completion
	fatal  bool          // the device has failed, and this is counted in falls
	// refusals is a ring of the last QPs, by number, that refused a request of their peer.
	refusals [256]uint32
	// refused counts all refusals. The next one is written at refused modulo len(refusals).
	refused int
}

// losses counts what a rail has lost.
type losses struct {
	falls  uint64 // how often the port or the device was lost
	deaths uint64 // how often a QP was lost without a completion
}

// newWatch returns the watch of rails that are on these ports.
func newWatch(rails []rail) *watch {
	w := &watch{rails: make([]railWatch, len(rails))}
	for i := range rails {
		r := &w.rails[i]
		r.ctx, r.port = rails[i].cfg.Context, rails[i].cfg.Port
		r.leads = !slices.ContainsFunc(rails[:i], func(other rail) bool { return other.cfg.Context == r.ctx })
	}
	return w
}

// join makes the events of the NICs wake a VirtualCQ. Nothing undoes that at the NICs: other Rails may have taken them
// over since, and would not hear of events.
func (w *watch) join(c *VirtualCQ) error {
	w.mu.Lock()
	w.cqs = append(w.cqs, c)
	w.mu.Unlock()
	return w.notify(verbs.NewWakerFunc(w.happened))
}

// leave makes events wake the VirtualCQ no longer.
func (w *watch) leave(c *VirtualCQ) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cqs = slices.DeleteFunc(w.cqs, func(other *VirtualCQ) bool { return other == c })
}

// notify makes every NIC report its events to a Waker.
func (w *watch) notify(waker *verbs.Waker) (err error) {
	for i := range w.rails {
		if r := &w.rails[i]; r.leads {
			err = errors.Join(err, r.ctx.NotifyEvents(waker))
		}
	}
	return err
}

// happened is called by a NIC that has an event.
func (w *watch) happened() {
	w.pending.Store(true)
	w.wake()
}

// wake wakes all VirtualCQs that have joined.
func (w *watch) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.cqs {
		if c.waker != nil {
			c.waker.Wake()
		}
	}
}

// look takes events if there are any.
func (w *watch) look() {
	if w.pending.Load() {
		w.take()
	}
}

// take takes the events of every NIC and shows them to all rails on it. If they are of concern, all
// VirtualCQs are woken: one may have polled since the event without seeing it.
func (w *watch) take() {
	w.taking.Lock()
	defer w.taking.Unlock()
	w.pending.Store(false)
	changed := false
	for i := range w.rails {
		if !w.rails[i].leads {
			continue
		}
		ctx := w.rails[i].ctx
		for n := len(w.events); n > 0; {
			var err error
			n, err = ctx.Events(w.events[:])
			for k := i; k < len(w.rails); k++ {
				if one := &w.rails[k]; one.ctx == ctx {
					changed = one.saw(w.events[:n], err) || changed
				}
			}
		}
	}
	if changed {
		w.changes.Add(1)
		w.wake()
	}
}

// saw counts the events of a rail's NIC that take down the rail or a QP, and reports whether there are any.
// err is the error that came with them.
func (r *railWatch) saw(events []verbs.Event, err error) (changed bool) {
	before := r.losses()
	for _, e := range events {
		switch {
		case e.Type == verbs.EventPortErr && (e.Port == 0 || e.Port == r.port):
			r.falls.Add(1)
		case e.Type == verbs.EventDeviceFatal:
			r.falls.Add(1)
			r.fatal = true
		case e.Type == verbs.EventQPFatal:
			r.deaths.Add(1)
		case (e.Type == verbs.EventQPAccessErr || e.Type == verbs.EventQPReqErr) && e.QP != nil:
			r.refusals[r.refused%len(r.refusals)] = e.QP.Num()
			r.refused++
		}
	}
	if errors.Is(err, verbs.ErrDeviceFatal) && !r.fatal {
		r.fatal = true
		r.falls.Add(1)
	}
	if err == nil && len(events) == 0 {
		r.fatal = false
	}
	return r.losses() != before
}

// losses returns the counts, which other VirtualCQs may change.
func (r *railWatch) losses() losses { return losses{falls: r.falls.Load(), deaths: r.deaths.Load()} }

// hasRefused reports whether a QP has recently failed because it refused a request of its peer.
func (w *watch) hasRefused(rail int, qpn uint32) bool {
	w.take()
	w.taking.Lock()
	defer w.taking.Unlock()
	one := &w.rails[rail]
	return slices.Contains(one.refusals[:min(one.refused, len(one.refusals))], qpn)
}
