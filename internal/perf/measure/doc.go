// Package measure measures a VirtualQP over the given NICs, like linux-rdma perftest: bandwidth
// with a window of messages in flight, latency with one.
//
// [New] creates a [Test] within one process, and [NewClient] and [NewServer] the sides of a test between two. [Test.Run]
// opens, measures and closes a [SizeRun] per message size (bandwidth.go, latency.go), and returns a
// [Report]. In one process, the goroutine that calls Run drives both sides. Between processes, each
// drives its own side and exchanges control messages through a [Peer]. The QPs of a side are the lanes
// of a VirtualQP, or UC or UD QPs, which a VirtualQP cannot use, with the same methods (plain.go).
//
// # Bandwidth
//
// Messages are posted as chains, and only the last message of a chain is signaled (CQ moderation).
// The clock is read once per round over both sides, and the loop does not allocate between the first
// post and the last completion.
//
// BW average is the number of bytes divided by the time from the first post to the last completion.
// BW peak is the best interval of at least half a millisecond, or 10 ms between processes. Within one
// process, a plain Go copy between the same buffers alternates with the transfer: it shows the limit
// of one core moving memory.
//
// # Latency
//
// WRITE, READ and atomics: from posting a request to its completion, a full round trip. SEND and
// WRITE_WITH_IMM: half the round trip of a ping-pong. perftest's write latency is half a ping-pong
// too, but spins on a byte of the target, which package verbs does not allow.
//
// # Two processes
//
// Both sides use the same buffer layout. Control messages report posted receives and sent data, request
// that messages be filled or compared, and carry each side's result. The sender measures its rate; a
// bidirectional rate is the sum of both. The client requests the test, which the server accepts or
// refuses (request.go). Messages are bounded and strictly decoded.
//
// # Check
//
// With Config.Check, every message carries a pattern derived from its QP, its number and the
// offset, and every byte is compared after arrival. An immediate carries the message number.
// Requests are sent in bursts, and the time spent on patterns is not counted.
//
// # Losing a rail
//
// With Config.Kill, the ports of a rail go down and up again during one long transfer without
// pauses. A message gets its pattern right before it is posted and is compared on completion. At the
// end all slots are compared once more. The row lasts until the rail has recovered, even beyond
// Config.Duration. Between processes only the client's port goes down, and messages are checked in
// bursts as without Config.Kill.
//
// # Traffic per lane and rail
//
// Report.PerLane and Report.PerRail are based on the VirtualQP's counters, over all rows and
// without warm-up. The bytes of all lanes add up to the bytes of all results.
//
// # Changes
//
// A changed control message or [Config] needs a new requestVersion (request.go): client and server
// must agree. The JSON fields of a [Report] are an interface (package internal/compare,
// docs/commands.md): add fields, but do not rename them.
package measure
