package measure

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

const (
	// stretches is the minimum number of alternations between transfer and copy in a row, so that
	// both see the same machine load. Longer rows alternate more often.
	stretches = 5
	// stretchLong is the longest stretch of a transfer.
	stretchLong = 200 * time.Millisecond
	warmUp      = 5 * time.Millisecond
	// copyShort is the duration of a copy in a row limited by a message count.
	copyShort = time.Millisecond
	// copyLong is the duration of a copy before or after a live transfer, and copiesEach their number.
	copyLong   = 5 * time.Millisecond
	copiesEach = 3
	// peakSpan is the shortest interval considered for a peak. Shorter ones measure clock and
	// batching noise.
	peakSpan = 500 * time.Microsecond
	// remotePeakSpan is peakSpan between processes, where completions arrive in larger batches.
	remotePeakSpan = 10 * time.Millisecond
)

// tally accumulates the results of a row.
type tally struct {
	elapsed time.Duration // transfer time, without pauses and patterns
	done    int64         // messages delivered in that time

	atLeast   time.Duration // shortest interval considered for a peak
	peak      float64       // highest rate in messages per second
	spanStart time.Duration // value of elapsed when the current span began
	spanDone  int64         // messages of the current span
}

// bandwidth measures the row. After a cancellation, mine holds the partial result.
func (r *SizeRun) bandwidth(mine *Outcome) error {
	if err := r.warmUp(); err != nil {
		return err
	}
	r.begin()
	r.outage.start()
	defer r.outage.setPort(true) // even after an error
	lost := r.lost()
	t := tally{atLeast: peakSpan}
	if r.control != nil {
		t.atLeast = remotePeakSpan
	}
	copies, err := r.stretches(&t)
	mine.take(&t, copies)
	mine.lost = r.lost() - lost
	return err
}

// lost returns the number of messages sent but not yet received.
func (r *SizeRun) lost() (n int64) {
	for _, f := range r.flows {
		if f.recvs > 0 {
			n += f.sent - f.received
		}
	}
	return n
}

// warmUp briefly runs the workload before it is measured. With Check every message counts, so the
// warm-up is skipped.
func (r *SizeRun) warmUp() error {
	if r.cfg.Check {
		return nil
	}
	if n, chain := int64(r.cfg.Iterations), int64(r.plan.chain); n > 0 {
		// Whole chains only: a broken one would shift the message slots.
		return r.burst(&tally{}, min((n+chain-1)/chain, int64(r.plan.window))*chain, 0)
	}
	return r.burst(&tally{}, endless, warmUp)
}

// stretches alternates between a copy and the transfer until the row is complete, and returns the
// copy rates. A live transfer is not interrupted: copies run before and after it. Between processes
// it runs one long stretch without copies.
func (r *SizeRun) stretches(t *tally) (copies []float64, err error) {
	left, total := cmp.Or(int64(r.cfg.Iterations), endless), r.cfg.Duration
	part, span := left, total
	var places *places
	each, lasting := 1, copyLong
	switch {
	case r.control != nil:
	case r.cfg.Live.On:
		places, each = r.places(), copiesEach
	default:
		places, span = r.places(), min(total/stretches, stretchLong)
		lasting = cmp.Or(span/5, copyShort)
		if chain := int64(r.plan.chain); left != endless {
			part = max(1, (left+chain*stretches-1)/(chain*stretches)) * chain
		}
	}
	for left > 0 && !r.cancelled.Load() {
		if copies, err = r.copies(places, copies, each, lasting); err != nil {
			return copies, err
		}
		rest := total - r.spent(r.now())
		if left == endless && total > 0 && rest <= 0 && r.outage == nil {
			break // an unlimited burst without time left would never finish, unless an outage bounds it
		}
		err := r.transfer(t, min(part, left), min(span, rest))
		r.outage.end()
		if err != nil {
			return copies, err
		}
		if left != endless {
			left -= part
		} else if r.spent(r.now()) >= total {
			break
		}
	}
	if places == nil || !r.cfg.Live.On {
		return copies, nil
	}
	for _, f := range r.flows {
		if err := f.verifyAgain(); err != nil {
			return copies, err
		}
	}
	return r.copies(places, copies, each, lasting)
}

