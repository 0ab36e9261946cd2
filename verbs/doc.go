// Package verbs defines the interface between the engine and a NIC. It has the
// vocabulary of libibverbs, shaped for Go and for batches.
//
// A provider implements the interfaces of this package. softnic is a NIC in pure Go;
// rdmacore drives real NICs. Every provider passes the suite in verbs/verbstest.
//
// # Objects
//
// A [Device] is opened into a [Context]. A Context creates protection domains ([PD])
// and completion queues ([CQ]). A PD registers memory ([MR]) and creates queue pairs
// ([QP]), shared receive queues ([SRQ]) and address handles ([AH]). An object that
// others depend on refuses to close with [ErrBusy]. Closing the Context destroys
// everything still open in it. Close is idempotent.
//
// # Posting and polling
//
// A slice of work requests is a chain, and one call is one doorbell:
//
//	n, err := qp.PostSend(wrs)   // wrs[:n] were posted, the rest was not
//	n, err = cq.Poll(done)       // the caller owns the slice; nothing is allocated
//
// [SendWR], [RecvWR] and [WC] are flat values without pointers. If the Status of a
// completion is not [StatusSuccess], only WRID, Status, QPN and VendorErr are valid
// (ibv_poll_cq(3)).
//
// # Waiting
//
// A CQ created with a [Waker] can be armed. Poll, arm, poll, sleep is the order that
// misses no completion; [Wait] is that loop. Several CQs, the asynchronous events of
// a Context and timers may share one Waker, so one goroutine can wait for all.
//
// # Memory
//
// Memory that a NIC may touch comes from [AllocMemory] (mmap), never from the Go
// heap, and must be freed explicitly. Go's race detector does not see this memory, so
// it cannot find races with one-sided writes. Two rules follow. Read the target of a
// remote write only after a completion, a notification or other synchronization. Do
// not spin on a payload byte across goroutines of one process. With the build tag
// heapmem AllocMemory returns Go heap memory, and `go test -race -tags heapmem`
// checks these rules.
//
// # Concurrency
//
// Unless a provider says otherwise, all methods are safe for concurrent use by
// several goroutines. Posting a work request happens before the return of the Poll
// that delivers its completion, on both sides.
package verbs
