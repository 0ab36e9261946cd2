// Package bulk copies large buffers past the caches.
//
// An ordinary store first reads the line that it writes to, so a copy of a buffer
// that is too large for the caches moves each byte three times: source in,
// destination in, destination out. Non-temporal stores leave out the middle one, and
// leave the caches to others.
package bulk

// Threshold is the size from which Copy goes past the caches.
//
// It is a trade between two measurements on a Xeon (Sapphire Rapids, 2 MiB of L2 per
// core): GB/s of payload, builtin copy against non-temporal stores, medians of 25, over
// and over into the same destination, which is the case that suits the caches best:
//
//	size     copy alone     copy, then the receiver reads it all on the same core
//	 1 MiB   18.8   16.5    10.1    3.9
//	 4 MiB   10.8   13.0     6.2    4.5
//	 8 MiB   10.7   13.1     5.2    4.6
//	16 MiB   10.1   13.2     4.6    4.6
//	64 MiB    6.0   10.9     3.2    4.3
//
// What was written past the caches has to be fetched from memory by whoever reads it
// next. From 16 MiB on that costs nothing, because the bytes would have been evicted
// anyway; below, it depends on the reader, and the builtin is the safer choice.
const Threshold = 16 << 20

// Copy copies min(len(dst), len(src)) bytes from src to dst and returns how many that
// were. It is the builtin copy in every respect, overlap included, except that copies
// of Threshold bytes or more leave the destination out of the caches on processors
// for which this package has code. When Copy returns, the bytes are visible to other
// processors as after the builtin: what follows it in program order, such as an
// unlock, is seen after them.
func Copy(dst, src []byte) int {
	// This body is small enough to be inlined, so that a small copy costs no call
	// beyond that of the builtin.
	if streams && min(len(dst), len(src)) >= Threshold {
		return stream(dst, src)
	}
	return copy(dst, src)
}
