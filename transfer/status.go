package transfer

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// Phase is what a transfer is doing.
type Phase uint8

// Phases.
const (
	Moving Phase = iota
	// Verifying means that digests are compared.
	Verifying
	// Notifying means that the data is in place and the notification is on its way, or waits for room at the peer.
	Notifying
	Done
)

var phaseNames = [...]string{"moving", "verifying", "notifying", "done"}

// String names the phase.
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return fmt.Sprintf("Phase(%d)", uint8(p))
}

// Status says how far a transfer is.
type Status struct {
	Phase Phase
	// Bytes of Total are in place. Bytes lags behind a little, and counts from 0 again if digests differed.
	Bytes, Total int64
	// Rate is in bytes per second since the last Status of a Progress, and Left the time that the rest takes at that rate. Both
	// are 0 if they are not known.
	Rate float64
	Left time.Duration
}

// Status returns how far the transfer is. Rate and Left are 0.
func (t *Transfer) Status() Status {
	s := Status{Phase: Phase(t.phase.Load()), Total: int64(t.total)}
	s.Bytes = int64(t.op.Progress())
	return s
}

// Progress returns the Status now and then, until the transfer has ended or ctx ends. The last one is that at the end.
func (t *Transfer) Progress(ctx context.Context, every time.Duration) iter.Seq[Status] {
	return func(yield func(Status) bool) {
		ticker := time.NewTicker(max(every, time.Millisecond))
		defer ticker.Stop()
		last, at := int64(0), time.Now()
		for {
			ended := false
			select {
			case <-t.Done():
				ended = true
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			s, now := t.Status(), time.Now()
			if d := now.Sub(at).Seconds(); d > 0 && s.Bytes > last {
				s.Rate = float64(s.Bytes-last) / d
				s.Left = time.Duration(float64(s.Total-s.Bytes) / s.Rate * float64(time.Second))
			}
			last, at = s.Bytes, now
			if !yield(s) || ended {
				return
			}
		}
	}
}
