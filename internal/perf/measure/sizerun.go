package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"ibverbx"
	"ibverbx/internal/closer"
	"ibverbx/peer"
	"ibverbx/verbs"
)

const (
	// stallAfter is the completion timeout of a row in one process. RC fails earlier: 7 retries of
	// 67 ms, several times over.
	stallAfter = 10 * time.Second
	// lossAfter bounds the wait of UC and UD for a message that may be lost.
	lossAfter = 50 * time.Millisecond
	// cancelAfter bounds how long a cancelled row in one process waits for the next completion.
	cancelAfter = 20 * time.Millisecond
	// drainAfter bounds the total time a cancelled row waits for messages in flight.
	drainAfter = 2 * time.Second
	// pollsPerYield is the number of consecutive empty polls before other goroutines run.
	pollsPerYield = 64
	// quietRounds is the number of rounds between polls of a quiet side. A VirtualQP must be polled
	// while it is connected, but not all the time.
	quietRounds = 64
	// stallShort is the time without a delivered message after which a row is shown as stalled.
	// Larger messages get more time, assuming stallRate bytes per second.
	stallShort = time.Second
	stallRate  = 64 << 20
	// progressInterval is the progress interval.
	progressInterval = 100 * time.Millisecond
)

// SizeRun measures one message size. Either both sides are in this process and one goroutine drives
// them, or one side is in another process, connected by control.
type SizeRun struct {
	plan  plan
	cfg   *Config
	side  int      // the side that measures: 1 for a server, otherwise 0
	sides [2]*side // the client, or the initiator of a single process, is first
	flows []*flow  // flows initiated by sides in this process
	// control and session connect to the other process. They are nil if both sides are in this
	// process.
	control *control
	session *peer.Session
	outage  *outage // nil unless an outage is planned
	series  *series // nil if rates over time are not requested
	// recent returns the median and the 99th percentile of the times since its last call. It is nil
	// unless the row measures latency.
	recent func() (p50, p99 float64)

	wcs   [pollBatch]ibverbx.WC
	round int
	moved bool // the last round found a completion

	observer  *Observer
	cancelled *atomic.Bool
	drain     drain
	epoch     time.Time
	pace      pace
	closers   closer.Stack
}

// drain limits how long a cancelled row waits for messages in flight.
type drain struct {
	began time.Duration // when the row noticed the cancellation, 0 before
	limit time.Duration // maximum time since began
}

// over returns an error once the drain time of a cancelled row has expired.
func (d *drain) over(now time.Duration, cancelled bool) error {
	switch {
	case !cancelled:
	case d.began == 0:
		d.began = now
	case now-d.began > d.limit:
		return errCancelled
	}
	return nil
}

// pace tracks the progress of a row.
type pace struct {
	first    Progress      // reported before the measurement
	goal     int64         // messages to send, 0 if the row is limited by time
	began    time.Duration // when the measurement began, 0 before
	copying  time.Duration // time since then spent on copies
	reported time.Duration // when progress was last reported
	done     int64         // measured messages
	moved    time.Duration // when done last grew
	shown    float64       // the last reported fraction
}

// openRow creates all resources of a row. The caller must close the row even after an error.
func (t *Test) openRow(ctx context.Context, size int, o *Observer, cancelled *atomic.Bool) (*SizeRun, error) {
	r := &SizeRun{
		plan: newPlan(&t.cfg, size, t.maxWR), cfg: &t.cfg, side: t.side, sides: [2]*side{{memory: memory{nics: t.head.Device}}, {memory: memory{nics: t.head.Peer}}},
		observer: o, cancelled: cancelled, drain: drain{limit: cmp.Or(t.own.Timing.Drain, drainAfter)}, epoch: time.Now(),
	}
	if t.side == 1 {
		r.drain.limit = math.MaxInt64 // a server waits for its client
	}
	var err error
	if t.peer != nil {
		err = t.openRemote(ctx, r)
	} else {
		err = r.openPair(&t.rails)
	}
	for i := range r.plan.directions {
		if err == nil {
			err = r.newFlow(i)
		}
	}
	// Sides that rebuild lanes respond to each other, so neither is quiet then.
	r.sides[1].quiet = r.control == nil && r.plan.directions == 1 && r.plan.recvs == 0 && !r.cfg.Live.On
	r.pace.goal = int64(r.cfg.Iterations)
	if r.cfg.Mode == Bandwidth {
		r.pace.goal *= int64(len(r.flows) * r.plan.qps)
	}
	return r, err
}

// now returns the time since the run was opened. It reads the monotonic clock once.
func (r *SizeRun) now() time.Duration { return time.Since(r.epoch) }

// own returns the side that measures.
func (r *SizeRun) own() *side { return r.sides[r.side] }

// run measures the row and returns the outcomes of both sides. A cancelled row does not return an
// error.
func (r *SizeRun) run() (found [2]*Outcome, err error) {
	found = [2]*Outcome{{Lanes: []Lane{}}, {Lanes: []Lane{}}}
	mine := found[r.side]
	r.mark()
	if r.control != nil {
		err = r.control.start()
	}
	switch {
	case err != nil:
	case r.own().out == nil: // this side only exposes its memory, or receives
		notify(r.observer.Measuring, true)
	case r.cfg.Mode == Bandwidth:
		err = r.bandwidth(mine)
	case r.side == 1:
		err = r.echo()
	default:
		err = r.latency(mine)
	}
	if r.own().out != nil && r.pace.began > 0 && r.outage == nil {
		r.series.end()
	}
	if r.control == nil && (err == nil || errors.Is(err, errCancelled)) {
		r.count(&found)
		return found, nil
	}
	if err == nil {
		err = r.control.finish(&found)
	}
	if errors.Is(err, errCancelled) { // the remote side is silent: this side's results count
		if err = nil; !mine.Interrupted {
			r.count(&found)
		}
		mine.Interrupted = true
	}
	return found, err
}

