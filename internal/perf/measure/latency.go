package measure

import "errors"

// A ping-pong posts one message at a time. Only every pingChain-th is signaled, and at most
// pingWindow signaled sends are outstanding; fewer with Check and large messages.
const (
	pingChain  = 32
	pingWindow = 2
)

// latencyWarmUp is the number of initial samples dropped while caches and branch predictors warm
// up.
const latencyWarmUp = 64

// latency measures the row. After a cancellation, mine holds the partial result.
func (r *SizeRun) latency(mine *Outcome) error {
	one, scale := r.roundTrip, 1.0
	if r.cfg.op().received() {
		one, scale = r.pingPong, 0.5
	}
	s := newSamples(scale)
	r.recent = s.recent
	err := r.sample(s, one)
	if s.flush(); s.count > 0 {
		var failed error
		mine.Messages, mine.Latency, mine.histogram = s.count, s.result(), s.histogram()
		mine.hdr, failed = s.encoded()
		err = errors.Join(err, failed)
	}
	return err
}

// sample repeats the operation until the row is complete. Only the operation and one clock reading
// lie between the two timestamps of a sample.
func (r *SizeRun) sample(s *samples, one func() error) error {
	limit, total := int64(r.cfg.Iterations), r.cfg.Duration
	for count := int64(-latencyWarmUp); (limit == 0 || count < limit) && !r.cancelled.Load(); count++ {
		if r.cfg.Check {
			if err := r.prepare(1); err != nil {
				return err
			}
		}
		if count == 0 {
			r.begin()
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
			continue
		}
		if s.add(end - start) {
			s.flush()
		}
		if total > 0 && r.spent(end) >= total {
			return nil
		}
		r.reportProgress(end, count)
	}
	return nil
}

// roundTrip posts one request and polls its completion.
func (r *SizeRun) roundTrip() error {
	f := r.flows[0]
	q := &f.queues[0]
	before := f.completed
	if err := f.postChain(q, q.chains[q.next]); err != nil {
		return r.sides[0].failure(err)
	}
	return r.await(r.sides[0], &f.completed, before)
}

// pingPong sends a message from the first side to the second and one back. A second side in another
// process responds on its own.
func (r *SizeRun) pingPong() error {
	first, second := r.sides[0], r.sides[1]
	sent, answered := first.out.received, first.in.received
	if err := r.ping(first); err != nil {
		return err
	}
	if second.here() {
		if err := r.await(second, &second.in.received, sent); err != nil {
			return err
		}
		if err := r.ping(second); err != nil {
			return err
		}
	}
	return r.await(first, &first.in.received, answered)
}

// echo responds to every message until the remote side has sent its last.
func (r *SizeRun) echo() error {
	r.begin()
	h := r.own()
	for answered := int64(0); ; answered++ {
		for h.in.received == answered {
			if r.control.remoteDone && h.in.received >= r.control.remoteSent {
				return nil
			}
			if err := r.control.turn(); err != nil {
				return err
			}
		}
		if r.cfg.Check {
			if err := r.verifyOne(); err != nil {
				return err
			}
			if err := r.prepare(1); err != nil {
				return err
			}
		}
		if err := r.ping(h); err != nil {
			return err
		}
	}
}

// ping posts the next request of a chain separately.
func (r *SizeRun) ping(h *side) error {
	f := h.out
	q := &f.queues[0]
	at := int(q.sent % int64(f.chain))
	if err := f.postChain(q, q.chains[q.next][at:at+1]); err != nil {
		return h.failure(err)
	}
	if q.inFlight < f.window {
		return nil
	}
	return r.await(h, &f.completed, f.completed)
}

// await polls one side until *counter differs from before.
func (r *SizeRun) await(h *side, counter *int64, before int64) error {
	var w idlePolls
	for {
		if err := r.poll(h); err != nil || *counter != before {
			return err
		}
		if r.round++; r.control != nil && r.round%controlRounds == 0 {
			if err := r.control.attend(); err != nil {
				return err
			}
		}
		if err := r.foundNothing(&w); err != nil {
			return err
		}
	}
}
