package core

import "ibverbx/reliable/wire"

// placement is about the chunks of a flow whose bytes are on the way from a buffer of the owner to their place.
// Such a chunk is in the window, so that a duplicate is not placed again, and after the fence. It is neither
// acknowledged nor in order before the owner says that it is in place.
type placement struct {
	chunks int   // the number of such chunks
	until  int64 // when acknowledgements no longer wait for them
}

// beginPlacement notes that a chunk is being placed. Acknowledgements wait for it, at the latest to until: the
// peer takes a gap before a chunk of the same path for a loss.
func (r *receiver) beginPlacement(csn uint64, s slot, until int64) {
	if r.placement.chunks == 0 {
		r.placement.until = until
	}
	r.placement.chunks++
	have, slot := r.at(csn)
	*have, *slot = true, s
}

// acksDeferred reports whether acknowledgements wait for chunks that are being placed.
func (r *receiver) acksDeferred(now int64) bool {
	if r.placement.chunks == 0 || now >= r.placement.until {
		return false
	}
	r.ackAt = min(r.ackAt, r.placement.until)
	return true
}

// onPlaced takes the end of a placement.
func (c *Conn) onPlaced(ev *Event) {
	f := c.flow(ev.Imm.Flow)
	if f == nil || f.failed {
		return
	}
	r := &f.recv
	d := int64(int16(ev.Imm.CSN - uint16(r.next)))
	if d < 0 || d >= int64(len(r.have)) {
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
