// Package ntcopy copies payload in host memory. [Copy] chooses between the builtin, pieces and non-temporal
// stores, by size and processor. Code that may copy 512 KiB or more in one call uses it.
//
// An ordinary store first reads its cache line, so a copy larger than the caches moves each byte three
// times. Non-temporal stores avoid the read, but evict lines that the reader of a smaller buffer would
// find in the cache. The thresholds are measured: change them only with new results (make bench).
package ntcopy

// Two sizes divide the ways to copy. Below pieceFrom the builtin is best. It changes to non-temporal
// stores at 1 MiB on amd64, far too early, so Copy works in pieces up to streamFrom: by REP MOVSB
// where the processor is good at it, else by the builtin. From streamFrom on Copy bypasses the caches
// with its own loops, which are faster than the builtin's.
//
// GB/s of payload, medians of 11 to 15, always the same two buffers, on a Xeon with 1 MiB of L2 per
// core and 36 MiB of L3 (Cascade Lake); "read" means that the same core then reads the result:
//
//	                   pieces by               builtin  builtin
//	size      builtin  builtin  MOVSB  stream  and read  pieces and read  stream and read
//	256 KiB      42.6     42.6   42.6     6.4      27.2             27.5              5.7
//	512 KiB      23.1     23.1   30.1
//	  1 MiB       3.8     10.3   14.0     6.2       3.3              9.1              4.7
//	  4 MiB       3.2     11.5   11.7     5.6       2.3              7.0              3.8
//	  8 MiB       3.1      6.8    6.6     5.4       2.2              4.1              3.5
//	 16 MiB       3.1      5.4    4.7     5.3       2.2              3.3              3.4
//	 64 MiB       2.9      4.9            5.0       2.2              3.1              3.2
//
// libc's memcpy reaches 37, 29, 19 (1 MiB), 11.5, 7.6, 5.4 and 5.1 beside them. On a newer Xeon
// (Sapphire Rapids) streaming gains more: 13.2 against 10.1 at 16 MiB, 10.9 against 6.0 at 64 MiB.
const (
	pieceFrom  = 512 << 10
	streamFrom = 16 << 20
)

// Copy copies min(len(dst), len(src)) bytes from src to dst and returns that number. It behaves as the
// builtin copy, overlap included. When Copy returns, the bytes are visible to other processors as
// after the builtin: later operations in program order, such as an unlock, are seen after them.
func Copy(dst, src []byte) int {
	// This body is small enough to be inlined, so a small copy costs only the builtin's call.
	if divides && min(len(dst), len(src)) >= pieceFrom {
		return large(dst, src, streamFrom)
	}
	return copy(dst, src)
}
