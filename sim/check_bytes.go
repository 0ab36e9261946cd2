package sim

import (
	"bytes"
	"encoding/binary"

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

// history are the values that a counter takes: one after each atomic on it.
type history struct {
	values []uint64
	sure   int // how many atomics have happened for certain
	// unknown says that an atomic failed and its VirtualQP goes on: what the counter holds
	// cannot be foretold any more.
	unknown bool
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
		h.values = append(h.values, 0)
	}
	r.wr.RemoteOffset = uint64(e.peer.words.off + 8*r.word)
	r.was = h.values[len(h.values)-1]
	next := r.was
	if r.wr.Opcode == verbs.OpAtomicFetchAndAdd {
		r.wr.CompareAdd = rng.Uint64()
		next += r.wr.CompareAdd
	} else {
		r.wr.CompareAdd, r.wr.Swap = r.was, rng.Uint64()
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
	if got != r.was && !e.atomics[r.word].unknown {
		e.fail("bytes", "%v on counter %d found %#x, want %#x", r, r.word, got, r.was)
	}
	e.atomics[r.word].sure = r.place
}

// happened reports whether at least the first n atomics on a counter have happened.
func (e *end) happened(word, n int) bool {
	h := &e.atomics[word]
	if h.unknown {
		return true
	}
	now := binary.NativeEndian.Uint64(e.peer.words.bytes()[8*word:])
	for _, v := range h.values[n:] {
		if v == now {
			return true
		}
	}
	return false
}

// checkCounters looks at all counters when nothing is under way any more. An atomic that
// failed may have happened or not.
func (w *world) checkCounters() {
	for _, e := range w.ends {
		for word := range e.atomics {
			if h := &e.atomics[word]; len(h.values) > 0 && !e.happened(word, h.sure) {
				e.fail("bytes", "counter %d at the peer holds a value that no sequence of %d atomics leaves, of which %d succeeded",
					word, len(h.values)-1, h.sure)
			}
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
