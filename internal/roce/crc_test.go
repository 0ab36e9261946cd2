package roce

import (
	"bytes"
	"hash/crc32"
	"testing"

	"pgregory.net/rapid"
)

// TestChecksum compares with hash/crc32 for every datagram length and alignment.
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

// TestChecksumCopy: the result is the checksum of the copied bytes, for every datagram length and
// alignment, and only the destination is written.
func TestChecksumCopy(t *testing.T) {
	src, dst, was := make([]byte, MaxDatagram+64), make([]byte, MaxDatagram+192), make([]byte, MaxDatagram+192)
	for i := range src {
		src[i] = byte(i*i + i>>8)
	}
	for i := range was {
		was[i] = byte(i)
	}
	check := func(crc uint32, from, to, n int) {
		t.Helper()
		copy(dst, was)
		b := src[from:][:n]
		if got, want := checksumCopy(crc, dst[to:], b), crc32.Update(crc, crc32.IEEETable, b); got != want {
			t.Fatalf("checksumCopy(%#x, %d bytes from %d to %d) = %#x, want %#x", crc, n, from, to, got, want)
		}
		if !bytes.Equal(dst[to:to+n], b) {
			t.Fatalf("%d bytes from %d to %d are not the same there", n, from, to)
		}
		if !bytes.Equal(dst[:to], was[:to]) || !bytes.Equal(dst[to+n:], was[to+n:]) {
			t.Fatalf("%d bytes from %d to %d: something beside them was written", n, from, to)
		}
	}
	for n := range MaxDatagram + 1 {
		check(uint32(n)*0x9e3779b9, n%61, n%67, n)
	}
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(0, 2000).Draw(rt, "bytes")
		check(rapid.Uint32().Draw(rt, "crc"), rapid.IntRange(0, 64).Draw(rt, "from"), rapid.IntRange(0, 64).Draw(rt, "to"), n)
	})
}

// TestShort: short, otherwise used for remainders only, works for any length.
func TestShort(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		crc, b := rapid.Uint32().Draw(rt, "crc"), rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(rt, "bytes")
		if got, want := ^short(^crc, b), crc32.Update(crc, crc32.IEEETable, b); got != want {
			t.Fatalf("short(%#x, %d bytes) = %#x, want %#x", crc, len(b), got, want)
		}
	})
}
