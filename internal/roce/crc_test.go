package roce

import (
	"hash/crc32"
	"testing"

	"pgregory.net/rapid"
)

// TestChecksum: it is hash/crc32's, for every length of a datagram and wherever it lies.
func TestChecksum(t *testing.T) {
	b := make([]byte, MaxDatagram+64)
	for i := range b {
		b[i] = byte(i*i + i>>8)
	}
	check := func(crc uint32, b []byte) {
		t.Helper()
		if got, want := checksum(crc, b), crc32.Update(crc, crc32.IEEETable, b); got != want {
			t.Fatalf("checksum(%#x, %d bytes) = %#x, want %#x", crc, len(b), got, want)
		}
	}
	for n := range MaxDatagram + 1 {
		check(uint32(n)*0x9e3779b9, b[n%61:][:n])
	}
	rapid.Check(t, func(rt *rapid.T) {
		check(rapid.Uint32().Draw(rt, "crc"), rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(rt, "bytes"))
	})
}

// TestShort: short, which takes only what is left over elsewhere, takes everything.
func TestShort(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		crc, b := rapid.Uint32().Draw(rt, "crc"), rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(rt, "bytes")
		if got, want := ^short(^crc, b), crc32.Update(crc, crc32.IEEETable, b); got != want {
			t.Fatalf("short(%#x, %d bytes) = %#x, want %#x", crc, len(b), got, want)
		}
	})
}
