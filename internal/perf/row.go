package perf

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"ibverbx"
	"ibverbx/verbs"
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
	// quietRounds is how many rounds an end is not polled at which nothing is expected:
	// a VirtualQP wants to be polled while it is connected, but not all the time.
	quietRounds = 64
)

// row is one message size being measured.
type row struct {
	plan
	cfg       *Config
	pair      *pair
	flows     []*flow
	wcs       [pollBatch]ibverbx.WC
	quiet     [2]bool // nothing is expected to complete at that end
	round     int
	before    [][]ibverbx.LaneStats // what lanes had done when mark was called
	cancelled *atomic.Bool
	epoch     time.Time
	progress  func(fraction float64) // called between stretches, never inside one
}

// openRow makes everything that a row needs.
func (t *Test) openRow(size int, cancelled *atomic.Bool, progress func(float64)) (*row, error) {
	r := &row{
		plan: newPlan(&t.cfg, size, t.maxWR), cfg: &t.cfg,
		cancelled: cancelled, epoch: time.Now(), progress: progress,
	}
	pr, err := openPair(&t.rails, r.cfg, &r.plan)
	if err != nil {
		return nil, err
	}
	r.pair = pr
	// Two ends that bring lanes back answer one another: neither is quiet then.
	r.quiet[1] = r.directions == 1 && r.recvs == 0 && !r.cfg.Kill.On
	for i := range r.directions {
		f, err := pr.newFlow(i, r.cfg, &r.plan)
		if err != nil {
			return nil, errors.Join(err, pr.close())
		}
		f.rolling = rolling{on: r.cfg.Kill.On, now: r.now}
		r.flows = append(r.flows, f)
	}
	return r, nil
}

// now is the time since the row was opened: one reading of the monotonic clock.
func (r *row) now() time.Duration { return time.Since(r.epoch) }

// step posts what there is room for at either end and takes what is complete.
func (r *row) step() error {
	for _, f := range r.flows {
		if err := f.postAll(); err != nil {
			return r.pair.ends[f.index].failure(err)
		}
	}
	r.round++
	for side := range r.pair.ends {
		if r.quiet[side] && r.round%quietRounds != 0 {
			continue
		}
		if err := r.poll(side); err != nil {
			return err
		}
	}
	return nil
}

// poll takes all completions of one end: sends of the direction that it initiates, and
// receives of the other.
func (r *row) poll(side int) error {
	e := r.pair.ends[side]
	for {
		n, err := e.Poll(r.wcs[:])
		if err != nil {
			return e.failure(err)
		}
		for i := range n {
			wc := &r.wcs[i]
			if wc.Status != verbs.StatusSuccess {
				return e.failure(wc.Err())
			}
			if wc.WRID&receiveID == 0 {
				err = r.flows[side].completedSend(wc)
			} else {
				err = r.flows[1-side].completedRecv(wc)
			}
			if err != nil {
				return e.failure(err)
			}
		}
		// A poll that finds nothing is when a VirtualQP sees to its lanes.
		if n == 0 || n < len(r.wcs) && !r.cfg.Kill.On {
			return nil
		}
	}
}

// done counts the messages that came through in both directions.
func (r *row) done() (n int64) {
	for _, f := range r.flows {
		n += f.done()
	}
	return n
}

// idle reports whether both directions are.
func (r *row) idle() bool {
	for _, f := range r.flows {
		if !f.idle() {
			return false
		}
	}
	return true
}

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
	for side := range r.pair.ends {
		if err := r.poll(side); err != nil {
			return err
		}
	}
	now := r.now()
	if w.since == 0 {
		w.since = now
	}
	waited := now - w.since
	switch {
	case waited > cancelAfter && r.cancelled.Load():
		return errCancelled
	case waited > stallAfter:
		err := fmt.Errorf("no completion for %v after %d messages: is the peer's port up?", stallAfter, r.flows[0].sent)
		return r.pair.ends[1].failure(r.pair.ends[0].failure(err)) // an end that has failed says why
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
