package seal

// WindowLen is the maximum distance from a packet's counter to the newest counter in its window. All
// sockets of a sender share one counter. With sixteen sockets in use, each with its own window, about a
// thousand packets of the same socket may overtake a packet.
const WindowLen = (windowWords - 1) * 64

// windowWords is a power of two.
const windowWords = 256

// window records the received counters. It is a ring of bits, as in RFC 6479: one word is the
// newest and only partly valid, so a newer packet clears whole words.
type window struct {
	// next is one more than the newest counter.
	next uint64
	bits [windowWords]uint64
}

// look reports whether a packet may be new. It does not change the window, because the packet may
// be forged.
func (w *window) look(counter uint64) Verdict {
	switch {
	case counter >= w.next:
		return Opened
	case w.next-counter > WindowLen:
		return Old
	case w.bits[counter/64%windowWords]>>(counter%64)&1 != 0:
		return Replayed
	}
	return Opened
}

// mark records a packet that look has accepted.
func (w *window) mark(counter uint64) {
	if counter >= w.next {
		if w.next > 0 {
			newest := (w.next - 1) / 64
			for k := min(counter/64-newest, windowWords); k > 0; k-- {
				w.bits[(newest+k)%windowWords] = 0
			}
		}
		w.next = counter + 1
	}
	w.bits[counter/64%windowWords] |= 1 << (counter % 64)
}
