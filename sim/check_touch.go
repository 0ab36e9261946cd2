package sim

import "ibverbx/softnic"

// This file holds: after its completion a request's local bytes are not touched again, and
// after a success what it wrote is not written again; nothing is written where nobody asked
// for it.

// touched sees every access of the host's NICs to memory.
func (h *host) touched(t softnic.Touch) {
	off := int(t.Addr - h.memory.Addr())
	if t.Addr < h.memory.Addr() || off >= h.memory.Len() {
		return // the engine's own
	}
	h.w.trace.touch(h, off, &t)
	if t.Kind == softnic.TouchRemoteRead {
		return // harmless, and a READ that comes twice is answered twice
	}
	s := h.owners[off/granule]
	switch {
	case s == nil || off < s.off || off+int(t.Length) > s.off+s.len:
		h.w.fail("touch", "", "host %d: %s of %d bytes at %d, where no request or receive has asked for it", h.index, t.Kind, t.Length, off)
	case !s.allow.has(t.Kind):
		h.w.fail("touch", s.label, "%s of %d bytes at %d of request or receive %d, which does not allow it: it has ended, or never asked",
			t.Kind, t.Length, off-s.off, s.id)
	default:
		s.touches++
		if len(h.w.watches) > 0 && t.Kind == softnic.TouchRemoteWrite {
			h.w.placed(&t)
		}
	}
}

// checkUntouched wants a request that was not taken to be left alone.
func (e *end) checkUntouched(r *request) {
	for _, s := range []*span{r.local, r.remote} {
		if s != nil && s.touches > 0 {
			e.fail("touch", "%v was not taken, and its bytes were touched", r)
		}
	}
}
