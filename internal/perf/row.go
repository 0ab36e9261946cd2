package perf

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// stallAfter is how long a row waits for a completion before it gives up. RC
	// would have failed by then: 7 retries of 67 ms, several times over.
	stallAfter = 10 * time.Second
	// lossAfter is how long UC and UD wait for a message that may be lost.
	lossAfter = 50 * time.Millisecond
	// cancelAfter is how long a cancelled row waits for what is in flight.
	cancelAfter = 20 * time.Millisecond
	// pollsPerYield is how many polls may find nothing before others get the core.
	pollsPerYield = 64
)

// row is one message size being measured.
type row struct {
	plan
	cfg       *Config
	pair      *pair
	flows     []*flow
	cancelled *atomic.Bool
	epoch     time.Time
	progress  func(fraction float64) // called between stretches, never inside one
}

// openRow makes everything that a row needs.
func (t *Test) openRow(size int, cancelled *atomic.Bool, progress func(float64)) (*row, error) {
	r := &row{plan: newPlan(&t.cfg, size), cfg: &t.cfg, cancelled: cancelled, epoch: time.Now(), progress: progress}
	pr, err := openPair(t.ctxs, r.cfg, &r.plan)
	if err != nil {
		return nil, err
	}
	r.pair = pr
	for i := range r.directions {
		f, err := pr.newFlow(i, r.cfg, &r.plan)
		if err != nil {
			return nil, errors.Join(err, pr.close())
		}
		r.flows = append(r.flows, f)
	}
	return r, nil
}

// now is the time since the row was opened: one reading of the monotonic clock.
func (r *row) now() time.Duration { return time.Since(r.epoch) }

// errCancelled ends a row whose requests do not complete after a cancellation.
var errCancelled = errors.New("cancelled")

// waiting counts polls that found nothing, one after the other. The zero value is ready.
type waiting struct {
	polls int
	since time.Duration
}

// foundNothing is called for each poll that finds nothing. It lets others run now and
// then, and returns an error when waiting makes no sense any more.
func (r *row) foundNothing(w *waiting) error {
	if w.polls++; w.polls%pollsPerYield != 0 {
		return nil
	}
	runtime.Gosched()
	now := r.now()
	if w.since == 0 {
		w.since = now
	}
	waited := now - w.since
	switch {
	case waited > cancelAfter && r.cancelled.Load():
		return errCancelled
	case waited > stallAfter:
		f := r.flows[0]
		return fmt.Errorf("no completion for %v after %d messages: is the peer's port up?", stallAfter, f.sent)
	case waited > lossAfter:
		return r.writeOff()
	}
	return nil
}

// writeOff gives up messages that a transport may lose.
func (r *row) writeOff() error {
	for _, f := range r.flows {
		if f.reliable || f.recvs == 0 || f.inFlight > 0 {
			continue
		}
		if r.cfg.Mode == Latency {
			return errors.New("a message was lost, and UC and UD do not repeat it: use --connection RC, or a better path")
		}
		f.writeOff()
	}
	return nil
}
