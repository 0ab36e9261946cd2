// Package nullnic is a NIC that moves nothing: the floor under measurements of the
// engine, and an instrument for its tests.
//
// A QP takes work requests and remembers them. Left alone it completes every signaled
// send at once (the benchmarks); held, it completes what a test says, when it says so,
// with the status that it says. It can refuse posts from any position of a chain on, and
// deliver receives with the fields and bytes that a test wants.
//
// NICs that are joined by a [Wire] do move bytes, one request at a time and only when they
// are told to: Carry takes the oldest request of a held QP to the QP that it is connected
// to, and Complete acknowledges it. A test decides the order between QPs, which no RC QP
// promises anything about; the order on one QP is kept.
//
// Only what the engine uses is there; the rest is not supported. It is for one goroutine
// at a time.
package nullnic
