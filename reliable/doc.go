// Package reliable keeps RC's promises over many unreliable paths.
//
// [Wrap] takes an open context and returns one whose RC QPs are made of UC QPs, the paths, with
// reliability in software. A lost packet costs one chunk, not everything behind it. A dead path
// costs a few round trips, not a retry timeout. Every program that runs on a verbs.Context runs on
// a wrapped one.
//
//	user's RC QP --+-- 16 UC QPs     WRITE_WITH_IMM per chunk of a WRITE, SEND for the rest
//	               +-- 2 UD QPs      acknowledgements, shared by the QPs of an engine
//	               +-- 1 RC QP       the QP number, and cards after Modify
//
// The types follow this picture. A qp has the queues of one user's QP and its RC QP, the side QP.
// A connection has the paths and the state of the protocol. With Config.Flows several QPs share one
// connection. A pd has the UD QPs and the receive buffers of its connections.
//
// The protocol is in package core, which has no clock and no I/O. Its formats are in package wire.
// docs/reliable.md describes both. This package drives them. It runs inside the caller's posts and
// polls. One goroutine per context sleeps until a timer is due or a completion arrives while the
// program does not poll, so a program that only exposes memory acknowledges too.
//
// # Differences from RC
//
// WRITEs of different requests are not ordered among themselves, unless a READ or an atomic is between
// them. A completed receive guarantees that everything posted before it is in memory. When a WRITE
// fails, later ones may have been written. Atomics are those of the CPU: atomic among wrapped QPs and
// with programs of the host, but not with atomics that an unwrapped QP lets the NIC carry out.
// Wrapped QPs support no atomics on a dma-buf.
package reliable
