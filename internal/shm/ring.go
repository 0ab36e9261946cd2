package shm

import (
	"encoding/binary"
	"sync/atomic"
)

// A ring is a table of slots for headers, and as many places for payloads:
//
//	slot   0 sequence 4 | 4 length 4 | 8 header 56
//
// Entry k, counted from 0, is in slot k modulo Slots, and is there when the slot's sequence is k+1. The
// sequence is stored last, so a reader that sees it sees the rest. It is in the same line as the header, so
// an entry moves one line between the processors. Payloads are elsewhere: otherwise a payload could look
// like a header when the ring comes round.
const (
	// Slots is the number of entries of a ring.
	Slots = 1 << 8
	// Header is the length of an entry's header.
	Header = Line - headerAt
	// MaxPayload is the length of the longest payload.
	MaxPayload = 4096
	// RingSize is the number of bytes of a ring.
	RingSize = Slots * (Line + stride)

	// stride keeps the beginnings of payloads out of the same set of a cache.
	stride   = MaxPayload + Line
	lengthAt = 4
	headerAt = 8
)

// Writer puts entries into a ring of this side's segment.
type Writer struct {
	ring []byte
	// taken is the peer's word that counts the entries that it has read.
	taken *atomic.Uint32
	// next counts the entries that were written.
	next uint32
	// seen is taken when it was last looked at. It is at most next.
	seen uint32
}

// Init makes w write to a ring in b. taken is in the peer's segment.
func (w *Writer) Init(b []byte, taken *atomic.Uint32) { w.ring, w.taken = b[:RingSize:RingSize], taken }

// Room reports whether n more entries fit. It does not believe a peer that claims to have read more than
// was written.
func (w *Writer) Room(n uint32) bool {
	if Slots-(w.next-w.seen) >= n {
		return true
	}
	if taken := w.taken.Load(); taken-w.seen <= w.next-w.seen {
		w.seen = taken
	}
	return Slots-(w.next-w.seen) >= n
}

// Begin returns the header and the payload of the next entry, to be filled in before Publish. The
// caller has made sure that there is room.
func (w *Writer) Begin(length int) (header, payload []byte) {
	i := w.next % Slots
	slot := w.ring[i*Line:][:Line:Line]
	binary.NativeEndian.PutUint32(slot[lengthAt:], uint32(length))
	return slot[headerAt:], w.ring[Slots*Line+i*stride:][:length]
}

// Publish makes the entry visible to the peer.
func (w *Writer) Publish() {
	slot := w.next % Slots
	w.next++
	Word32(w.ring, int(slot*Line)).Store(w.next)
}

// Reader takes entries out of the ring of the peer's segment.
type Reader struct {
	ring []byte
	// taken is this side's word that counts the entries that it has read.
	taken *atomic.Uint32
	next  uint32
}

// Init makes r read a ring in b. taken is in this side's segment.
func (r *Reader) Init(b []byte, taken *atomic.Uint32) { r.ring, r.taken = b[:RingSize:RingSize], taken }

// Ready reports whether there are entries that were not released. Any goroutine may call it.
func (r *Reader) Ready() bool { return r.has(r.taken.Load()) }

func (r *Reader) has(next uint32) bool {
	return Word32(r.ring, int(next%Slots*Line)).Load() == next+1
}

// Next copies the header of the next entry to header and returns its payload, which is in the ring until
// Release and may change at any time. ok says that there is an entry. sound says that its payload is
// within bounds.
func (r *Reader) Next(header *[Header]byte) (payload []byte, ok, sound bool) {
	if !r.has(r.next) {
		return nil, false, false
	}
	i := r.next % Slots
	slot := r.ring[i*Line:][:Line:Line]
	length := binary.NativeEndian.Uint32(slot[lengthAt:])
	*header = [Header]byte(slot[headerAt:])
	r.next++
	if length > MaxPayload {
		return nil, true, false
	}
	return r.ring[Slots*Line+i*stride:][:length], true, true
}

// Release lets the peer reuse the entries that were read. It reports whether there were any.
func (r *Reader) Release() bool {
	if r.taken.Load() == r.next {
		return false
	}
	r.taken.Store(r.next)
	return true
}
