package ntcopy_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"ibverbx/internal/ntcopy"
)

// pattern returns n bytes in which all lines and pages differ.
func pattern(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // never fails
	return b
}

// check copies n bytes from src[from:] to to in an empty buffer, and compares the whole buffer with
// the builtin's result, which detects stray writes.
func check(t *testing.T, copyBytes func(dst, src []byte) int, buf, want, src []byte, to, from, n int) {
	t.Helper()
	clear(buf)
	clear(want)
	wantN := copy(want[to:to+n], src[from:from+n])
	if gotN := copyBytes(buf[to:to+n], src[from:from+n]); gotN != wantN {
		t.Fatalf("%d bytes from %d to %d: returned %d", n, from, to, gotN)
	}
	if !bytes.Equal(buf, want) {
		i := 0
		for buf[i] == want[i] {
			i++
		}
		t.Fatalf("%d bytes from %d to %d: byte %d is %#x, want %#x", n, from, to, i, buf[i], want[i])
	}
}

// Every alignment of both sides, with lengths around one block.
func TestLargeAlignments(t *testing.T) {
	for name, large := range ntcopy.Ways() {
		t.Run(name, func(t *testing.T) {
			const room = ntcopy.BlockSize + 256
			src, buf, want := pattern(room), make([]byte, room), make([]byte, room)
			for to := range 64 {
				for from := range 64 {
					for _, n := range []int{ntcopy.BlockSize - 1, ntcopy.BlockSize, ntcopy.BlockSize + 63, ntcopy.BlockSize + 65} {
						check(t, large, buf, want, src, to, from, n)
					}
				}
			}
		})
	}
}

// Lengths around every threshold in the code.
func TestLargeLengths(t *testing.T) {
	lengths := []int{0, 1, 2, 62, 63, 64, 65, 127, 128, 4095, 4096, 4097}
	for _, edge := range []int{ntcopy.BlockSize, 2 * ntcopy.BlockSize, 4 * ntcopy.BlockSize, ntcopy.ChunkSize, 2 * ntcopy.ChunkSize} {
		lengths = append(lengths, edge-64, edge-1, edge, edge+1, edge+63, edge+64, edge+ntcopy.BlockSize+17)
	}
	const room = 3*ntcopy.ChunkSize + 256
	src, buf, want := pattern(room), make([]byte, room), make([]byte, room)
	for name, large := range ntcopy.Ways() {
		t.Run(name, func(t *testing.T) {
			for _, n := range lengths {
				for _, at := range [][2]int{{0, 0}, {1, 0}, {0, 1}, {63, 33}, {32, 16}, {100, 7}} {
					check(t, large, buf, want, src, at[0], at[1], n)
				}
			}
		})
	}
}

// Copy on both sides of its thresholds, with slices of unequal lengths.
func TestCopyThresholds(t *testing.T) {
	const room = ntcopy.StreamFrom + 4096
	src, buf, want := pattern(room), make([]byte, room), make([]byte, room)
	for _, threshold := range []int{ntcopy.PieceFrom, ntcopy.StreamFrom} {
		for _, n := range []int{threshold - 1, threshold, threshold + 1} {
			check(t, ntcopy.Copy, buf, want, src, 5, 3, n)
		}
		if got := ntcopy.Copy(buf[:threshold+1], src); got != threshold+1 {
			t.Errorf("Copy to the shorter slice = %d, want %d", got, threshold+1)
		}
		if got := ntcopy.Copy(buf, src[:threshold+2]); got != threshold+2 {
			t.Errorf("Copy from the shorter slice = %d, want %d", got, threshold+2)
		}
	}
	if got := ntcopy.Copy(nil, src); got != 0 {
		t.Errorf("Copy to nil = %d, want 0", got)
	}
}

// Copying within one buffer, overlapping or not, has the builtin's result.
func TestLargeIsCopy(t *testing.T) {
	const room = ntcopy.ChunkSize + 4*ntcopy.BlockSize
	src := pattern(room)
	got, want := make([]byte, room), make([]byte, room)
	for name, large := range ntcopy.Ways() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				length := rapid.Custom(func(t *rapid.T) int {
					blocks := rapid.IntRange(0, ntcopy.ChunkSize/ntcopy.BlockSize+1).Draw(t, "blocks")
					return blocks*ntcopy.BlockSize + rapid.IntRange(0, 130).Draw(t, "rest")
				})
				dstLen, srcLen := length.Draw(t, "dstLen"), length.Draw(t, "srcLen")
				to := rapid.IntRange(0, room-dstLen).Draw(t, "to")
				from := rapid.IntRange(0, room-srcLen).Draw(t, "from")
				copy(got, src)
				copy(want, src)
				wantN := copy(want[to:to+dstLen], want[from:from+srcLen])
				gotN := large(got[to:to+dstLen], got[from:from+srcLen])
				if gotN != wantN || !bytes.Equal(got, want) {
					t.Fatalf("returned %d, want %d; bytes equal: %v", gotN, wantN, bytes.Equal(got, want))
				}
			})
		})
	}
}

func FuzzLarge(f *testing.F) {
	const room = 4 * ntcopy.BlockSize
	f.Add(uint32(0), uint32(0), uint32(room), uint64(1))
	f.Add(uint32(1), uint32(63), uint32(ntcopy.BlockSize), uint64(2))
	f.Add(uint32(0), uint32(ntcopy.BlockSize), uint32(ntcopy.BlockSize+1), uint64(3))
	ways := ntcopy.Ways()
	f.Fuzz(func(t *testing.T, to, from, n uint32, seed uint64) {
		to, from = to%room, from%room
		n %= room - max(to, from) + 1
		got := make([]byte, room)
		_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)}).Read(got)
		want := bytes.Clone(got)
		copy(want[to:to+n], want[from:from+n])
		orig := bytes.Clone(got)
		for name, large := range ways {
			copy(got, orig)
			if m := large(got[to:to+n], got[from:from+n]); m != int(n) || !bytes.Equal(got, want) {
				t.Fatalf("%s: %d bytes from %d to %d: returned %d, bytes equal: %v", name, n, from, to, m, bytes.Equal(got, want))
			}
		}
	})
}

func benchmark(b *testing.B, copyBytes func(dst, src []byte) int) {
	for _, mib := range []int{1, 4, 16, 64} {
		b.Run(fmt.Sprintf("size=%dMiB", mib), func(b *testing.B) {
			dst, src := make([]byte, mib<<20), pattern(mib<<20)
			b.SetBytes(int64(mib) << 20)
			b.ReportAllocs()
			copyBytes(dst, src)
			for b.Loop() {
				copyBytes(dst, src)
			}
		})
	}
}

func BenchmarkCopy(b *testing.B) { benchmark(b, ntcopy.Copy) }

func BenchmarkBuiltin(b *testing.B) {
	benchmark(b, func(dst, src []byte) int { return copy(dst, src) })
}
