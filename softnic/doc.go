// Package softnic is an RDMA NIC in pure Go: no hardware, no kernel module, no root.
//
// It is a NIC and not a mock. RC, UC and UD behave as the InfiniBand Architecture defines them:
// packet sequence numbers, segmentation, acknowledgements, NAKs, RNR with timers, retry counters and
// go-back-N, READ and atomics with responder resources, shared receive queues, protection by
// domains and keys, the QP state machine, flushes and asynchronous events. Package verbs/verbstest
// checks all of this.
//
//	link := softnic.NewMemoryLink(nil)
//	a, err := softnic.New(link, softnic.Config{})
//	b, err := softnic.New(link, softnic.Config{})
//	ctx, err := a.Open() // a verbs.Context; the rest is package verbs
//
// # Links
//
// A [Link] carries packets between NICs. A [MemoryLink] joins NICs of one process: a packet is a
// header and a reference to the sender's bytes, of any length, so a transfer is one copy. A
// [FaultLink] segments by MTU and loses, repeats, delays, reorders and corrupts packets by a seed.
// A [UDPLink] carries packets as RoCE v2 to other processes and hosts. A [ShmLink] joins NICs of two
// processes on one host by shared memory: the sender copies to the receiver's memory itself.
//
// # Time and concurrency
//
// The core has no goroutine and no clock. Posting and polling run it to completion in the caller.
// One helper goroutine per link runs retry timers and delayed packets while no call does; it
// sleeps while there is nothing to wait for. A link with a clock of its own (Now in its
// configuration) runs on virtual time: Step alone drives it.
//
// All methods are safe for concurrent use. NICs on one link share one lock. A post or a poll takes
// it once per batch, which costs about 20 ns without contention. Goroutines that use one link at
// the same time take turns; give each its own link if that is too slow.
package softnic
