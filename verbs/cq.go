package verbs

import "context"

// CQConfig configures a completion queue.
type CQConfig struct {
	// Depth is the required capacity in completions; providers may round up. Zero is an error. Count
	// every completion that may be unpolled. The send queue's depth is not a bound: a NIC may free a
	// request's slot when the request completes, before the completion is polled (Soft-RoCE does).
	Depth int
	// Waker is woken when the CQ is armed and a completion arrives. Nil means
	// polling only: Arm then returns ErrNotSupported. CQs may share a Waker.
	Waker *Waker
	// Timestamp enables WC.Timestamp. Without CapTimestamp, CreateCQ returns ErrNotSupported.
	Timestamp bool
}

// ClockReader is implemented by contexts of devices with CapTimestamp.
type ClockReader interface {
	// ReadClock returns the device's clock, in the ticks of WC.Timestamp, and the number of ticks per
	// second. Reading may take a microsecond.
	ReadClock() (ticks, hz uint64, err error)
}

// CQ is a completion queue. It is safe for concurrent use.
type CQ interface {
	// Poll removes up to len(dst) completions, oldest first, and never blocks. n is 0 if the queue is
	// empty. After an overrun it returns the remaining completions, then ErrCQOverrun.
	Poll(dst []WC) (n int, err error)
	// Arm makes the next completion wake the CQ's Waker once. With solicitedOnly, only a solicited or
	// failed completion does. Completions already in the queue do not count: poll again after Arm before
	// sleeping (ibv_req_notify_cq(3)). Without a Waker, Arm returns ErrNotSupported.
	Arm(solicitedOnly bool) error
	// Depth returns the queue's capacity in completions.
	Depth() int
	// Close destroys the CQ. It returns ErrBusy while QPs use it. Close wakes the
	// Waker, so a goroutine in Wait returns with ErrClosed.
	Close() error
}

// Wait polls cq until at least one completion is available, and sleeps on w in between. w must be the
// CQ's Waker. Wait returns ctx.Err() if ctx is done first, and otherwise an error of Poll or Arm.
func Wait(ctx context.Context, cq CQ, w *Waker, dst []WC) (n int, err error) {
	if cq == nil || w == nil {
		return 0, Invalidf("wait: the CQ or the Waker is nil")
	}
	for {
		if n, err = cq.Poll(dst); n > 0 || err != nil || len(dst) == 0 {
			return n, err
		}
		if err = cq.Arm(false); err != nil {
			return 0, err
		}
		// A completion that arrived between the first poll and Arm sent no wake-up.
		if n, err = cq.Poll(dst); n > 0 || err != nil {
			return n, err
		}
		if err = w.Wait(ctx); err != nil {
			return 0, err
		}
	}
}
