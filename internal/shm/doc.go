// Package shm lets two processes of one host share memory and pass packets through it.
//
// Each side has a segment, which it alone writes and the peer only reads. The kernel enforces that: the
// segment is sealed before the peer gets its descriptor. So each word has one writer, no word is a lock, and a
// process that is killed leaves nothing locked. A segment holds the packets to the peer ([Writer],
// [Reader]), and words that say how far the owner has read and whether it sleeps ([Bell]).
//
// The peer may write anything into its segment at any time. Therefore an entry is copied before it is
// checked, and every index into shared memory is bounded.
//
// A [Conn] carries descriptors and reports the peer's end: the kernel closes its socket when the
// process dies.
package shm

// maxPieces is how many pieces of memory a transfer has at most.
const maxPieces = 4

// Line is the size of a cache line. Words that different sides use at the same time are a line apart.
const Line = 64
