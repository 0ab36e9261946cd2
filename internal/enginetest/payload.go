package enginetest

import (
	"bytes"
	"encoding/binary"

	"ibverbx/internal/xorshift"
)

// Fill fills b with bytes that depend on the seed.
func Fill(b []byte, seed uint64) {
	source := xorshift.Source((seed + 1) * 0x9e3779b97f4a7c15) // spreads small seeds over all bits
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, source.Next())
	}
	for i, last := 0, source.Next(); i < len(b); i++ {
		b[i] = byte(last >> (8 * i))
	}
}

// Stamp fills b with bytes unique to message i of a sender.
func Stamp(b []byte, sender, i int) { Fill(b, uint64(sender)<<40|uint64(i)) }

// Stamped returns n bytes filled by Stamp.
func Stamped(n, sender, i int) []byte {
	b := make([]byte, n)
	Stamp(b, sender, i)
	return b
}

// FirstDifference returns the first index where two slices of equal length differ, or -1.
func FirstDifference(a, b []byte) int {
	if bytes.Equal(a, b) { // much faster than the loop
		return -1
	}
	for i := range b {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}
