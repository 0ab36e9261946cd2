// Package softnic implements an RDMA NIC in pure Go: no hardware, no kernel module, no root.
//
// RC, UC and UD follow the InfiniBand specification: PSNs, segmentation, ACKs, NAKs, RNR timers, retry
// counters, go-back-N, responder resources, SRQs, memory protection, the QP state machine, flushes and
// asynchronous events. Package verbs/verbstest is the conformance suite.
//
//	link := softnic.NewMemoryLink(nil)
//	a, err := softnic.New(link, softnic.Config{})
//	b, err := softnic.New(link, softnic.Config{})
//	ctx, err := a.Open() // a verbs.Context; the rest is package verbs
//
// # Links
//
// A [Link] connects NICs:
//
//   - [MemoryLink]: one process, one copy per transfer.
//   - [FaultLink]: one process, segmented by MTU, with seeded loss, duplication, delay, reordering and corruption.
//   - [UDPLink]: RoCE v2 between processes and hosts.
//   - [ShmLink]: two processes on one host; the sender copies straight into the receiver's shared memory.
//
// # Concurrency
//
// Posts and polls run the NIC to completion in the caller. One helper goroutine per link runs retry
// timers and delivers delayed packets, and sleeps when idle. A link with its own clock (Now in its
// config) runs on virtual time: only Step advances it.
//
// All methods are safe for concurrent use. NICs on a link share a lock, taken once per batch (about 20
// ns uncontended); to scale, use one link per goroutine. NICs on a UDPLink have separate locks.
//
// # Fault injection
//
// A FaultLink impairs packets, and a UDPLink can too. [NIC.SetPort], [NIC.Fail], [NIC.FailQP],
// [NIC.FailCQ] and [NIC.RefuseSend] inject port, device and queue failures. Faults are reproducible: the
// same seed and traffic give the same faults.
package softnic
