// Package measure measures a VirtualQP over the NICs that it is given, as linux-rdma perftest does:
// bandwidth with a window of messages in flight, latency with one.
//
// A [Test] has a run for each message size. A run has two sides, which are opened for it and closed
// after it. In a test within one process, the goroutine that calls Run drives both sides. In a test
// between processes each process drives its own side, and a [Peer] leads to the other one. On RC a
// side is a VirtualQP. UC and UD QPs, which a VirtualQP cannot use, are wrapped to look like one.
//
// # Bandwidth
//
// Up to a window of messages is in flight. They are posted as chains, and only the last message of
// a chain asks for a completion (CQ moderation). The clock is read once per round over both sides,
// never per message, and nothing is allocated between the first post and the last completion.
//
// BW average is bytes over time from the first post to the last completion. BW peak is the best
// stretch of at least half a millisecond. In one process a plain Go copy between the same buffers is
// measured in turns with the transfer: it is the limit of one core that moves memory.
//
// # Latency
//
// WRITE, READ and atomics: from the post of one request to its completion, a full round trip. SEND
// and WRITE_WITH_IMM: half of the round trip of a ping-pong, where the message or the notification
// is the ping. perftest's write latency is half of a ping-pong too. It spins on a byte of the
// target, which package verbs does not allow.
//
// # Two processes
//
// Both sides lay out their buffers alike and exchange control messages: receives are posted, all data is sent, fill or
// compare these messages, and finally the result of each side. A rate is the sender's, from its first post to its last
// completion; with two directions it is the sum. Package remote is the client and the server.
//
// # Check
//
// With Config.Check every message carries a pattern made from its QP, its number and the offset,
// and every byte is compared after it has arrived. An immediate is the number of its message.
// Requests go in bursts, and the time for making and comparing patterns is not counted.
//
// # Losing a rail
//
// With Config.Kill the ports of a rail go down during one long transfer and come up again. There are
// no pauses: a message gets its pattern right before it is posted and is compared when it is
// complete, while others are in flight. At the end all places are compared once more. Rates leave
// out the time for patterns. The row lasts until the rail is back, even beyond Config.Duration. Between
// processes only the client's port goes down, and messages are checked in bursts as without Config.Kill.
//
// # What carried it
//
// Report.PerLane and Report.PerRail come from the counters of the VirtualQP, over all rows and
// without warm-up. The bytes of all lanes are the bytes of all results.
package measure
