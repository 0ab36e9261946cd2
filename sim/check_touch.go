package sim

import (
	"slices"

	"ibverbx/softnic"
)

// This file checks that NICs touch the local bytes of a request only before its completion, write its
// remote bytes only before its success, and write nowhere else.

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

// answers reports whether an access is a part of the answer to a READ on a wrapped rail. There the
// responder sends it. Requests of its own have no bytes where peers read.
func (h *host) answers(off int, t *softnic.MemoryAccess) bool {
	if t.Kind != softnic.AccessGather || h.transports[slices.Index(h.nics, t.NIC)] == nil {
		return false
	}
	return slices.ContainsFunc(h.ends, func(e *end) bool {
		return slices.ContainsFunc([]*zone{e.in, e.library.zone, e.spare[spareEnd][1].zone, e.spare[spareAsk][1].zone}, func(z *zone) bool {
			return z.holds(off, int(t.Length))
		})
	})
}

// checkUntouched checks that a request that was not taken has no effect.
func (e *end) checkUntouched(r *request) {
	for _, s := range []*span{r.local, r.remote} {
		if s != nil && s.touches > 0 {
			e.fail("touch", "%v was not taken, but its bytes were touched", r)
		}
	}
}
