// Package reliable provides RC semantics over many unreliable paths: UC QPs, or UD QPs where the device has no UC.
//
// [Wrap] returns a context whose RC QPs spray chunks over these QPs, the paths, with acknowledgement and
// retransmission in software. A lost packet costs one chunk, not everything behind it. A dead path costs
// a few round trips, not a retry timeout. Programs written for verbs.Context run unchanged.
//
//	user's RC QP --+-- 16 UC QPs     WRITE_WITH_IMM per chunk of a WRITE, SEND for the rest
//	               +-- 2 UD QPs      acknowledgements, shared by the QPs of an engine
//	               +-- 1 RC QP       the QP number, and cards after Modify
//
// Over UD, all bytes are SENDs over 16 UD QPs of an engine, and the last QP is UD too.
//
// The types mirror the diagram. A qp holds a user QP's queues and its RC QP, the handshake QP. A connection
// holds the paths and the protocol state; with Config.Flows, several QPs share one. An engine runs connections
// under one lock; its engineResources are the UD QPs and receive buffers.
//
// Package core implements the protocol without clock or I/O; package wire defines the formats (see
// docs/reliable.md). This package drives core from the caller's posts and polls. One goroutine per
// engine handles timers and completions while the program is not polling, so passive targets still
// acknowledge.
//
// A request enters in qp.PostSend, which submits it to core.Conn.Step. The resulting actions stage chunks on
// paths (qp.transmit), and engine.flush posts them. Completions of inner QPs enter in engine.drive: path and
// datagramQP pass arrivals to the core, whose actions copy data (qp.place) and complete requests and receives
// in the CQs of the user (qp.completeSend, qp.completeRecv).
//
// Both sides must run the same protocol. Changes to package wire or to a card need a new wire.Version, and the
// rules for the owner in package core protect completed buffers. Everything else is local to one side.
//
// # Differences from RC
//
// WRITEs of different requests are unordered unless a READ or an atomic separates them. A completed
// receive guarantees that everything posted before it is in memory. After a failed WRITE, later WRITEs
// may have been placed. The CPU executes atomics: they are atomic among wrapped QPs and local programs,
// but not with atomics that the NIC executes for unwrapped QPs. Atomics on dma-bufs are not supported.
//
// # Statistics
//
// Wrapped contexts implement [StatsReader], [PathLister] and [DoorbellCounter], and wrapped QPs implement
// StatsReader; use a type assertion. If Config.FallBackToRC took effect, only [TransportReporter] is
// available. Like all methods of wrapped objects, theirs are safe for concurrent use.
package reliable
