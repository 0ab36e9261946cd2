package perf

import "errors"

// A ping-pong posts one message at a time but asks for a send completion only with
// every pingChain-th, of which pingWindow may be outstanding.
const (
	pingChain  = 32
	pingWindow = 2
)

// latencyWarmUp is how many samples are thrown away first: caches, branch predictors.
const latencyWarmUp = 64

// latency measures the row. If it was cancelled it returns what it has; a result with
// no iterations is none.
func (r *row) latency() (Result, error) {
	one, scale := r.roundTrip, 1.0
	if r.cfg.op().received() {
		one, scale = r.pingPong, 0.5
	}
	s := newSamples()
	err := r.samples(s, one)
	if err != nil && !errors.Is(err, errCancelled) {
		return Result{}, err
	}
	if s.flush(); s.count == 0 {
		return Result{Size: r.size}, nil
	}
	return s.result(r.size, scale), nil
}

// samples runs the operation until the row is complete. Only the operation itself and
// one reading of the clock lie between the two times of a sample.
func (r *row) samples(s *samples, one func() error) error {
	limit, total := int64(r.cfg.Iterations), r.cfg.Duration
	begin := r.now()
	reported := begin
	for count := int64(-latencyWarmUp); (limit == 0 || count < limit) && !r.cancelled.Load(); count++ {
		if r.cfg.Check {
			r.prepareOne()
		}
		start := r.now()
		err := one()
		end := r.now()
		if err == nil && r.cfg.Check {
			err = r.verifyOne()
		}
		if err != nil {
			return err
		}
		if count < 0 {
			if count == -1 {
				r.mark()
				end = r.now()
			}
			begin = end
			continue
		}
		if s.add(end - start) {
			s.flush()
		}
		if total > 0 && end-begin >= total {
			return nil
		}
		if end-reported >= stretchLong/2 {
			reported = end
			r.progress(max(fraction(count, limit), fraction(int64(end-begin), int64(total))))
		}
	}
	return nil
}

func fraction(done, total int64) float64 {
	if total == 0 {
		return 0
	}
	return float64(done) / float64(total)
}

func (r *row) prepareOne() {
	for _, f := range r.flows {
		f.prepare(1)
	}
}

func (r *row) verifyOne() error {
	for _, f := range r.flows {
		if err := f.verify(1); err != nil {
			return err
		}
	}
	return nil
}

// roundTrip posts one request and polls its completion.
func (r *row) roundTrip() error {
	f := r.flows[0]
	q := &f.queues[0]
	if _, err := q.qp.PostSend(q.chains[0]); err != nil {
		return err
	}
	q.sent++
	q.inFlight++
	f.sent++
	f.inFlight++
	return r.await(f.index, &f.completed)
}

// pingPong sends a message from the first end to the second and one back.
func (r *row) pingPong() error {
	for _, f := range r.flows {
		if err := r.ping(f); err != nil {
			return err
		}
		if err := r.await(1-f.index, &f.received); err != nil {
			return err
		}
	}
	return nil
}

// ping posts the next request of a chain on its own.
func (r *row) ping(f *flow) error {
	q := &f.queues[0]
	at := int(q.sent % pingChain)
	if _, err := q.qp.PostSend(q.chains[q.next][at : at+1]); err != nil {
		return err
	}
	q.sent++
	f.sent++
	if at < pingChain-1 {
		return nil
	}
	if q.next++; q.next == len(q.chains) {
		q.next = 0
	}
	q.inFlight++
	f.inFlight++
	if q.inFlight < pingWindow {
		return nil
	}
	return r.await(f.index, &f.completed)
}

// await polls one end until a counter of completions there moves.
func (r *row) await(side int, counter *int64) error {
	before := *counter
	var w waiting
	for {
		if err := r.poll(side); err != nil || *counter != before {
			return err
		}
		if err := r.foundNothing(&w); err != nil {
			return err
		}
	}
}
