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
	// stallAfter is how long a row in one process waits for a completion before it gives up.
	// RC fails earlier: 7 retries of 67 ms, several times over.
	stallAfter = 10 * time.Second
	// lossAfter is how long UC and UD wait for a message that may be lost.
	lossAfter = 50 * time.Millisecond
	// cancelAfter is how long a cancelled row in one process waits for what is in flight while nothing completes.
	cancelAfter = 20 * time.Millisecond
	// drainAfter is how long a cancelled row waits for what is in flight, however much of it completes.
	drainAfter = 2 * time.Second
	// pollsPerYield is how many polls in a row may find nothing before other goroutines run.
	pollsPerYield = 64
	// quietRounds is how many rounds a quiet side is not polled. A VirtualQP must be polled
	// while it is connected, but not all the time.
	quietRounds = 64
	// stallShort is after how long without a message a row is shown as stalled, and stallRate the bytes per second that
	// every path should have, for messages that are larger.
	stallShort = time.Second
	stallRate  = 64 << 20
	// tellEvery is how often progress is reported.
	tellEvery = 100 * time.Millisecond
)

// SizeRun measures one message size. Both sides are in this process and one goroutine drives them, or one side is in
// another process and control leads to it.
type SizeRun struct {
	plan  plan
	cfg   *Config
	side  int      // the side that measures: 1 for a server, otherwise 0
	sides [2]*side // the client, or the initiator of a single process, is first
	flows []*flow  // those that sides in this process initiate
	// control and session lead to the other process. They are nil if both sides are in this process.
	control *control
	session *peer.Session
	outage  *outage // nil unless a rail is to be lost
	series  *series // nil if nobody wants rates over time
	// recent returns the median and the 99th percentile of the times since its last call. It is nil unless latency is
	// measured.
	recent func() (p50, p99 float64)

	wcs   [pollBatch]ibverbx.WC
	round int
	moved bool // the last round found a completion

	// readHealth is Observer.Health.
	readHealth func(verbs.Context, uint32) (Health, bool)

	cancelled *atomic.Bool
	drain     drain
	epoch     time.Time
	pace      pace
	closers   closer.Stack
}

// drain is how long a cancelled row waits for what is in flight.
type drain struct {
	began time.Duration // when the row first saw that it was cancelled, 0 before
	limit time.Duration // from then on
}

// over returns an error if a row was cancelled so long ago that what is in flight is given up.
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

// pace is how far a row is.
type pace struct {
	// progress takes how far the row is, nil if nobody wants to know.
	progress func(Progress)
	// measuring is called when the warm-up is over. It may be nil.
	measuring func(on bool)
	goal      int64         // messages to send, 0 if a time ends the row
	began     time.Duration // when the measurement began, 0 before
	copying   time.Duration // time since then that was spent on copies
	told      time.Duration // when progress was last reported
	done      int64         // messages that were measured
	moved     time.Duration // when done last grew
	shown     float64       // the part that was last reported
}

