package seal

import "encoding/binary"

// Verdict is what became of a packet.
type Verdict uint8

// Verdicts.
const (
	// Opened means that the packet is intact and new.
	Opened Verdict = iota
	// Bad means that the packet was not sealed with a key of the association, or has changed since.
	Bad
	// Replayed means that the packet has been opened before.
	Replayed
	// Old means that the packet is older than the window, or its key is no longer in use.
	Old
)

// maxAhead is how many keys a receiver may be behind its sender, and how many it derives in a minute at most: deriving
// one takes as long as opening some packets. A sender that gets no answer stops taking new keys by time before that.
const maxAhead = 64

// maxWindows is how many replay windows an Association has: a window takes 2 KiB, and the peer chooses the number of
// its sockets.
const maxWindows = 16

// maxCounter is the highest counter that is opened. No sender reaches it. Without a limit the next counter of a window
// could wrap around to 0.
const maxCounter = 1 << 63

// incoming is the receiving direction of an Association.
type incoming struct {
	// epoch is that of present.
	epoch   uint64
	present *key
	// last is the key before present. Nil means that its time is over.
	last *key
	// ticks counts the ticks since present was first used.
	ticks int
	// advanced is by how many epochs the receiver has advanced since the last tick.
	advanced int
	// ahead are keys after present that were asked for, at most maxAhead. They are kept, so that a forger
	// cannot make the receiver derive them again and again.
	ahead []*key
	// windows are those of the sender's sockets, modulo maxWindows, nil until the first packet.
	windows [maxWindows]*window
}

func (in *incoming) init(secret []byte) (err error) {
	in.present, err = newKey(secret)
	return err
}

// Open opens a sealed packet in place and returns what it carries. Index must have accepted it and must have led
// to this association. The bytes after what it carries are those of the tag. A packet that was not opened is
// lost, and its bytes may be cleared.
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

// keyOf returns the key of an epoch, as a distance from the present one.
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

// advance makes the key that is so many epochs ahead the present one.
func (in *incoming) advance(ahead int) {
	in.last = in.present
	if ahead > 1 {
		in.last = in.ahead[ahead-2]
	}
	in.present = in.ahead[ahead-1]
	clear(in.last.secret) // it derives nothing any more
	in.ahead = append([]*key(nil), in.ahead[ahead:]...)
	in.epoch += uint64(ahead)
	in.advanced += ahead
	in.ticks = 0
}

// expire ends the overlap of two keys.
func (in *incoming) expire() {
	in.advanced = 0
	if in.ticks++; in.ticks >= 2 {
		in.last = nil
	}
}
