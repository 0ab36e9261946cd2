//go:build !race && !heapmem

package ntcopy

import "math"

const (
	PieceFrom  = pieceFrom
	StreamFrom = streamFrom
	BlockSize  = blockSize
	ChunkSize  = chunkSize
)

// Ways returns the methods to copy large buffers: in pieces, and bypassing the caches with each
// instruction set of this processor. The functions must not run concurrently.
func Ways() map[string]func(dst, src []byte) int {
	with := func(avx512 bool) func(dst, src []byte) int {
		return func(dst, src []byte) int {
			defer func(was bool) { useAVX512 = was }(useAVX512)
			useAVX512 = avx512
			return large(dst, src, 0)
		}
	}
	pieces := func(quick bool) func(dst, src []byte) int {
		return func(dst, src []byte) int {
			defer func(was bool) { useMOVSB = was }(useMOVSB)
			useMOVSB = quick
			return large(dst, src, math.MaxInt)
		}
	}
	m := map[string]func(dst, src []byte) int{"SSE2": with(false), "MOVSB": pieces(true), "pieces": pieces(false)}
	if useAVX512 {
		m["AVX512"] = with(true)
	}
	return m
}
