package sim

import (
	"bytes"
	"encoding/binary"
	"slices"

	"ibverbx/verbs"
)

// This file checks that the bytes of a successful request are in place and stay there until their range is reused, and that atomics are
// executed once and in order.

// checkEffect checks the effect of a request that succeeded.
func (e *end) checkEffect(r *request) {
	switch {
	case r.bad:
		e.fail("bytes", "%v succeeded with an invalid key", r)
	case r.atomic():
		e.checkAtomic(r)
	case r.wr.Opcode == verbs.OpRDMARead:
		if !e.localHolds(r) {
			e.fail("bytes", "%v succeeded, but its local bytes are not those of the peer", r)
		}
	case r.remote != nil:
		e.checkRemote("bytes", r, "succeeded")
	}
}

// checkRemote checks that the bytes of a WRITE are in the peer's memory.
func (e *end) checkRemote(check string, r *request, when string) {
	if r.remote.holds(e.w.pool, r.content) {
		r.verified = true
		return
	}
	got, want := r.remote.bytes(), e.w.pool.content(r.content, r.length)
	i := 0
	for got[i] == want[i] {
		i++
	}
	e.fail(check, "%v %s, but byte %d of %d at the peer is %#02x, want %#02x", r, when, i, r.length, got[i], want[i])
}

// localHolds reports whether the pieces of a READ hold the right bytes.
func (e *end) localHolds(r *request) bool {
	mem, at := e.host.memory.Bytes(), uint32(0)
	for i := range r.wr.NumSGE {
		s := &r.wr.SGE[i]
		if !bytes.Equal(mem[s.Offset:][:s.Length], e.w.pool.content(r.content+at, int(s.Length))) {
			return false
		}
		at += s.Length
	}
	return true
}

// released checks that a range still holds its content when it is released.
func (w *world) released(s *span) {
	if s.known && !s.holds(w.pool, s.content) {
		w.fail("bytes", s.label, "the bytes of request %d at the peer have changed since it succeeded", s.id)
	}
}

// history tracks the values of a counter. An atomic that fails without its VirtualQP may or may not have been executed. The next
// successful atomic shows which.
type history struct {
	values []uint64 // value after each atomic, if all are executed; the first is the initial value
	may    []uint64 // possible values after the completed atomics
	lost   bool     // more than mayMost values are possible; may is empty
}

// mayMost is the maximum length of history.may.
const mayMost = 1024

// after returns the value of a counter after an atomic.
func (r *request) after(v uint64) uint64 {
	switch {
	case r.wr.Opcode == verbs.OpAtomicFetchAndAdd:
		return v + r.wr.CompareAdd
	case v == r.wr.CompareAdd:
		return r.wr.Swap
	}
	return v
}

// doubt records an atomic that may or may not have been executed.
func (h *history) doubt(r *request) {
	r.doubted = true
	for _, v := range h.may {
		if v = r.after(v); !slices.Contains(h.may, v) {
			h.may = append(h.may, v)
		}
	}
	if h.lost = h.lost || len(h.may) > mayMost; h.lost {
		h.may = nil
	}
}

// sharedWord is the counter that all peers of a host add to. An end has counters 0 and 1 for itself.
const sharedWord = 2

// aimAtomic gives an atomic a counter and predicts its value. The engine executes the atomics of one
// VirtualQP in order.
func (e *end) aimAtomic(r *request) {
	rng := e.w.rng
	r.word = rng.IntN(3)
	r.shared = r.word == sharedWord
	if r.shared {
		r.wr.Opcode = verbs.OpAtomicFetchAndAdd
		r.wr.CompareAdd = 1 + rng.Uint64N(1000)
		r.wr.RemoteOffset = uint64(e.peer.host.shared.off)
		return
	}
	h := &e.atomics[r.word]
	if len(h.values) == 0 {
		h.values, h.may = append(h.values, 0), append(h.may, 0)
	}
	r.wr.RemoteOffset = uint64(e.peer.words.off + 8*r.word)
	was := h.values[len(h.values)-1]
	next := was
	if r.wr.Opcode == verbs.OpAtomicFetchAndAdd {
		r.wr.CompareAdd = rng.Uint64()
		next += r.wr.CompareAdd
	} else {
		r.wr.CompareAdd, r.wr.Swap = was, rng.Uint64()
		if rng.IntN(3) == 0 {
			r.wr.CompareAdd++ // It does not match.
		} else {
			next = r.wr.Swap
		}
	}
	r.place = len(h.values)
	h.values = append(h.values, next)
}

// checkAtomic checks the value that an atomic fetched.
func (e *end) checkAtomic(r *request) {
	got := binary.NativeEndian.Uint64(r.local.bytes())
	if r.shared {
		e.peer.host.sum[0] += r.wr.CompareAdd
		return
	}
	h := &e.atomics[r.word]
	if !h.lost && !slices.Contains(h.may, got) {
		e.fail("bytes", "%v on counter %d found %#x, want one of %#x", r, r.word, got, h.may)
	}
	h.may, h.lost = append(h.may[:0], r.after(got)), false
}

// happened reports whether at least the first n atomics on a counter have been executed.
func (e *end) happened(word, n int) bool {
	h := &e.atomics[word]
	return slices.Contains(h.values[n:], e.counter(word))
}

// counter reads a counter of the end at its peer.
func (e *end) counter(word int) uint64 {
	return binary.NativeEndian.Uint64(e.peer.words.bytes()[8*word:])
}

// checkCounters checks all counters at the end of the run.
func (w *world) checkCounters() {
	for _, e := range w.ends {
		for word := range e.atomics {
			e.checkCounter(word)
		}
		for _, r := range e.sends {
			if r.shared && (!r.done || r.status != verbs.StatusSuccess) {
				e.peer.host.sum[1] += r.wr.CompareAdd
			}
		}
	}
	for _, h := range w.hosts {
		got := binary.NativeEndian.Uint64(h.shared.bytes())
		if least := h.sum[0]; got < least || got > least+h.sum[1] {
			w.fail("bytes", "", "host %d: the shared counter is %d, want %d to %d", h.index, got, least, least+h.sum[1])
		}
	}
}

// checkCounter checks a counter that only one end uses. Of the atomics that failed with their
// VirtualQP, or never ended, some number of the first ones was executed: one lane carries them in
// order.
func (e *end) checkCounter(word int) {
	h := &e.atomics[word]
	if len(h.values) == 0 || h.lost {
		return
	}
	now := e.counter(word)
	all := slices.Clone(h.may)
	for _, first := range h.may {
		v := first
		for _, r := range e.sends {
			if r.atomic() && !r.shared && r.word == word && !r.doubted && (!r.done || r.status != verbs.StatusSuccess) {
				v = r.after(v)
				all = append(all, v)
			}
		}
	}
	if !slices.Contains(all, now) {
		e.fail("bytes", "counter %d at the peer holds %#x, which is none of the %d possible values", word, now, len(all))
	}
}
