package sim

import (
	"slices"

	"ibverbx/softnic"
)

// This file checks that NICs access a request's local bytes only before its completion, write its remote bytes only before its success, and
// do not write anywhere else.

// touched checks an access of one of the host's NICs to memory.
func (h *host) touched(t softnic.MemoryAccess) {
	off := int(t.Addr - h.memory.Addr())
	if t.Addr < h.memory.Addr() || off >= h.memory.Len() {
		return // It is memory of the engine.
	}
	h.w.trace.touch(h, off, &t)
	if t.Kind == softnic.AccessRemoteRead || h.answers(off, &t) {
		return // It is harmless: a duplicate READ is answered again.
	}
	s := h.owners[off/granule]
	switch {
	case s == nil || off < s.off || off+int(t.Length) > s.off+s.len:
		h.w.fail("touch", "", "host %d: %s of %d bytes at %d, which belongs to no request or receive", h.index, t.Kind, t.Length, off)
	case !s.allow.has(t.Kind):
		h.w.fail("touch", s.label, "%s of %d bytes at %d of request or receive %d, which has ended or does not allow it",
			t.Kind, t.Length, off-s.off, s.id)
	default:
		s.touches++
		if len(h.w.watches) > 0 && t.Kind == softnic.AccessRemoteWrite {
			h.w.placed = append(h.w.placed, t)
		}
	}
}

// answers reports whether an access belongs to a READ response on a wrapped rail, where the responder sends it. The responder's own
// requests never use memory that peers read.
func (h *host) answers(off int, t *softnic.MemoryAccess) bool {
	if t.Kind != softnic.AccessGather || h.transports[slices.Index(h.nics, t.NIC)] == nil {
		return false
	}
	return slices.ContainsFunc(h.ends, func(e *end) bool {
		return slices.ContainsFunc([]*ringAllocator{e.in, e.library.ring, e.spare[spareEnd][1].ring, e.spare[spareAsk][1].ring}, func(z *ringAllocator) bool {
			return z.holds(off, int(t.Length))
		})
	})
}

// checkUntouched checks that a refused request has no effect.
func (e *end) checkUntouched(r *request) {
	for _, s := range []*span{r.local, r.remote} {
		if s != nil && s.touches > 0 {
			e.fail("touch", "%v was not taken, but its bytes were touched", r)
		}
	}
}
