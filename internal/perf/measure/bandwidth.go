package measure

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

const (
	// stretches is how many times a row changes between transfer and copy, so that both
	// see the same load of the machine. Longer rows change more often.
	stretches = 5
	// stretchLong is the longest stretch of a transfer.
	stretchLong = 200 * time.Millisecond
	warmUp      = 5 * time.Millisecond
	// copyShort is how long a copy lasts if the row is counted in messages.
	copyShort = time.Millisecond
	// copyLong is the duration of a copy before or after a live transfer, and copiesEach their number.
	copyLong   = 5 * time.Millisecond
	copiesEach = 3
	// peakSpan is the shortest time over which a peak counts. Less is noise of the clock and
	// of batches.
	peakSpan = 500 * time.Microsecond
	// remotePeakSpan is the same between processes, where completions come in larger batches.
	remotePeakSpan = 10 * time.Millisecond
)

// tally is what a row has counted so far.
type tally struct {
	elapsed time.Duration // time of transfers, without pauses and patterns
	done    int64         // messages that came through in that time

	atLeast   time.Duration // shortest time over which a peak counts
	peak      float64       // most messages per second
	spanStart time.Duration // when the current span began, on the axis of elapsed
	spanDone  int64         // messages of the current span
}

// bandwidth measures the row. If it was cancelled mine holds what was measured until then.
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

// lost counts the messages that were sent and not received so far.
func (r *SizeRun) lost() (n int64) {
	for _, f := range r.flows {
		if f.recvs > 0 {
			n += f.sent - f.received
		}
	}
	return n
}

// warmUp runs for a moment what will be measured. With Check every message counts, so there is
// no warm-up.
func (r *SizeRun) warmUp() error {
	if r.cfg.Check {
		return nil
	}
	if n, chain := int64(r.cfg.Iterations), int64(r.plan.chain); n > 0 {
		// Whole chains only: a broken one would shift the places of messages.
		return r.burst(&tally{}, min((n+chain-1)/chain, int64(r.plan.window))*chain, 0)
	}
	return r.burst(&tally{}, endless, warmUp)
}

// stretches measures a copy and the transfer in turns until the row is complete, and returns the
// rates of the copies. A live transfer has no pauses: copies are measured before and after it. Between
// processes there is one long stretch and no copy.
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
		if left == endless && total > 0 && rest <= 0 {
			break // a burst without an end and without time left would never end
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

// copies adds the rates of n copies of the given duration. p is nil if none is measured.
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

// transfer sends n messages on every QP, or as many as it can in the given time. With Check it
// does so in bursts that fit the buffers, and compares between them. A side in another process
// compares one burst while the next is under way: a burst then fills half of the places.
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
			proven = before // the remote side compares the last burst now
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

// keep leaves out messages that were not compared when a check was given up.
func (t *tally) keep(proven *tally, err error) error {
	if errors.Is(err, errCancelled) {
		*t = *proven
	}
	return err
}

// burst sends n messages on every QP, or as many as it can if d is above zero or a rail is to be
// lost. It waits until all are complete, and adds them to t. The time ends with the last message
// that came through. Its loop allocates nothing.
func (r *SizeRun) burst(t *tally, n int64, d time.Duration) error {
	for _, f := range r.flows {
		f.start(n)
	}
	start, done, elapsed := r.now(), r.done(), t.elapsed
	patterns := r.patterns()
	var w idlePolls
	for {
		if r.outage != nil {
			r.outage.act() // before the next post, so that it goes to a port that is down
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
		r.tell(now, t.done)
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

// over reports whether a burst that has lasted so long ends. With Check a burst is short and is
// sent in full, unless the check rolls. An error gives up what is in flight.
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

// add counts messages that were complete when the row had transferred for so long. Between
// bursts that time stands still, so that a peak may span several of them.
func (t *tally) add(elapsed time.Duration, messages int64) {
	t.elapsed = elapsed
	t.done += messages
	t.spanDone += messages
	if span := elapsed - t.spanStart; span >= t.atLeast {
		t.peak = max(t.peak, float64(t.spanDone)/span.Seconds())
		t.spanStart, t.spanDone = elapsed, 0
	}
}

// take takes what was counted, and the rates of copies in any order.
func (o *Outcome) take(t *tally, copies []float64) {
	o.Messages, o.Elapsed, o.Peak = t.done, t.elapsed, t.peak
	if len(copies) > 0 {
		slices.Sort(copies)
		o.copyRate = median(copies)
	}
}
