// Package shm lets two processes on one host share memory and exchange packets through it.
//
// Each side has a segment that it alone writes and the peer only reads. The kernel enforces this:
// the segment is sealed before the peer gets its descriptor. Each word therefore has one writer, no
// word is a lock, and a killed process leaves nothing locked. A segment holds the packets to the
// peer ([Writer], [Reader]), and words with the owner's read position and sleep state ([Bell]).
//
// The peer may write anything into its segment at any time. Therefore an entry is copied before it
// is checked, and every index into shared memory is bounded.
//
// A [Conn] carries descriptors and detects the peer's exit: the kernel closes its socket when the
// process dies.
//
// Messages and the ring layout are shared with a process that may run another build: a change needs a
// new version (message.go).
package shm

// maxPieces is the maximum number of memory ranges in a transfer.
const maxPieces = 4

// CacheLine is the size of a cache line. Words used concurrently by different sides are a line apart.
const CacheLine = 64
