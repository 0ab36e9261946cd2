package measure

import (
	"encoding/binary"
	"fmt"
)

// seed identifies a message by its direction, its QP and its number on that QP.
func seed(flow, queue int, message int64) uint64 {
	return mix(uint64(flow)<<56 ^ uint64(queue)<<40 ^ uint64(message))
}

// mix is the finalizer of splitmix64: each bit of the input changes half of the output.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

const golden = 0x9e3779b97f4a7c15

// fillPattern fills b with bytes that depend on the seed and the offset.
func fillPattern(b []byte, seed uint64) {
	for ; len(b) >= 8; b = b[8:] {
		seed += golden
		binary.LittleEndian.PutUint64(b, mix(seed))
	}
	if len(b) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], mix(seed+golden))
		copy(b, last[:])
	}
}

// checkPattern compares b with the seed's pattern. If they differ, it returns the offset of the
// first wrong byte and the expected value.
func checkPattern(b []byte, seed uint64) (offset int, want byte, ok bool) {
	for off := 0; off < len(b); off += 8 {
		seed += golden
		w := mix(seed)
		if off+8 <= len(b) && binary.LittleEndian.Uint64(b[off:]) == w {
			continue
		}
		for i := off; i < min(off+8, len(b)); i++ {
			if want := byte(w >> (8 * (i - off))); b[i] != want {
				return i, want, false
			}
		}
	}
	return 0, 0, true
}

// mismatch returns the error for a wrong value in a message. what names the value: "byte 5", "the
// immediate" or, if atomics were lost, repeated or reordered, "the counter".
func (f *flow) mismatch(what string, queue int, message int64, got, want uint64) error {
	return fmt.Errorf("--check: %s of %s on QP %d, message %d: %s on %s is %#02x, want %#02x",
		f.op, FormatSize(f.size), queue, message, what, f.target.nics, got, want)
}
