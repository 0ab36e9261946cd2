// Package bulk copies large buffers past the caches.
//
// An ordinary store first reads the line that it writes to. A copy of a buffer that is too large for
// the caches therefore moves each byte three times: source in, destination in, destination out.
// Non-temporal stores save the second move and do not displace other data from the caches.
package bulk

// Threshold is the size from which Copy bypasses the caches.
//
// It balances two measurements on a Xeon (Sapphire Rapids, 2 MiB of L2 per core): GB/s of payload,
// builtin copy against non-temporal stores, medians of 25, always into the same destination, which
// suits the caches best:
//
//	size     copy alone     copy, then the receiver reads it all on the same core
//	 1 MiB   18.8   16.5    10.1    3.9
//	 4 MiB   10.8   13.0     6.2    4.5
//	 8 MiB   10.7   13.1     5.2    4.6
//	16 MiB   10.1   13.2     4.6    4.6
//	64 MiB    6.0   10.9     3.2    4.3
//
// The next reader must fetch bytes that bypassed the caches from memory. From 16 MiB on that costs
// nothing, because the caches would have evicted them anyway. Below, it depends on the reader, and
// the builtin is the safer choice.
const Threshold = 16 << 20

// Copy copies min(len(dst), len(src)) bytes from src to dst and returns that number. It behaves as the
// builtin copy, overlap included. Copies of Threshold bytes or more bypass the caches on processors
// for which this package has code. When Copy returns, the bytes are visible to other processors as
// after the builtin: later operations in program order, such as an unlock, are seen after them.
func Copy(dst, src []byte) int {
	// This body is small enough to be inlined, so a small copy costs only the builtin's call.
	if streams && min(len(dst), len(src)) >= Threshold {
		return stream(dst, src)
	}
	return copy(dst, src)
}
