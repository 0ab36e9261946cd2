package sim

import (
	"bytes"
	"encoding/binary"
	"slices"

	"ibverbx/verbs"
)

// This file holds: every byte is where it should be when the request that brings it has
// succeeded, stays there until the range is used again, and atomics happen once, in order.

// checkEffect looks at what a request that succeeded has done.
func (e *end) checkEffect(r *request) {
	switch {
	case r.bad:
		e.fail("bytes", "%v succeeded with a key that is not valid", r)
	case r.atomic():
		e.checkAtomic(r)
	case r.wr.Opcode == verbs.OpRDMARead:
		if !e.localHolds(r) {
			e.fail("bytes", "%v succeeded without the bytes of the peer", r)
		}
	case r.remote != nil:
		e.checkRemote("bytes", r, "succeeded")
	}
}

// checkRemote wants the bytes of a WRITE in the peer's memory.
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
	e.fail(check, "%v %s, and byte %d of %d at the peer is %#02x, want %#02x", r, when, i, r.length, got[i], want[i])
}

// localHolds reports whether the pieces of a READ hold what it was to fetch.
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

// released looks at a range that goes back: what was in it must still be there.
func (w *world) released(s *span) {
	if s.known && !s.holds(w.pool, s.content) {
		w.fail("bytes", s.label, "the bytes that request %d left at the peer have changed since it succeeded", s.id)
	}
}

// history is what a counter goes through. An atomic on it that has failed while its VirtualQP
// goes on has happened or not, and nobody knows: but the counter holds one of two values
// then, and the next that succeeds says which.
type history struct {
	values []uint64 // one after each atomic, if all happen
	may    []uint64 // what it may hold after those that have ended
	lost   bool     // those are more than it is worth to keep
}

// mayMost is how many values of a counter are kept.
const mayMost = 1024

// after is what an atomic leaves of a counter.
func (r *request) after(v uint64) uint64 {
	switch {
	case r.wr.Opcode == verbs.OpAtomicFetchAndAdd:
		return v + r.wr.CompareAdd
	case v == r.wr.CompareAdd:
		return r.wr.Swap
	}
	return v
}

// doubt takes an atomic that has happened or not.
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

// Counters: each end has two at its peer that nobody else uses, and one that all peers of a
// host add to.
const sharedWord = 2

// aimAtomic gives an atomic a counter and foretells what it finds there. The engine does
// atomics of one VirtualQP in order.
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
			r.wr.CompareAdd++ // does not match
		} else {
			next = r.wr.Swap
		}
	}
	r.place = len(h.values)
	h.values = append(h.values, next)
}

// checkAtomic looks at what an atomic that succeeded has fetched.
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

// happened reports whether at least the first n atomics on a counter have happened.
func (e *end) happened(word, n int) bool {
	h := &e.atomics[word]
	now := binary.NativeEndian.Uint64(e.peer.words.bytes()[8*word:])
	for _, v := range h.values[n:] {
		if v == now {
			return true
		}
	}
	return false
}

// checkCounters looks at all counters when nothing is under way any more.
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
			w.fail("bytes", "", "host %d: the counter of all peers is %d, want %d to %d", h.index, got, least, least+h.sum[1])
		}
	}
}

// checkCounter looks at a counter of an end's own. Of the atomics that failed with their
// VirtualQP, or never ended, the first so many have happened: one lane carries them in order.
func (e *end) checkCounter(word int) {
	h := &e.atomics[word]
	if len(h.values) == 0 || h.lost {
		return
	}
	now := binary.NativeEndian.Uint64(e.peer.words.bytes()[8*word:])
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
		e.fail("bytes", "counter %d at the peer holds %#x, which none of the %d values is that its atomics can leave", word, now, len(all))
	}
}
