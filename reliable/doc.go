// Package reliable gives RC's promises over many unreliable paths.
//
// [Wrap] takes an open device and returns one whose RC QPs are made of UC QPs, the paths, with
// reliability in software: what is lost costs a chunk and not everything behind it, and a path
// that dies costs a few round trips and not a retry timeout. Everything that runs on a
// verbs.Context runs on a wrapped one.
//
//	user's RC QP --+-- 16 UC QPs     WRITE_WITH_IMM per chunk of a WRITE, SEND for the rest
//	               +-- 2 UD QPs      acknowledgements, shared by the QPs of a PD
//	               +-- 1 RC QP       READ and atomics, when everything before is acknowledged
//
// With Config.Flows several QPs share one set of paths.
//
// The protocol is in package core, which knows no NIC, its formats in package wire, and both
// are described in docs/reliable.md. This package is their driver. It runs inside of the
// caller's posts and polls; a goroutine per context sleeps until a timer is due or a
// completion comes while nobody polls, so that a program that only lends its memory
// acknowledges too.
//
// # What differs from RC
//
// WRITEs of different requests are not ordered among themselves; a receive that is completed says
// that everything before it is in memory. When a WRITE fails, others posted after it may have been
// written. There are no SRQs for wrapped QPs, and no dma-buf.
package reliable