// begin completes the warm-up: it starts the clock and resets the counters.
func (r *SizeRun) begin() {
	r.mark()
	notify(r.observer.Measuring, true)
	now := r.now()
	r.pace.began, r.pace.reported, r.pace.copying, r.pace.moved = now, now, 0, now
	r.series.start()
}

// reportProgress periodically reports progress, except during warm-up. done is the number of measured
// messages.
func (r *SizeRun) reportProgress(now time.Duration, done int64) {
	p := &r.pace
	if p.began == 0 {
		return
	}
	r.series.look(r.spent(now))
	if done > p.done {
		p.done, p.moved = done, now
	}
	if now-p.reported < progressInterval || r.observer.Progress == nil {
		return
	}
	p.reported = now
	seen := p.first
	seen.At, seen.Messages, seen.Done = r.spent(now), p.done, p.shown
	if quiet := now - p.moved; quiet >= r.plan.stall() {
		seen.Stalled = quiet
	} else {
		p.shown = max(p.shown, min(max(fraction(p.done, p.goal), fraction(int64(seen.At), int64(r.cfg.Duration))), 1))
		seen.Done = p.shown
	}
	s := r.own().stats()
	seen.Lost, seen.Rebuilt = int(s.Deaths), int(s.Deaths)-s.Out
	r.observer.Progress(seen)
}

// stall is the time without a delivered message after which a row is stalled. A large message takes
// a while.
func (p *plan) stall() time.Duration {
	return max(stallShort, time.Duration(float64(p.size)/stallRate*float64(time.Second)))
}

// spent returns the measuring time, without copies.
func (r *SizeRun) spent(now time.Duration) time.Duration { return now - r.pace.began - r.pace.copying }

func fraction(done, total int64) float64 {
	if total == 0 {
		return 0
	}
	return float64(done) / float64(total)
}

// step posts at most one chain per queue and polls completions, at every side in this process.
func (r *SizeRun) step() error {
	for _, f := range r.flows {
		if err := f.postAll(); err != nil {
			return r.sides[f.index].failure(err)
		}
	}
	r.moved = false
	r.round++
	for _, h := range r.sides {
		if !h.here() || h.quiet && r.round%quietRounds != 0 {
			continue
		}
		if err := r.poll(h); err != nil {
			return err
		}
	}
	if r.control != nil && r.round%controlRounds == 0 {
		return r.control.attend()
	}
	return nil
}

// poll handles all completions of a side: sends of the flow it initiates, and receives of the other
// flow.
func (r *SizeRun) poll(h *side) error {
	for {
		n, err := h.poll(r.wcs[:])
		if err != nil {
			return h.failure(err)
		}
		r.moved = r.moved || n > 0
		for i := range n {
			wc := &r.wcs[i]
			switch {
			case wc.Status != verbs.StatusSuccess:
				err = wc.Err()
			case wc.WRID&receiveID == 0:
				err = h.out.completedSend(wc)
			default:
				err = h.in.completedRecv(wc)
			}
			if err != nil {
				return h.failure(err)
			}
		}
		// A VirtualQP maintains its lanes when a poll returns 0.
		if n == 0 || n < len(r.wcs) && !r.cfg.Live.On {
			return nil
		}
	}
}

// done returns the number of delivered messages over all flows.
func (r *SizeRun) done() (n int64) {
	for _, f := range r.flows {
		n += f.done()
	}
	return n
}

// idle reports whether all flows are idle.
func (r *SizeRun) idle() bool {
	for _, f := range r.flows {
		if !f.idle() {
			return false
		}
	}
	return true
}

// errCancelled aborts a row whose requests do not complete after a cancellation.
var errCancelled = errors.New("cancelled")

// idlePolls counts consecutive empty polls. The zero value is ready.
type idlePolls struct {
	polls int
	since time.Duration // first clock reading, 0 before
}

// foundNothing is called after each empty round. Periodically it yields to other goroutines and
// writes off lost messages. It returns an error on timeout.
func (r *SizeRun) foundNothing(w *idlePolls) error {
	if r.control != nil {
		return r.control.rest()
	}
	if idle := r.cfg.Live.Idle; idle > 0 {
		time.Sleep(idle)
	} else if w.polls++; w.polls%pollsPerYield != 0 {
		return nil
	} else {
		runtime.Gosched()
	}
	for _, h := range r.sides {
		if err := r.poll(h); err != nil {
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
	case waited > cmp.Or(r.cfg.Live.Patience, stallAfter):
		err := fmt.Errorf("no completion for %v after %d messages: is the peer's port up?", waited.Round(time.Second), r.flows[0].sent)
		return r.sides[1].failure(r.sides[0].failure(err)) // a side that has failed knows the cause
	case waited > lossAfter:
		return r.writeOff()
	}
	return nil
}

// writeOff writes off messages that an unreliable transport may have lost.
func (r *SizeRun) writeOff() error {
	for _, f := range r.flows {
		if r.cfg.virtual() || f.recvs == 0 || f.inFlight > 0 {
			continue
		}
		if r.cfg.Mode == Latency {
			return errors.New("a message was lost, and UC and UD do not retransmit: use --connection RC, or a better path")
		}
		f.writeOff()
	}
	return nil
}
