package transfer

import (
	"context"
	"fmt"
	"iter"
	"strings"
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
	// Checking means that digests of what is there already are computed. Only transfers of package files do so.
	Checking
)

var phaseNames = [...]string{"moving", "verifying", "notifying", "done", "checking"}

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
	// Rails are the NICs that carry the session with the peer, none if there is no session.
	Rails []RailStatus
}

// RailStatus says what a NIC does for the session with a peer: for all transfers, not for one.
type RailStatus struct {
	// Name is that of the NIC.
	Name string
	// Bytes were read and written since the session began.
	Bytes int64
	// Rate is in bytes per second since the last Status of a Progress, 0 if it is not known.
	Rate float64
}

// String is a line for people, such as "moving 57%, 17.1 GB of 30.0 GB, 3.90 GB/s (mlx5_0 1.90 GB/s, mlx5_1 2.00 GB/s), 3s left".
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

// quantity writes a number of bytes with three digits.
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

// Status returns how far the transfer is, without rates.
func (t *Transfer) Status() Status {
	return Status{Phase: Phase(t.phase.Load()), Bytes: int64(t.op.Progress()), Total: int64(t.total), Rails: t.peer.Rails()}
}

// Rails returns what the NICs do for the session with the peer, without rates. It is empty without a session.
func (p *Peer) Rails() (list []RailStatus) {
	for _, r := range p.node.Stats().QP.Rails {
		list = append(list, RailStatus{Name: r.Device, Bytes: int64(r.Bytes)})
	}
	return list
}

// Progress returns the Status now and then, until the transfer has ended or ctx ends. The last one is that at the end.
func (t *Transfer) Progress(ctx context.Context, every time.Duration) iter.Seq[Status] {
	return Progress(ctx, every, t.Done(), t.Status)
}

// Progress calls status now and then, and returns the results with their rates, until done is closed or ctx is done. The last result is that
// after the end. It is for packages on top of this one, such as files.
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

// rate fills in the rates since an earlier Status.
func (s *Status) rate(last *Status, seconds float64) {
	if seconds <= 0 {
		return
	}
	if s.Bytes > last.Bytes {
		s.Rate = float64(s.Bytes-last.Bytes) / seconds
		s.Left = time.Duration(float64(s.Total-s.Bytes) / s.Rate * float64(time.Second))
	}
	for i := range s.Rails {
		if r := &s.Rails[i]; i < len(last.Rails) && r.Bytes > last.Rails[i].Bytes { // otherwise it is another session
			r.Rate = float64(r.Bytes-last.Rails[i].Bytes) / seconds
		}
	}
}
