package core

import "ibverbx/reliable/wire"

// placing is about the chunks of a flow whose bytes are on the way from a buffer of the owner to their place.
// Such a chunk is in the window, so that a duplicate is not placed again, and after the fence. It is neither
// acknowledged nor in order before the owner says that it is in place.
type placing struct {
	chunks int   // the number of such chunks
	until  int64 // when acknowledgements no longer wait for them
}

// beginPlacing notes that a chunk is being placed. Acknowledgements wait for it, at the latest to until: the
// peer takes a gap before a chunk of the same path for a loss.
func (r *receiver) beginPlacing(csn uint64, s slot, until int64) {
	if r.placing.chunks == 0 {
		r.placing.until = until
	}
	r.placing.chunks++
	have, slot := r.at(csn)
	*have, *slot = true, s
}

// held reports whether acknowledgements wait for chunks that are being placed.
func (r *receiver) held(now int64) bool {
	if r.placing.chunks == 0 || now >= r.placing.until {
		return false
	}
	r.ackAt = min(r.ackAt, r.placing.until)
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
	r.placing.chunks--
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
