package verbs

import "context"

// CQConfig describes a completion queue.
type CQConfig struct {
	// Depth is how many completions the queue must hold; providers may round up.
	// Zero is an error: there is no size that fits all. Count every completion that
	// may be unpolled: room in a send queue does not bound them, because a NIC may free
	// the place of a request when it completes it, before anybody polls (Soft-RoCE does).
	Depth int
	// Waker is woken when the CQ is armed and a completion arrives. Nil means
	// polling only, and Arm returns ErrNotSupported. Several CQs may share one.
	Waker *Waker
	// Timestamp asks for WC.Timestamp; ErrNotSupported unless the device has
	// CapTimestamp.
	Timestamp bool
}

// CQ is a completion queue.
type CQ interface {
	// Poll takes up to len(dst) completions, oldest first, and never blocks. After
	// an overrun it returns what is still there, then ErrCQOverrun.
	Poll(dst []WC) (n int, err error)
	// Arm makes the next completion wake the CQ's Waker once; with solicitedOnly,
	// the next solicited or failed one. A completion that was already in the queue
	// does not count: poll once more after Arm before sleeping (ibv_req_notify_cq(3)).
	Arm(solicitedOnly bool) error
	// Depth is how many completions the queue holds.
	Depth() int
	// Close destroys the CQ; ErrBusy while QPs use it. Its Waker is woken, so that
	// whoever sleeps in Wait finds ErrClosed.
	Close() error
}

// Wait polls cq until there is at least one completion, sleeping on w in between.
// w must be the Waker of the CQ. It returns ctx.Err() when ctx ends.
func Wait(ctx context.Context, cq CQ, w *Waker, dst []WC) (n int, err error) {
	for {
		if n, err = cq.Poll(dst); n > 0 || err != nil || len(dst) == 0 {
			return n, err
		}
		if err = cq.Arm(false); err != nil {
			return 0, err
		}
		// What came between the first poll and Arm did not wake anybody.
		if n, err = cq.Poll(dst); n > 0 || err != nil {
			return n, err
		}
		if err = w.Wait(ctx); err != nil {
			return 0, err
		}
	}
}
