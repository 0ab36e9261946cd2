package seal

import "encoding/binary"

// Verdict is the result of opening a packet.
type Verdict uint8

// Verdicts.
const (
	// Opened means that the packet is intact and new.
	Opened Verdict = iota
	// Bad means that the packet was not sealed with a key of the association, or was modified.
	Bad
	// Replayed means that the packet has been opened before.
	Replayed
	// Old means that the packet is older than the window, or its key is no longer in use.
	Old
)

// maxAhead is the maximum number of keys a receiver may lag behind its sender, and the maximum
// number it derives per minute: deriving a key takes as long as opening several packets. A sender
// without responses stops rekeying by time before that.
const maxAhead = 64

// maxWindows is the number of replay windows of an Association. A window takes 2 KiB, and the peer
// chooses the number of its sockets.
const maxWindows = 16

// maxCounter is the highest accepted counter. No sender reaches it. Without this limit the next
// counter of a window could wrap around to 0.
const maxCounter = 1 << 63

// incoming is the receiving direction of an Association.
type incoming struct {
	// epoch is the epoch of present.
	epoch   uint64
	present *key
	// last is the key before present, nil once its overlap has expired.
	last *key
	// ticks counts the ticks since present was first used.
	ticks int
	// advanced is the number of epochs advanced since the last tick.
	advanced int
	// ahead holds derived keys after present, at most maxAhead. They are cached, so that a forger
	// cannot make the receiver derive them repeatedly.
	ahead []*key
	// windows holds the replay windows, indexed by the sender's socket modulo maxWindows. A window is nil
	// until its first packet.
	windows [maxWindows]*window
}

func (in *incoming) init(secret []byte) (err error) {
	in.present, err = newKey(secret)
	return err
}

// Open opens a sealed packet in place and returns its payload. Index must have accepted it and
// selected this association. The tag follows the payload in memory. If a packet is rejected, its
// bytes may be cleared.
func (a *Association) Open(b []byte) ([]byte, Verdict) {
	in := &a.in
	counter, w := binary.BigEndian.Uint64(b[headCounter:]), &in.windows[b[headSocket]%maxWindows]
	if counter > maxCounter {
		return nil, Bad
	}
	if *w != nil {
		if v := (*w).look(counter); v != Opened {
			return nil, v
		}
	}
	ahead := int(int16(binary.BigEndian.Uint16(b[headEpoch:]) - uint16(in.epoch)))
	k, v := in.keyOf(ahead)
	if v != Opened {
		return nil, v
	}
	plain, err := k.aead.Open(b[HeaderLen:HeaderLen], k.nonceOf(counter), b[HeaderLen:], b[:HeaderLen])
	if err != nil {
		return nil, Bad
	}
	if ahead > 0 {
		in.advance(ahead)
	}
	if *w == nil {
		*w = &window{}
	}
	(*w).mark(counter)
	a.unanswered = 0
	return plain, Opened
}

// keyOf returns the key that is ahead epochs after the present one; ahead may be negative.
func (in *incoming) keyOf(ahead int) (*key, Verdict) {
	switch {
	case ahead == 0:
		return in.present, Opened
	case ahead == -1 && in.last != nil:
		return in.last, Opened
	case ahead < 0:
		return nil, Old
	case ahead > maxAhead-in.advanced:
		return nil, Bad
	}
	for len(in.ahead) < ahead {
		k := in.present
		if n := len(in.ahead); n > 0 {
			k = in.ahead[n-1]
		}
		k, err := k.next()
		if err != nil {
			panic(err) // the lengths of all keys are constants
		}
		in.ahead = append(in.ahead, k)
	}
	return in.ahead[ahead-1], Opened
}

// advance moves the present epoch ahead, to a key that keyOf has derived.
func (in *incoming) advance(ahead int) {
	in.last = in.present
	if ahead > 1 {
		in.last = in.ahead[ahead-2]
	}
	in.present = in.ahead[ahead-1]
	clear(in.last.secret) // no longer needed for derivation
	in.ahead = append([]*key(nil), in.ahead[ahead:]...)
	in.epoch += uint64(ahead)
	in.advanced += ahead
	in.ticks = 0
}

// expire drops the previous key after its overlap.
func (in *incoming) expire() {
	in.advanced = 0
	if in.ticks++; in.ticks >= 2 {
		in.last = nil
	}
}
