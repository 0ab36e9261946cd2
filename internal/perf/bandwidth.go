package perf

import (
	"errors"
	"slices"
	"time"
)

const (
	// stretches is how many times a row changes between transfer and copy, so that
	// both see the same weather; longer rows change more often.
	stretches   = 5
	stretchLong = 200 * time.Millisecond
	warmUp      = 5 * time.Millisecond
	// copyShort is how long a copy lasts if the row is counted in messages.
	copyShort = time.Millisecond
	// peakSpan is the shortest time over which a peak counts: less is noise of the
	// clock and of batches.
	peakSpan = 500 * time.Microsecond
)

// bandwidth is what a row has counted so far.
type bandwidth struct {
	elapsed time.Duration
	done    int64
	copies  []float64 // bytes per second, one for each stretch

	atLeast   time.Duration // over which a peak counts; zero means peakSpan
	peak      float64       // messages per second
	spanStart time.Duration // on the axis of elapsed
	spanDone  int64
}

// bandwidth measures the row. If it was cancelled it returns what it has; a result
// with no iterations is none.
func (r *row) bandwidth() (Result, error) {
	var b bandwidth
	err := r.warmUp()
	lost := r.lost()
	r.mark()
	if err == nil {
		err = r.stretches(&b)
	}
	if err != nil && !errors.Is(err, errCancelled) {
		return Result{}, err
	}
	if b.done == 0 || len(b.copies) == 0 {
		return Result{Size: r.size}, nil
	}
	slices.Sort(b.copies)
	return bandwidthResult(r.size, b.done, r.lost()-lost, b.elapsed, b.peak, median(b.copies)), nil
}

// lost counts the messages that were sent and not received so far.
func (r *row) lost() (n int64) {
	for _, f := range r.flows {
		if f.recvs > 0 {
			n += f.sent - f.received
		}
	}
	return n
}

// warmUp runs what will be measured for a moment. With Check every message counts, so
// there is none.
func (r *row) warmUp() error {
	if r.cfg.Check {
		return nil
	}
	var b bandwidth
	if n := int64(r.cfg.Iterations); n > 0 {
		// Whole chains only: a broken one would shift the messages' places.
		return r.burst(&b, min((n+int64(r.chain)-1)/int64(r.chain), int64(r.window))*int64(r.chain), 0)
	}
	return r.burst(&b, endless, warmUp)
}

// stretches measures by turns a copy and the transfer until the row is complete.
func (r *row) stretches(b *bandwidth) error {
	places := r.places()
	if n := int64(r.cfg.Iterations); n > 0 {
		chain := int64(r.chain)
		part := max(1, (n+chain*stretches-1)/(chain*stretches)) * chain
		for done := int64(0); done < n && !r.cancelled.Load(); done += part {
			b.copies = append(b.copies, r.copyRate(places, copyShort))
			if err := r.transfer(b, min(part, n-done), 0); err != nil {
				return err
			}
			r.progress(float64(done+part) / float64(n))
		}
		return nil
	}
	total := r.cfg.Duration
	part := min(total/stretches, stretchLong)
	for spent := time.Duration(0); spent < total && !r.cancelled.Load(); {
		b.copies = append(b.copies, r.copyRate(places, part/5))
		start := r.now()
		if err := r.transfer(b, endless, min(part, total-spent)); err != nil {
			return err
		}
		spent += r.now() - start
		r.progress(float64(spent) / float64(total))
	}
	return nil
}

// transfer sends n messages on every QP, or as many as it can in the given time. With
// Check it does so in bursts that fit the buffers, and compares between them.
func (r *row) transfer(b *bandwidth, n int64, d time.Duration) error {
	if !r.cfg.Check {
		return r.burst(b, n, d)
	}
	start := r.now()
	for n > 0 && !r.cancelled.Load() {
		part := min(n, int64(r.depth()))
		for _, f := range r.flows {
			f.prepare(part)
		}
		if err := r.burst(b, part, 0); err != nil {
			return err
		}
		for _, f := range r.flows {
			if err := f.verify(part); err != nil {
				return err
			}
		}
		n -= part
		if d > 0 && r.now()-start >= d {
			return nil
		}
	}
	return nil
}

// burst sends n messages on every QP, or as many as it can if d is above zero, waits
// until all are complete, and adds them to b. The time ends with the last message that
// came through. Nothing in its loop allocates.
func (r *row) burst(b *bandwidth, n int64, d time.Duration) error {
	for _, f := range r.flows {
		f.start(n)
	}
	start, done := r.now(), r.done()
	last := start
	var w waiting
	for {
		if err := r.step(); err != nil {
			return err
		}
		now, before := r.now(), done
		done = r.done()
		moved := done - before
		if moved > 0 {
			last, w = now, waiting{}
			b.add(b.elapsed+now-start, moved)
		}
		if r.idle() {
			break
		}
		if d > 0 && now-start >= d || r.cancelled.Load() && !r.cfg.Check {
			for _, f := range r.flows {
				f.stop()
			}
		}
		if moved == 0 {
			if err := r.foundNothing(&w); err != nil {
				return err
			}
		}
	}
	b.elapsed += last - start
	return nil
}

// add counts messages that were complete when the row had transferred for so long.
// Between bursts that time stands still, so that a peak may span several of them.
func (b *bandwidth) add(now time.Duration, messages int64) {
	b.done += messages
	b.spanDone += messages
	if span := now - b.spanStart; span >= max(b.atLeast, peakSpan) {
		b.peak = max(b.peak, float64(b.spanDone)/span.Seconds())
		b.spanStart, b.spanDone = now, 0
	}
}
