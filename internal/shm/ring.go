package shm

import (
	"encoding/binary"
	"sync/atomic"
)

// A ring is a table of header slots, and as many payload slots:
//
//	slot   0 sequence 4 | 4 length 4 | 8 header 56
//
// Entry k, counted from 0, is in slot k modulo Slots, and is available when the slot's sequence is
// k+1. The sequence is stored last, so a reader that sees it sees the rest. It shares a cache line
// with the header, so an entry moves one line between CPUs. Payloads are stored separately:
// otherwise a payload could look like a header after the ring wraps around.
const (
	// Slots is the number of entries of a ring.
	Slots = 1 << 8
	// Header is the length of an entry's header.
	Header = CacheLine - headerAt
	// MaxPayload is the maximum length of a payload.
	MaxPayload = 4096
	// RingSize is the size of a ring in bytes.
	RingSize = Slots * (CacheLine + stride)

	// stride keeps the starts of payloads out of the same cache set.
	stride   = MaxPayload + CacheLine
	lengthAt = 4
	headerAt = 8
)

// Writer writes entries to a ring in this side's segment.
type Writer struct {
	ring []byte
	// taken is the peer's count of entries read.
	taken *atomic.Uint32
	// next counts the entries written.
	next uint32
	// seen is the last value read from taken. It is at most next.
	seen uint32
}

// Init makes w write to a ring in b. taken is in the peer's segment.
func (w *Writer) Init(b []byte, taken *atomic.Uint32) { w.ring, w.taken = b[:RingSize:RingSize], taken }

// Room reports whether n more entries fit. It ignores a peer that claims to have read more than was
// written.
func (w *Writer) Room(n uint32) bool {
	if Slots-(w.next-w.seen) >= n {
		return true
	}
	if taken := w.taken.Load(); taken-w.seen <= w.next-w.seen {
		w.seen = taken
	}
	return Slots-(w.next-w.seen) >= n
}

// Written returns the number of entries written.
func (w *Writer) Written() uint32 { return w.next }

// Begin returns the header and the payload of the next entry, to be filled in before Publish. The
// caller must have called Room.
func (w *Writer) Begin(length int) (header, payload []byte) {
	i := w.next % Slots
	slot := w.ring[i*CacheLine:][:CacheLine:CacheLine]
	binary.NativeEndian.PutUint32(slot[lengthAt:], uint32(length))
	return slot[headerAt:], w.ring[Slots*CacheLine+i*stride:][:length]
}

// Publish makes the entry visible to the peer.
func (w *Writer) Publish() {
	slot := w.next % Slots
	w.next++
	Word32(w.ring, int(slot*CacheLine)).Store(w.next)
}

// Reader reads entries from the ring in the peer's segment.
type Reader struct {
	ring []byte
	// taken is this side's count of entries read.
	taken *atomic.Uint32
	next  uint32
}

// Init makes r read a ring in b. taken is in this side's segment.
func (r *Reader) Init(b []byte, taken *atomic.Uint32) { r.ring, r.taken = b[:RingSize:RingSize], taken }

// Ready reports whether the ring has unreleased entries. It is safe for concurrent use.
func (r *Reader) Ready() bool { return r.has(r.taken.Load()) }

// Unread reports whether the ring has entries that Next has not returned.
func (r *Reader) Unread() bool { return r.has(r.next) }

func (r *Reader) has(next uint32) bool {
	return Word32(r.ring, int(next%Slots*CacheLine)).Load() == next+1
}

// Next copies the header of the next entry to header and returns its payload, which stays in the
// ring until Release and may change at any time. ok is false if the ring is empty. sound is set if
// the payload is within bounds.
func (r *Reader) Next(header *[Header]byte) (payload []byte, ok, sound bool) {
	if !r.has(r.next) {
		return nil, false, false
	}
	i := r.next % Slots
	slot := r.ring[i*CacheLine:][:CacheLine:CacheLine]
	length := binary.NativeEndian.Uint32(slot[lengthAt:])
	*header = [Header]byte(slot[headerAt:])
	r.next++
	if length > MaxPayload {
		return nil, true, false
	}
	return r.ring[Slots*CacheLine+i*stride:][:length], true, true
}

// Release lets the peer reuse the entries read so far, and returns true, if there are at least n of
// them. n must be positive.
func (r *Reader) Release(n uint32) bool {
	if r.next-r.taken.Load() < n {
		return false
	}
	r.taken.Store(r.next)
	return true
}
