package roce

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"testing"
)

// ways lists the instruction sets of this CPU for foldSum and foldCopy, as values of their last argument.
// It skips the test on a CPU without any.
func ways(tb testing.TB) []bool {
	tb.Helper()
	switch {
	case wide:
		return []bool{false, true}
	case folds:
		return []bool{false}
	}
	tb.Skip("this CPU does not multiply polynomials")
	return nil
}

// TestFold compares every instruction set of this CPU with hash/crc32, for every alignment at short
// lengths and every length at one alignment.
func TestFold(t *testing.T) {
	src, dst := make([]byte, MaxDatagram+64), make([]byte, MaxDatagram+64)
	for i := range src {
		src[i] = byte(i*i + i>>8)
	}
	for _, wide := range ways(t) {
		check := func(from, to, n int) {
			crc, b := uint32(n)*0x9e3779b9, src[from:][:n]
			want := crc32.Update(crc, crc32.IEEETable, b)
			if got := foldSum(crc, b, wide); got != want {
				t.Fatalf("wide %v: foldSum(%#x, %d bytes at %d) = %#x, want %#x", wide, crc, n, from, got, want)
			}
			if n < narrowMin {
				return
			}
			clear(dst)
			got := foldCopy(crc, dst[to:], b, wide)
			beyond := len(bytes.TrimRight(dst, "\x00")) > to+n || len(bytes.TrimLeft(dst, "\x00")) > len(dst)-to
			if got != want || !bytes.Equal(dst[to:][:n], b) || beyond {
				t.Fatalf("wide %v: foldCopy(%#x, %d bytes from %d to %d) = %#x, want %#x and only these bytes written", wide, crc, n, from, to, got, want)
			}
		}
		for n := range 600 {
			for at := range 64 {
				check(at, 63-at, n)
			}
		}
		for n := range MaxDatagram + 1 {
			check(n%61, n%59, n)
		}
	}
}

// FuzzFold compares with hash/crc32.
func FuzzFold(f *testing.F) {
	f.Add(uint32(0), []byte("short"))
	f.Add(^uint32(0), make([]byte, 300))
	f.Fuzz(func(t *testing.T, crc uint32, b []byte) {
		want, dst := crc32.Update(crc, crc32.IEEETable, b), make([]byte, len(b))
		for _, wide := range ways(t) {
			if got := foldSum(crc, b, wide); got != want {
				t.Errorf("wide %v: foldSum(%#x, %x) = %#x, want %#x", wide, crc, b, got, want)
			}
			if len(b) < narrowMin {
				continue
			}
			if got := foldCopy(crc, dst, b, wide); got != want || !bytes.Equal(dst, b) {
				t.Errorf("wide %v: foldCopy(%#x, %x) = %#x, want %#x and a copy", wide, crc, b, got, want)
			}
		}
	})
}

// BenchmarkFold measures each instruction set of this CPU, and hash/crc32 and the table beside them.
func BenchmarkFold(b *testing.B) {
	src, dst := make([]byte, MaxDatagram), make([]byte, MaxDatagram)
	for i := range src {
		src[i] = byte(i*i + i>>8)
	}
	var sum uint32
	for _, n := range []int{12, 16, 28, 36, 60, 128, 1036, 4108} {
		run := func(name string, f func() uint32) {
			b.Run(fmt.Sprintf("%s/size=%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					sum ^= f()
				}
			})
		}
		for _, wide := range ways(b) {
			run(fmt.Sprintf("sum/wide=%v", wide), func() uint32 { return foldSum(0, src[:n], wide) })
			if n >= narrowMin {
				run(fmt.Sprintf("copy/wide=%v", wide), func() uint32 { return foldCopy(0, dst, src[:n], wide) })
			}
		}
		run("hash", func() uint32 { return crc32.Update(0, crc32.IEEETable, src[:n]) })
		run("hash and copy", func() uint32 { return crc32.Update(0, crc32.IEEETable, dst[:copy(dst, src[:n])]) })
		if n < narrowMin {
			run("table", func() uint32 { return short(0, src[:n]) })
		}
	}
	_ = sum
}