// openRow makes everything that a row needs. After an error the caller closes the row too.
func (t *Test) openRow(ctx context.Context, size int, cancelled *atomic.Bool) (*SizeRun, error) {
	r := &SizeRun{
		plan: newPlan(&t.cfg, size, t.maxWR), cfg: &t.cfg, side: t.side, sides: [2]*side{{}, {}},
		cancelled: cancelled, drain: drain{limit: cmp.Or(t.drain, drainAfter)}, epoch: time.Now(),
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
	// Halves that bring lanes back answer each other: neither is quiet then.
	r.sides[1].quiet = r.control == nil && r.plan.directions == 1 && r.plan.recvs == 0 && !r.cfg.Live.On
	r.pace.goal = int64(r.cfg.Iterations)
	if r.cfg.Mode == Bandwidth {
		r.pace.goal *= int64(len(r.flows) * r.plan.qps)
	}
	return r, err
}

// now is the time since the run was opened. It reads the monotonic clock once.
func (r *SizeRun) now() time.Duration { return time.Since(r.epoch) }

// own is the side that measures.
func (r *SizeRun) own() *side { return r.sides[r.side] }

// run measures the row and returns what the two sides found. An error of a row that was
// cancelled is none.
func (r *SizeRun) run() (found [2]*Outcome, err error) {
	found = [2]*Outcome{{Lanes: []Lane{}}, {Lanes: []Lane{}}}
	mine := found[r.side]
	r.mark()
	if r.control != nil {
		err = r.control.start()
	}
	switch {
	case err != nil:
	case r.own().out == nil: // this side only lends its memory, or receives
		r.measuring()
	case r.cfg.Mode == Bandwidth:
		err = r.bandwidth(mine)
	case r.side == 1:
		err = r.echo()
	default:
		err = r.latency(mine)
	}
	if r.own().out != nil && r.pace.began > 0 {
		r.series.end()
	}
	if r.control == nil && (err == nil || errors.Is(err, errCancelled)) {
		r.count(&found)
		return found, nil
	}
	if err == nil {
		err = r.control.finish(&found)
	}
	if errors.Is(err, errCancelled) { // the remote side is silent: what this side has found counts
		if err = nil; !mine.Interrupted {
			r.count(&found)
		}
		mine.Interrupted = true
	}
	return found, err
}

// count takes what the lanes and the NICs of this process have done since the warm-up. It is called once.
func (r *SizeRun) count(found *[2]*Outcome) {
	for i, h := range r.sides {
		if h.sideQPs != nil {
			health := h.health(r.readHealth)
			found[i].Lanes, found[i].Health = h.carried(), health.since(&h.marked)
		}
	}
}

// begin ends the warm-up: it starts the clock of what is measured, and lanes are counted from here.
func (r *SizeRun) begin() {
	for _, h := range r.sides {
		if h.sideQPs != nil {
			h.before = h.lanes()
		}
	}
	r.mark()
	r.measuring()
	now := r.now()
	r.pace.began, r.pace.told, r.pace.copying, r.pace.moved = now, now, 0, now
	r.series.start()
}

// mark reads the counters of the NICs before what is measured.
func (r *SizeRun) mark() {
	for _, h := range r.sides {
		h.marked = h.health(r.readHealth)
	}
}

// measuring says that what follows is measured.
func (r *SizeRun) measuring() {
	if r.pace.measuring != nil {
		r.pace.measuring(true)
	}
}

// tell reports progress now and then, except while warming up: done messages were measured.
func (r *SizeRun) tell(now time.Duration, done int64) {
	p := &r.pace
	if p.began == 0 {
		return
	}
	r.series.look(r.spent(now))
	if done > p.done {
		p.done, p.moved = done, now
	}
	if now-p.told < tellEvery || p.progress == nil {
		return
	}
	p.told = now
	at := r.spent(now)
	seen := Progress{At: at, Messages: p.done, Done: p.shown}
	if quiet := now - p.moved; quiet >= r.plan.stall() {
		seen.Stalled = quiet
	} else {
		p.shown = max(p.shown, min(max(fraction(p.done, p.goal), fraction(int64(at), int64(r.cfg.Duration))), 1))
		seen.Done = p.shown
	}
	for _, l := range r.own().lanes() {
		seen.Lost += int(l.Deaths)
		seen.Rebuilt += int(l.Deaths)
		if l.Deaths > 0 && l.State != laneInService {
			seen.Rebuilt--
		}
	}
	p.progress(seen)
}

// stall is how long nothing must have come through before a row is stalled. A large message takes a while.
func (p *plan) stall() time.Duration {
	return max(stallShort, time.Duration(float64(p.size)/stallRate*float64(time.Second)))
}

// spent is the time of the measurement without copies.
func (r *SizeRun) spent(now time.Duration) time.Duration { return now - r.pace.began - r.pace.copying }

func fraction(done, total int64) float64 {
	if total == 0 {
		return 0
	}
	return float64(done) / float64(total)
}

// step posts what there is room for and takes what is complete, at every side in this process.
func (r *SizeRun) step() error {
	for _, f := range r.flows {
		if err := f.postAll(); err != nil {
			return r.sides[f.index].failure(err)
		}
	}
	r.moved = false
	r.round++
	for _, h := range r.sides {
		if h.sideQPs == nil || h.quiet && r.round%quietRounds != 0 {
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

// poll takes all completions of a side: sends of the flow that it initiates, and receives of the
// other.
func (r *SizeRun) poll(h *side) error {
	for {
		n, err := h.Poll(r.wcs[:])
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
		// A VirtualQP looks after its lanes when a poll finds nothing.
		if n == 0 || n < len(r.wcs) && !r.cfg.Live.On {
			return nil
		}
	}
}

// done counts the messages of the flows that came through.
func (r *SizeRun) done() (n int64) {
	for _, f := range r.flows {
		n += f.done()
	}
	return n
}

// idle reports whether all flows are.
func (r *SizeRun) idle() bool {
	for _, f := range r.flows {
		if !f.idle() {
			return false
		}
	}
	return true
}

// errCancelled ends a row whose requests do not complete after a cancellation.
var errCancelled = errors.New("cancelled")

// idlePolls counts polls in a row that found nothing. The zero value is ready.
type idlePolls struct {
	polls int
	since time.Duration // when it was first looked at the clock, 0 before
}

// foundNothing is called after each round that found nothing. Now and then it lets other
// goroutines run. It returns an error when waiting makes no sense any more.
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

// writeOff gives up messages that a transport may lose.
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
