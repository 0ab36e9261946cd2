// Package nullnic is a NIC that moves nothing: the floor under measurements of the
// engine, and an instrument for its tests.
//
// A QP takes work requests and remembers them. Left alone it completes every signaled
// send at once (the benchmarks); held, it completes what a test says, when it says so,
// with the status that it says. It can refuse posts from any position of a chain on, and
// deliver receives. Only what the engine uses is there; the rest is not supported.
//
// It is for one goroutine at a time.
package nullnic
