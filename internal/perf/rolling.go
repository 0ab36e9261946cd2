package perf

import "time"

// rolling is Check without pauses: the messages of a chain get their pattern right before
// they are posted and are compared as soon as they are complete, while others are in
// flight. The zero value is off.
type rolling struct {
	on bool
	// now is the clock by which spent, the time for patterns, is counted.
	now   func() time.Duration
	spent time.Duration
}

// renew makes the next n messages of a queue recognisable. It reports false if their places
// still hold messages that were not compared.
func (f *flow) renew(queue, n int) bool {
	q := &f.queues[queue]
	if q.sent+int64(n)-q.checked > int64(f.depth()) {
		return false
	}
	start := f.rolling.now()
	f.fill(queue, q.sent, q.sent+int64(n))
	f.rolling.spent += f.rolling.now() - start
	return true
}

// compare compares the next n messages of a queue, which are complete.
func (f *flow) compare(queue int, n int64) error {
	q := &f.queues[queue]
	start := f.rolling.now()
	for range n {
		if err := f.verifyMessage(queue, q.checked); err != nil {
			return err
		}
		q.checked++
	}
	f.rolling.spent += f.rolling.now() - start
	return nil
}

// verifyAgain compares what stands in the places once more, when all is complete: nothing
// may have touched a message behind its completion. The flow must be idle.
func (f *flow) verifyAgain() error {
	if len(f.queues) == 0 {
		return nil
	}
	return f.verify(min(f.queues[0].sent, int64(f.slots)))
}
