package shm

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// rings returns both ends of a ring.
func rings() (*Writer, *Reader) {
	var w Writer
	var r Reader
	b, taken := make([]byte, RingSize), new(atomic.Uint32)
	w.Init(b, taken)
	r.Init(b, taken)
	return &w, &r
}

// TestRing: entries are read as written, in order, for any length and reader lag. Room is accurate,
// and an empty ring has free slots.
func TestRing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w, r := rings()
		var sent []uint64
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		steps := rapid.SliceOfN(rapid.IntRange(-300, 300), 1, 60).Draw(rt, "steps")
		number := uint64(0)
		var header [Header]byte
		for _, n := range steps {
			for ; n > 0 && w.Room(1); n-- { // write
				length := rng.IntN(MaxPayload + 1)
				if rng.IntN(2) == 0 {
					length = rng.IntN(100)
				}
				number++
				h, p := w.Begin(length)
				binary.NativeEndian.PutUint64(h, number)
				fill(p, number)
				w.Publish()
				sent = append(sent, number)
			}
			for ; n < 0 && len(sent) > 0; n++ { // read
				p, ok, sound := r.Next(&header)
				if got := binary.NativeEndian.Uint64(header[:]); !ok || !sound || got != sent[0] {
					rt.Fatalf("entry %d, %v, %v, want entry %d", got, ok, sound, sent[0])
				}
				want := make([]byte, len(p))
				fill(want, sent[0])
				if !bytes.Equal(p, want) {
					rt.Fatalf("the payload of entry %d has changed", sent[0])
				}
				sent = sent[1:]
			}
			r.Release(1)
			if len(sent) == 0 {
				if _, ok, _ := r.Next(&header); ok || r.Ready() {
					rt.Fatal("there is an entry that was not written")
				}
				if !w.Room(Slots) {
					rt.Fatal("no room in an empty ring")
				}
			}
		}
	})
}

func fill(b []byte, seed uint64) {
	for i := range b {
		b[i] = byte(seed*31 + uint64(i)*7)
	}
}

// TestRingDoesNotBelieveThePeer: a false read count of the peer does not free slots.
func TestRingDoesNotBelieveThePeer(t *testing.T) {
	w, _ := rings()
	for w.Room(1) {
		w.Begin(0)
		w.Publish()
	}
	for _, claim := range []uint32{Slots + 1, 1 << 31, ^uint32(0)} {
		w.taken.Store(claim)
		if w.Room(1) {
			t.Errorf("a peer that has read %d of %d entries makes room", claim, Slots)
		}
	}
	if w.taken.Store(Slots); !w.Room(1) {
		t.Error("a peer that has read everything makes no room")
	}
}

// FuzzReader: whatever the peer writes into its ring, payloads are within bounds.
func FuzzReader(f *testing.F) {
	f.Add(uint32(0), []byte("header"))
	f.Add(uint32(MaxPayload), []byte{})
	f.Add(^uint32(0), []byte{})
	f.Fuzz(func(t *testing.T, length uint32, header []byte) {
		_, r := rings()
		for k := range uint32(3) {
			slot := r.ring[k*CacheLine:][:CacheLine]
			binary.NativeEndian.PutUint32(slot[lengthAt:], length+k)
			copy(slot[headerAt:], header)
			binary.NativeEndian.PutUint32(slot, k+1)
			var h [Header]byte
			p, ok, sound := r.Next(&h)
			if within := length+k <= MaxPayload; !ok || sound != within || (sound && len(p) != int(length+k)) {
				t.Fatalf("%d bytes: %d bytes, %v, %v", length+k, len(p), ok, sound)
			}
		}
	})
}

// FuzzMessage: an accepted message is encoded to the same bytes.
func FuzzMessage(f *testing.F) {
	for _, m := range []Message{{Kind: Hello, Addr: 1, Size: 2}, {Kind: ShareFile, Access: 3, Key: 4, Domain: 5}, {Kind: Revoke}, {Kind: ShareDevice, Key: 1, Handle: "handle"}} {
		b := m.encode()
		f.Add(b[:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decode(b); err == nil {
			if again := m.encode(); !bytes.Equal(again[:], b) {
				t.Errorf("%x is accepted and means %x", b, again)
			}
		}
	})
}
