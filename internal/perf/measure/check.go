package measure

import (
	"encoding/binary"
	"fmt"
	"time"
)

// prepare fills the next n messages of every flow with fresh patterns. The flows must be idle, and
// n at most the depth. The remote side fills a source in another process.
func (r *SizeRun) prepare(n int64) error {
	for _, f := range r.flows {
		first := f.queues[0].sent
		if err := r.control.freed(first + n); err != nil {
			return err
		}
		if f.op != Atomic && !f.source.here() {
			if err := r.control.request(kindFill, first, n); err != nil {
				return err
			}
			if err := r.control.answered(); err != nil {
				return err
			}
			continue
		}
		for i := range f.queues {
			if err := f.prepare(i, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// prepare fills the next n messages of a queue with fresh patterns.
func (f *flow) prepare(queue int, n int64) error {
	q := &f.queues[queue]
	switch {
	case f.op != Atomic:
		return f.fill(queue, q.sent, q.sent+n)
	case f.target.here():
		q.counter = binary.NativeEndian.Uint64(f.target.message(queue, 0))
	default:
		q.counter = uint64(q.sent) // the remote side has cleared its memory; each message adds one
	}
	return nil
}

// fill writes the patterns of messages first to end-1 of a queue to their source slots.
func (f *flow) fill(queue int, first, end int64) error {
	for m := first; m < end; m++ {
		if err := f.source.fill(queue, m, seed(f.index, queue, m)); err != nil {
			return err
		}
		if f.op == WriteImm {
			f.queues[queue].request(m).Imm = uint32(m)
		}
	}
	return nil
}

// verify compares the last n messages of every flow, which prepare has filled and which are
// complete. The remote side compares messages in its memory; control.answered returns its result.
func (r *SizeRun) verify(n int64) error {
	for _, f := range r.flows {
		if err := f.verify(n); err != nil {
			return err
		}
		if f.target.here() || n == 0 {
			continue
		}
		if err := r.control.answered(); err != nil {
			return err
		}
		if err := r.control.request(kindCompare, f.sent-n, n); err != nil {
			return err
		}
		if f.op == Atomic { // the counter must not change before it is compared
			return r.control.answered()
		}
	}
	return nil
}

// verifyOne compares the last message of a latency test. If the message consumes a receive, the
// receiving side compares it.
func (r *SizeRun) verifyOne() error {
	if !r.cfg.op().received() {
		if err := r.verify(1); err != nil {
			return err
		}
		return r.control.answered()
	}
	for _, h := range r.sides {
		if !h.here() || h.in.received == 0 {
			continue
		}
		if err := h.in.compare(0, h.in.received-1, h.in.received); err != nil {
			return err
		}
	}
	return nil
}

// verify compares the last n messages of every queue, if their target is in this process. The flow
// must be idle.
func (f *flow) verify(n int64) error {
	if missing := f.sent - f.received; f.recvs > 0 && missing > 0 {
		return fmt.Errorf("--check: %d of %d messages were lost; UC and UD do not retransmit, use --connection RC", missing, f.sent)
	}
	for i := range f.queues {
		var err error
		if f.op == Atomic {
			err = f.verifyAtomics(i, n)
		} else if f.target.here() {
			err = f.compare(i, f.queues[i].sent-n, f.queues[i].sent)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// compare compares messages first to end-1 of a queue with their patterns.
func (f *flow) compare(queue int, first, end int64) error {
	for m := first; m < end; m++ {
		b, err := f.target.load(queue, m)
		if err != nil {
			return err
		}
		if off, want, ok := checkPattern(b, seed(f.index, queue, m)); !ok {
			return f.mismatch(fmt.Sprintf("byte %d", off), queue, m, uint64(b[off]), uint64(want))
		}
	}
	return nil
}

// compareRequested compares messages first to end-1 from the remote side, at its request.
func (f *flow) compareRequested(first, end int64) error {
	if f.op == Atomic {
		return f.compareCounter(f.target.message(0, 0), 0, end, uint64(end))
	}
	if err := f.compare(0, first, end); err != nil {
		return fmt.Errorf("at the other end: %w", err)
	}
	return nil
}

// verifyAtomics checks the responses to the last n messages, and then the counter. Each request
// must have added one, in order, exactly once.
func (f *flow) verifyAtomics(queue int, n int64) error {
	q := &f.queues[queue]
	for i := range n {
		m := q.sent - n + i
		answer, err := f.source.load(queue, m)
		if err == nil {
			err = f.compareCounter(answer, queue, m, q.counter+uint64(i))
		}
		if err != nil {
			return err
		}
	}
	if !f.target.here() {
		return nil
	}
	return f.compareCounter(f.target.message(queue, 0), queue, q.sent, q.counter+uint64(n))
}

// compareCounter compares the value that the atomic counter had before a message.
func (f *flow) compareCounter(place []byte, queue int, message int64, want uint64) error {
	if got := binary.NativeEndian.Uint64(place); got != want {
		return f.mismatch("the counter", queue, message, got, want)
	}
	return nil
}

// rolling reports whether messages are checked without pausing the transfer. A chain then gets its
// patterns right before it is posted and is compared on completion, while others are in flight.
func (f *flow) rolling() bool { return f.cfg.Live.On && f.target.here() && f.source.here() }

// renew fills the next n messages of a queue with fresh patterns. It reports false if their slots
// still hold unverified messages.
func (f *flow) renew(queue, n int) (bool, error) {
	q := &f.queues[queue]
	if q.sent+int64(n)-q.checked > int64(f.depth()) {
		return false, nil
	}
	start := f.now()
	err := f.fill(queue, q.sent, q.sent+int64(n))
	now := f.now()
	f.patterns += now - start
	for m := q.sent; f.posted != nil && m < q.sent+int64(n); m++ {
		f.posted[f.slot(queue, m)] = now
	}
	return err == nil, err
}

// compareNext compares the next n completed messages of a queue.
func (f *flow) compareNext(queue int, n int64) error {
	q := &f.queues[queue]
	start := f.now()
	err := f.compare(queue, q.checked, q.checked+n)
	for m := q.checked; f.posted != nil && m < q.checked+n; m++ {
		if f.times.add(start - f.posted[f.slot(queue, m)]) {
			f.times.flush()
		}
	}
	q.checked += n
	f.patterns += f.now() - start
	return err
}

// verifyAgain compares all slots once more at the end, to detect writes after completion. The flow
// must be idle.
func (f *flow) verifyAgain() error { return f.verify(min(f.queues[0].sent, int64(f.slots))) }

// slot is the index of a message in flow.posted.
func (f *flow) slot(queue int, message int64) int {
	return queue*f.depth() + int(message%int64(f.depth()))
}

// timed starts recording message times of rolling checks, for SizeRun.recent.
func (r *SizeRun) timed() {
	s := newSamples(1)
	r.recent = s.recent
	for _, f := range r.flows {
		if f.rolling() {
			f.posted, f.times = make([]time.Duration, len(f.queues)*f.depth()), s
		}
	}
}

// patterns returns the time that rolling checks have spent on patterns.
func (r *SizeRun) patterns() (d time.Duration) {
	for _, f := range r.flows {
		d += f.patterns
	}
	return d
}
