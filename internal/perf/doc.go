// Package perf measures what a VirtualQP does over the NICs that it is given, in the words
// and with the habits of linux-rdma perftest: bandwidth with a window of messages in
// flight, latency with one. Both ends live in one process and are served by the goroutine
// that calls Run, or they live in two.
//
// A row is one message size. It has a pair of ends, made for it and closed after it: on RC
// a VirtualQP each, connected by their cards; on UC and UD, which a VirtualQP cannot use,
// QPs in its clothes, so that there is one flow of messages for both.
//
// # Bandwidth
//
// Up to a window of messages is in flight. They are posted as chains, and only the last
// message of a chain asks for a completion (CQ moderation). The clock is read once per
// round over both ends, never per message, and nothing is allocated between the first post
// and the last completion.
//
// BW average is bytes over time from the first post to the last completion. BW peak is
// the best stretch of at least half a millisecond. Next to each of them stands a plain
// Go copy between the very same buffers, measured in turns with the transfers: it is
// the limit of one core that moves memory.
//
// # Latency
//
// WRITE, READ and atomics: from the post of one request to its completion in hand, a
// full round trip. SEND and WRITE_WITH_IMM: half of the round trip of a ping-pong, where
// the message or the notification is the ping. (perftest's write latency is half of a
// ping-pong as well; it spins on a byte of the target, which is not allowed here: see
// package verbs on memory.)
//
// # Check
//
// With Config.Check every message carries a pattern made from its QP, its number and
// the offset, and every byte is compared after it has arrived; an immediate is the number
// of its message. Requests then go in bursts, and the time spent on making and comparing
// patterns is not counted.
//
// # Losing a rail
//
// With Config.Kill the ends have a control channel, and the ports of a rail go down in the
// midst of one long transfer and come up again. There are no pauses: a message gets its
// pattern right before it is posted and is compared when it is complete, while others are
// in flight, and in the end all places are compared once more. Times are those of a clock
// that stands for nobody; rates leave out the time for patterns, as with Check. The row
// lasts until the rail is back, even beyond Config.Duration.
//
// # Two processes
//
// [Remote] is a test whose other end is in another process, which a [Partner] leads to. The
// client says what is measured; each end plays its own half of a row, with the buffers laid
// out alike, and they tell each other what they must know in notes: that receives are
// posted, that all is sent, what to make recognisable and what to compare, and in the end
// what each has measured. A rate is that of the end that sends, from its first post to its last
// completion; with two directions it is the sum. Notes are bounded and strictly read.
//
// # What carried it
//
// Report.PerLane and Report.PerRail come from the counters of the VirtualQP, over all rows
// and without warm-up: the bytes of all lanes are the bytes of all results.
package perf