// copies appends the rates of n copies of the given duration to rates. A nil p disables copies.
func (r *SizeRun) copies(p *places, rates []float64, n int, lasting time.Duration) ([]float64, error) {
	for range n {
		if p == nil {
			break
		}
		rate, err := r.copyRate(p, lasting)
		if err != nil {
			return rates, err
		}
		rates = append(rates, rate)
	}
	return rates, nil
}

// transfer sends n messages on every QP, or as many as possible within d. With Check it sends in
// bursts that fit the buffers and verifies after each. A side in another process verifies one burst
// while the next is in flight, so a burst then uses only half of the slots.
func (r *SizeRun) transfer(t *tally, n int64, d time.Duration) error {
	if !r.cfg.Check || r.flows[0].rolling() {
		return r.burst(t, n, d)
	}
	burst := int64(r.plan.depth())
	if r.control != nil {
		burst = int64(r.plan.chain) * int64(max(1, r.plan.window/2))
	}
	start, proven := r.now(), *t
	for n > 0 && !r.cancelled.Load() {
		part, before := min(n, burst), *t
		err := r.prepare(part)
		if err == nil {
			err = r.burst(t, part, 0)
		}
		if err == nil {
			err = r.verify(part)
		}
		if err != nil {
			return t.keep(&proven, err)
		}
		if proven = *t; r.control != nil {
			proven = before // the remote side is comparing the last burst
		}
		if n != endless {
			n -= part
		}
		if over, err := r.outage.lasted(r.now()-start, d); over || err != nil {
			return errors.Join(err, t.keep(&proven, r.control.answered()))
		}
	}
	return t.keep(&proven, r.control.answered())
}

// keep drops unverified messages from t if the check was cancelled.
func (t *tally) keep(proven *tally, err error) error {
	if errors.Is(err, errCancelled) {
		*t = *proven
	}
	return err
}

// burst sends n messages on every QP, or as many as possible if d is positive or an outage is
// planned. It waits for all of them to complete and adds them to t. The measured time stops at the
// last delivered message. The loop does not allocate.
func (r *SizeRun) burst(t *tally, n int64, d time.Duration) error {
	for _, f := range r.flows {
		f.start(n)
	}
	start, done, elapsed := r.now(), r.done(), t.elapsed
	patterns := r.patterns()
	var w idlePolls
	for {
		if r.outage != nil {
			r.outage.act() // before the next post, so that it hits a port that is down
		}
		err := r.step()
		now, before := r.now(), done
		done = r.done()
		busy := now - start - (r.patterns() - patterns)
		if moved := done - before; moved > 0 {
			t.add(elapsed+busy, moved)
		}
		if r.outage != nil {
			r.outage.observe(now)
		}
		r.reportProgress(now, t.done)
		if err != nil || r.idle() {
			return err
		}
		over, err := r.over(now, now-start, d)
		if err != nil {
			return err
		}
		if over {
			for _, f := range r.flows {
				f.stop()
			}
		}
		if r.moved {
			w = idlePolls{}
		} else if err := r.foundNothing(&w); err != nil {
			return err
		}
	}
}

// over reports whether a burst is finished after lasted. With Check, a burst is short and always
// sent in full, unless the check rolls. An error abandons the messages in flight.
func (r *SizeRun) over(now, lasted, d time.Duration) (bool, error) {
	whole := r.cfg.Check && !r.flows[0].rolling()
	switch {
	case r.cancelled.Load():
		return !whole, r.drain.over(now, true)
	case whole:
		return false, nil
	}
	return r.outage.lasted(lasted, d)
}

// add records messages completed by the time elapsed, which counts transfers only. That time does
// not advance between bursts, so a peak may span several of them.
func (t *tally) add(elapsed time.Duration, messages int64) {
	t.elapsed = elapsed
	t.done += messages
	t.spanDone += messages
	if span := elapsed - t.spanStart; span >= t.atLeast {
		t.peak = max(t.peak, float64(t.spanDone)/span.Seconds())
		t.spanStart, t.spanDone = elapsed, 0
	}
}

// take stores the tally and the median of copies, in any order, in o.
func (o *Outcome) take(t *tally, copies []float64) {
	o.Messages, o.Elapsed, o.Peak = t.done, t.elapsed, t.peak
	if len(copies) > 0 {
		slices.Sort(copies)
		o.copyRate = median(copies)
	}
}
