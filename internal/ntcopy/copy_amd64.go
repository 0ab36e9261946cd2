//go:build !race && !heapmem

package ntcopy

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// divides is set where large copies are divided, because the builtin streams too early.
const divides = true

const (
	// lineSize is the size of a cache line. The loops need an aligned destination: a non-temporal
	// store of part of a line costs a read.
	lineSize = 64
	// blockSize is the number of bytes per loop iteration: four pages side by side. The
	// interleaving keeps more DRAM pages open than a single ascending stream (glibc's large_memcpy
	// does the same) and gains more than wider registers: at 64 MiB, SSE2 went from 9.0 to 11.5
	// GB/s and AVX-512 from 11.1 to 13.0. Software prefetch gained nothing.
	blockSize = 4 * 4096
	// chunkSize bounds one call of a loop or of the builtin. The scheduler cannot preempt assembly,
	// and 256 KiB take 6 to 40 µs. The builtin does not stream below 1 MiB; 64 KiB to 1 MiB copy
	// equally fast.
	chunkSize = 16 * blockSize
)

// useAVX512 chooses the loop. AVX-512, which stores a line in one piece, is 3 % to 13 %
// ahead of SSE2 at 16 and 64 MiB; AVX2 lies between them and is not worth a third loop.
// HasAVX512F includes the operating system's consent to use the registers.
var useAVX512 = cpu.X86.HasAVX512F

// useMOVSB is set where REP MOVSB is quick (the processor reports ERMS). It writes whole lines without
// reading them first and without bypassing the caches.
var useMOVSB = cpu.X86.HasERMS

// large is Copy for large buffers: past the caches from the given size on, in pieces below it.
func large(dst, src []byte, streamed int) int {
	n := min(len(dst), len(src))
	dst, src = dst[:n], src[:n]
	switch {
	case overlap(dst, src):
		return copy(dst, src) // the buffers overlap, and both methods would overwrite unread bytes
	case n >= streamed:
		return stream(dst, src)
	}
	for len(src) > 0 {
		m := min(len(src), chunkSize)
		if useMOVSB {
			movsb(unsafe.SliceData(dst), unsafe.SliceData(src), m)
		} else {
			copy(dst, src[:m])
		}
		dst, src = dst[m:], src[m:]
	}
	return n
}

// stream copies src past the caches to dst, which has the same length and does not overlap it.
func stream(dst, src []byte) int {
	n := len(src)
	head := min(int(-address(dst)&(lineSize-1)), n)
	copy(dst[:head], src)
	dst, src = dst[head:], src[head:]
	for len(dst) >= blockSize {
		m := min(len(dst), chunkSize) &^ (blockSize - 1)
		if useAVX512 {
			streamAVX512(unsafe.SliceData(dst), unsafe.SliceData(src), m)
		} else {
			streamSSE2(unsafe.SliceData(dst), unsafe.SliceData(src), m)
		}
		dst, src = dst[m:], src[m:]
	}
	copy(dst, src)
	return n
}

// overlap reports whether two slices of the same length share bytes.
func overlap(a, b []byte) bool {
	x, y := address(a), address(b)
	return x < y+uintptr(len(b)) && y < x+uintptr(len(a))
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// movsb copies n bytes upward with REP MOVSB.
//
//go:noescape
func movsb(dst, src *byte, n int)

// streamAVX512 copies n bytes, a positive multiple of blockSize, to dst, which is
// aligned to lineSize. The buffers must not overlap.
//
//go:noescape
func streamAVX512(dst, src *byte, n int)

// streamSSE2 is streamAVX512 for every amd64 processor.
//
//go:noescape
func streamSSE2(dst, src *byte, n int)
