package core

import "ibverbx/reliable/wire"

// placement tracks the chunks of a flow that the owner is copying to their destination.
// Such a chunk is in the window, so that a duplicate is not placed again, and after the fence. It is neither
// acknowledged nor in order until the owner reports completion.
type placement struct {
	chunks int   // the number of such chunks
	until  int64 // the time until which acknowledgements wait for them
}

// beginPlacement starts the placement of a chunk. Acknowledgements wait for it, until the given time: the
// peer would take a gap before a chunk of the same path for a loss.
func (r *receiver) beginPlacement(csn uint64, s slot, until int64) {
	if r.placement.chunks == 0 {
		r.placement.until = until
	}
	r.placement.chunks++
	have, slot := r.at(csn)
	*have, *slot = true, s
}

// acksDeferred reports whether acknowledgements wait for placements.
func (r *receiver) acksDeferred(now int64) bool {
	if r.placement.chunks == 0 || now >= r.placement.until {
		return false
	}
	r.ackAt = min(r.ackAt, r.placement.until)
	return true
}

// onPlaced processes the end of a placement.
func (c *Conn) onPlaced(ev *Event) {
	f := c.flow(ev.Imm.Flow)
	if f == nil || f.failed {
		return
	}
	r := &f.recv
	d := int64(int16(ev.Imm.CSN - uint16(r.next)))
	if d < 0 || d >= int64(len(r.early)) {
		return
	}
	csn := r.next + uint64(d)
	have, slot := r.at(csn)
	if !*have || slot.status != StatusPlacing {
		return
	}
	f.touch()
	r.placement.chunks--
	*have = false
	switch ev.Status {
	case StatusNoRecv:
		c.stats.Refused++
		r.ackNow = true
		return
	case statusSuccess:
		f.echo(ev.Imm.CSN, ev.Header.Xmit)
	}
	s := *slot
	s.status = ev.Status
	if m := f.fetching(s.message); s.op == wire.OpAnswer && s.status != statusSuccess {
		if m != nil {
			m.Status = s.status
		}
		c.stats.Refused++
		return
	}
	f.accept(csn, s, int(s.len))
}
