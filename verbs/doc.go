// Package verbs defines the interface between the engine and a NIC: the vocabulary of libibverbs, shaped
// for Go and for batches.
//
// Providers implement its interfaces. Package softnic is a NIC in pure Go; package rdmacore drives real
// NICs. Every provider passes the conformance suite in verbs/verbstest.
//
// # Objects
//
// A [Device] is opened into a [Context]. A Context creates protection domains ([PD]) and completion
// queues ([CQ]). A PD registers memory ([MR]) and creates queue pairs ([QP]), shared receive queues
// ([SRQ]) and address handles ([AH]). Closing an object that others depend on returns [ErrBusy]. Closing
// the Context destroys everything still open in it. Close is idempotent.
//
// # Posting and polling
//
// A slice of work requests is a chain, and each call rings one doorbell:
//
//	n, err := qp.PostSend(wrs)   // wrs[:n] were posted, the rest was not
//	n, err = cq.Poll(done)       // the caller owns the slice; nothing is allocated
//
// [SendWR], [RecvWR] and [WC] are flat values without pointers. If the Status of a completion is not
// [StatusSuccess], only WRID, Status, QPN and VendorErr are valid (ibv_poll_cq(3)).
//
// # Waiting
//
// A CQ created with a [Waker] can be armed. Poll, arm, poll, sleep is the order that misses no
// completion; [Wait] is that loop. Several CQs, the asynchronous events of a Context and timers may
// share one Waker, so one goroutine can wait for all.
//
// # Errors
//
// Errors wrap a sentinel such as [ErrInvalid] or [ErrClosed] in an [OpError] with the operation, device
// and QP; test them with errors.Is. [ErrQueueFull] is ordinary back-pressure and is returned unwrapped.
// A failed work request is reported by its completion ([WC.Err]).
//
// # Memory
//
// NICs access memory allocated by [AllocMemory] (mmap), never the Go heap, and it must be freed
// explicitly. Go's race detector does not see this memory, so it cannot find races with one-sided
// writes. Two rules follow. Read the target of a remote write only after a completion, a notification or
// other synchronization. Do not spin on a payload byte across goroutines of one process. With the build
// tag heapmem, AllocMemory returns Go heap memory, and `go test -race -tags heapmem` checks these rules.
//
// # Concurrency
//
// All methods are safe for concurrent use unless a provider documents an exception. Posting a work
// request happens before the return of the Poll that delivers its completion, on both sides.
//
// # Changes
//
// docs/api.md lists the lasting API; unexported code may change while the tests pass. A new interface
// method must be implemented by packages softnic, rdmacore, reliable and internal/nullnic, and tested in
// verbs/verbstest. The layouts of [SGE], [SendWR], [RecvWR] and [WC] are fixed, because C code reads
// them (layout_test.go).
package verbs
