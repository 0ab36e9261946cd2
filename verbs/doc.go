// Package verbs is the seam of ibverbx: what an RDMA NIC can do, in the words of
// libibverbs, shaped for Go and for batches.
//
// A provider implements the interfaces of this package: softnic is a NIC in pure
// Go, rdmacore speaks to real ones. Package verbs/verbstest is the suite that every
// provider passes.
//
// # Objects
//
// A [Device] is opened into a [Context]. A Context makes protection domains ([PD])
// and completion queues ([CQ]). A PD registers memory ([MR]), makes queue pairs
// ([QP]), shared receive queues ([SRQ]) and address handles ([AH]). An object that
// others stand on refuses to close with [ErrBusy]; closing the Context destroys
// whatever is still open in it. Close is idempotent.
//
// # Posting and polling
//
// A slice of work requests is a chain, and one call is one doorbell:
//
//	n, err := qp.PostSend(wrs)   // wrs[:n] were taken, nothing after n was
//	n, err = cq.Poll(done)       // the caller owns the slice, nothing is allocated
//
// [SendWR], [RecvWR] and [WC] are flat values without pointers. A completion whose
// Status is not [StatusSuccess] has only WRID, Status, QPN and VendorErr: no other
// field of it may be read (ibv_poll_cq(3)).
//
// # Waiting
//
// A CQ made with a [Waker] can be armed. The pattern that loses no completion is
// poll, arm, poll, sleep; [Wait] is that loop. Several CQs, the asynchronous events
// of a Context and timers may share one Waker, so that one goroutine waits for all.
//
// # Memory
//
// Memory that a NIC may touch comes from [AllocMemory] (mmap), never from the Go
// heap, and is freed by hand. Go's race detector does not see it: one-sided writes
// never trip it, and it never proves them right. Two rules follow. Read the target
// of a remote write only after a completion, a notification or other
// synchronisation says that it is there; and do not spin on a payload byte across
// goroutines of one process. The build tag heapmem makes AllocMemory return Go heap
// memory, so that `go test -race -tags heapmem` checks those rules.
//
// # Concurrency
//
// Unless a provider says otherwise, all methods are safe for concurrent use by
// several goroutines. Posting a work request happens before the return of the Poll
// that delivers its completion, on either side.
package verbs
