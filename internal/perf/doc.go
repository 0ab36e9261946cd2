// Package perf measures what a pair of NICs can do, in the words and with the habits
// of linux-rdma perftest: bandwidth with a window of requests in flight, latency with
// one. Both ends live in one process and are served by the goroutine that calls Run.
//
// # Bandwidth
//
// Every QP keeps up to a window of requests in flight. Requests are posted as chains,
// one doorbell each, and only the last request of a chain asks for a completion (CQ
// moderation). The clock is read once per round over all QPs, never per message, and
// nothing is allocated between the first post and the last completion.
//
// BW average is bytes over time from the first post to the last completion. BW peak is
// the best stretch of at least half a millisecond. Next to each of them stands a plain
// Go copy between the very same buffers, measured in turns with the transfers: it is
// the limit of one core that moves memory.
//
// # Latency
//
// WRITE, READ and atomics: from the post of one request to its completion in hand, a
// full round trip. SEND: half of the round trip of a ping-pong. (perftest's write
// latency is half of a ping-pong as well; it spins on a byte of the target, which is
// not allowed here: see package verbs on memory.)
//
// # Check
//
// With Config.Check every message carries a pattern made from its QP, its number and
// the offset, and every byte is compared after it has arrived. Requests then go in
// bursts, and the time spent on making and comparing patterns is not counted.
package perf
