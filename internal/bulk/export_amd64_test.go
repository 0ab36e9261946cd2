//go:build !race && !heapmem

package bulk

const (
	BlockSize = blockSize
	ChunkSize = chunkSize
)

// Streams returns stream as it runs on each kind of processor that this one can act
// as. The functions must not run at the same time.
func Streams() map[string]func(dst, src []byte) int {
	with := func(avx512 bool) func(dst, src []byte) int {
		return func(dst, src []byte) int {
			defer func(was bool) { useAVX512 = was }(useAVX512)
			useAVX512 = avx512
			return stream(dst, src)
		}
	}
	m := map[string]func(dst, src []byte) int{"SSE2": with(false)}
	if useAVX512 {
		m["AVX512"] = with(true)
	}
	return m
}
