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
// Posts and polls run the NIC to completion in the caller. All methods are safe for concurrent use.
//
//   - Memory and fault links: NICs on a link share a lock, taken once per batch (about 20 ns
//     uncontended); to scale, use one link per goroutine. One helper goroutine per link runs retry timers
//     and delivers delayed packets, and sleeps when idle. A link with its own clock (Now in its config)
//     runs on virtual time without a helper: only Step advances it.
//   - UDP links: each NIC has its own lock and helper, and a reader goroutine per port. With shared
//     memory, further goroutines serve the peer processes.
//   - Shared-memory links: the link has a single NIC with a lock and a helper, a reader goroutine, and
//     goroutines that watch the peer.
//
// On UDP and shared-memory links, a NIC runs three more goroutines per device whose memory it uses.
//
// # Fault injection
//
// A FaultLink impairs packets, and a UDPLink can too. [NIC.SetPort], [NIC.Fail], [NIC.FailQP],
// [NIC.FailCQ] and [NIC.RefuseSend] inject port, device and queue failures. Faults are reproducible: the
// same seed and traffic give the same faults.
//
// # Implementation
//
// A request enters in PostSend (qp_post.go). Two idle QPs on a MemoryLink execute it directly
// (direct_run.go), and a ShmLink executes WRITEs and READs in the peer's memory (shm_direct.go).
// Otherwise qp_requester sends packets, the peer's qp_responder executes them, and qp_completer writes
// the completion. CQ.Poll returns it (qp_cq.go). The prefix of a file name is its group; docs/softnic.md
// lists the dependencies allowed between groups.
//
// # Changes
//
// docs/api.md lists the lasting API; unexported code may change while the tests pass. The packet formats
// (packages internal/roce and internal/seal), Endpoint.Extra (udp_peer.go) and the shared memory format
// (package internal/shm) are fixed, because peers run other versions.
package softnic
