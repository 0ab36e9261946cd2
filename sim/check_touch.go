package sim

import "ibverbx/softnic"

// This file checks that NICs touch the local bytes of a request only before its completion, write its
// remote bytes only before its success, and write nowhere else.

// touched checks an access of one of the host's NICs to memory.
func (h *host) touched(t softnic.Touch) {
	off := int(t.Addr - h.memory.Addr())
	if t.Addr < h.memory.Addr() || off >= h.memory.Len() {
		return // It is memory of the engine.
	}
	h.w.trace.touch(h, off, &t)
	if t.Kind == softnic.TouchRemoteRead {
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
		if len(h.w.watches) > 0 && t.Kind == softnic.TouchRemoteWrite {
			h.w.placed = append(h.w.placed, t)
		}
	}
}

// checkUntouched checks that a request that was not taken has no effect.
func (e *end) checkUntouched(r *request) {
	for _, s := range []*span{r.local, r.remote} {
		if s != nil && s.touches > 0 {
			e.fail("touch", "%v was not taken, but its bytes were touched", r)
		}
	}
}
