// Package softnic is an RDMA NIC in pure Go: no hardware, no kernel module, no root.
//
// It is a NIC and not a mock. RC, UC and UD behave as the InfiniBand Architecture
// defines them: packet sequence numbers, segmentation, acknowledgements, NAKs, RNR
// with timers, retry counters and go-back-N, READ and atomics with responder
// resources, shared receive queues, protection by domains and keys, the QP state
// machine, flushes and asynchronous events. Package verbs/verbstest proves it.
//
//	link := softnic.NewMemoryLink(nil)
//	a, err := softnic.New(link, softnic.Config{})
//	b, err := softnic.New(link, softnic.Config{})
//	ctx, err := a.Open() // a verbs.Context; the rest is package verbs
//
// # Links
//
// One requester and one responder stand on a [Link]. A [MemoryLink] joins NICs of one
// process: a packet is a header and a reference to the sender's bytes, of any length,
// so that a transfer is one copy. A [FaultLink] segments by MTU and loses, repeats,
// delays, reorders and corrupts packets by a seed. A [UDPLink] carries packets as RoCE v2
// to other processes and hosts.
//
// # Time and concurrency
//
// The core has no goroutine and no clock. Posting and polling run it to completion
// in the caller; what must happen unattended (a retry timer, a delayed packet) is done
// by one helper goroutine per link, which sleeps while there is nothing to wait for.
// With a clock of its own (Now in the link's configuration) a link is driven by Step
// alone, on virtual time.
//
// All methods are safe for concurrent use. NICs on one link share one lock, which a
// post or a poll takes once per batch: about 20 ns without contention, so batches
// matter. Two goroutines that hammer one link take turns; give each its own link
// where that matters.
package softnic
