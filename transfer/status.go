package transfer

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"
)

// Phase is the current activity of a transfer.
type Phase uint8

// Phases of a transfer, in order, except Checking.
const (
	// Moving means that data is being moved.
	Moving Phase = iota
	// Verifying means that digests are being compared, see Batch.Verify.
	Verifying
	// Notifying means that the data is in place and the notification is in flight or waiting for space in the peer's mailbox.
	Notifying
	// Done means that the transfer has completed, possibly with an error.
	Done
	// Checking means that existing data is being verified, before Moving. Only package files uses it.
	Checking
)

var phaseNames = [...]string{"moving", "verifying", "notifying", "done", "checking"}

// String returns the phase in lower case, such as "moving".
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return fmt.Sprintf("Phase(%d)", uint8(p))
}

// Status is a snapshot of a transfer's progress.
type Status struct {
	// Phase is the current activity.
	Phase Phase
	// Bytes is the number of bytes in place, Total the size of the transfer. Bytes lags slightly, and restarts at 0 if data is read again
	// after a digest mismatch.
	Bytes, Total int64
	// Rate is the rate in bytes per second since the previous Status from Progress; 0 if unknown.
	Rate float64
	// Left is the estimated remaining time at Rate; 0 if unknown.
	Left time.Duration
	// Rails lists the NICs of the peer's session; empty without a session.
	Rails []RailStatus
}

// RailStatus reports one NIC's traffic in a peer's session, for all transfers together.
type RailStatus struct {
	// Name is the NIC's device name.
	Name string
	// Bytes is the number of bytes read and written since the session's queue pairs were created.
	Bytes int64
	// Rate is the rate in bytes per second since the previous Status from Progress; 0 if unknown.
	Rate float64
}

// String formats the Status in one line, such as "moving 57%, 17.1 GB of 30.0 GB, 3.90 GB/s (mlx5_0 1.90 GB/s, mlx5_1 2.00 GB/s), 3s left".
// Units are decimal.
func (s Status) String() string {
	var b strings.Builder
	b.WriteString(s.Phase.String())
	if s.Total > 0 {
		fmt.Fprintf(&b, " %d%%, %s of %s", int64(float64(s.Bytes)*100/float64(s.Total)), quantity(float64(s.Bytes)), quantity(float64(s.Total)))
	}
	if s.Rate > 0 {
		fmt.Fprintf(&b, ", %s/s", quantity(s.Rate))
		for i, r := range s.Rails {
			b.WriteString([]string{" (", ", "}[min(i, 1)])
			fmt.Fprintf(&b, "%s %s/s", r.Name, quantity(r.Rate))
		}
		if len(s.Rails) > 0 {
			b.WriteString(")")
		}
	}
	if s.Left > 0 {
		fmt.Fprintf(&b, ", %v left", s.Left.Round(time.Second))
	}
	return b.String()
}

// quantity formats a number of bytes with three digits.
func quantity(n float64) string {
	for _, unit := range []string{"B", "kB", "MB", "GB"} {
		switch {
		case unit == "B" && n < 1000:
			return fmt.Sprintf("%.0f B", n)
		case n < 9.995:
			return fmt.Sprintf("%.2f %s", n, unit)
		case n < 99.95:
			return fmt.Sprintf("%.1f %s", n, unit)
		case n < 999.5:
			return fmt.Sprintf("%.0f %s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%.1f TB", n)
}

// Status returns the transfer's progress, without rates.
func (t *Transfer) Status() Status {
	if t.peer == nil {
		return Status{Phase: Done}
	}
	return Status{Phase: Phase(t.phase.Load()), Bytes: int64(t.op.Progress()), Total: int64(t.total), Rails: t.peer.Rails()}
}

// Rails returns the traffic per NIC in the peer's session, without rates. It is empty without a session.
func (p *Peer) Rails() (list []RailStatus) {
	if p.node == nil {
		return nil
	}
	for _, r := range p.node.Stats().QP.Rails {
		list = append(list, RailStatus{Name: r.Device, Bytes: int64(r.Bytes)})
	}
	return list
}

// Progress returns an iterator that yields the Status, with rates, once per interval (at least 1 ms) until the transfer completes or ctx is
// done. The last Status of a completed transfer is its final one.
func (t *Transfer) Progress(ctx context.Context, every time.Duration) iter.Seq[Status] {
	return Progress(ctx, every, t.Done(), t.Status)
}

// Progress implements Transfer.Progress for packages built on this one, such as files. It yields the result of status, with rates added,
// once per interval until done is closed or ctx is done. If done is closed, it calls status a last time.
func Progress(ctx context.Context, every time.Duration, done <-chan struct{}, status func() Status) iter.Seq[Status] {
	return func(yield func(Status) bool) {
		ticker := time.NewTicker(max(every, time.Millisecond))
		defer ticker.Stop()
		last, at := Status{}, time.Now()
		for {
			ended := false
			select {
			case <-done:
				ended = true
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			s, now := status(), time.Now()
			s.rate(&last, now.Sub(at).Seconds())
			last, at = s, now
			if !yield(s) || ended {
				return
			}
		}
	}
}

// rate sets the rates since an earlier Status.
func (s *Status) rate(last *Status, seconds float64) {
	if seconds <= 0 {
		return
	}
	if s.Bytes > last.Bytes {
		s.Rate = float64(s.Bytes-last.Bytes) / seconds
		s.Left = time.Duration(float64(s.Total-s.Bytes) / s.Rate * float64(time.Second))
	}
	for i := range s.Rails {
		if r := &s.Rails[i]; i < len(last.Rails) && r.Bytes > last.Rails[i].Bytes { // otherwise the session is new
			r.Rate = float64(r.Bytes-last.Rails[i].Bytes) / seconds
		}
	}
}
