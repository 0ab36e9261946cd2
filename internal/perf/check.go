package perf

import (
	"encoding/binary"
	"fmt"
)

// prepare makes the next n messages of every queue recognisable. The flow must be idle,
// and n at most the depth.
func (f *flow) prepare(n int64) {
	for i := range f.queues {
		q := &f.queues[i]
		if f.op == Atomic {
			q.counter = binary.NativeEndian.Uint64(f.target.message(i, 0))
			continue
		}
		f.fill(i, q.sent, q.sent+n)
	}
}

// fill writes the patterns of the messages from first up to end of a queue to their places
// at the source.
func (f *flow) fill(queue int, first, end int64) {
	for m := first; m < end; m++ {
		fillPattern(f.source.message(queue, m), seed(f.index, queue, m))
		if f.op == WriteImm {
			f.queues[queue].request(m).Imm = uint32(m)
		}
	}
}

// verify compares the last n messages of every queue, which prepare had made. The flow
// must be idle.
func (f *flow) verify(n int64) error {
	if missing := f.sent - f.received; f.recvs > 0 && missing > 0 {
		return fmt.Errorf("--check: %d of %d messages were lost; UC and UD do not repeat them, use --connection RC", missing, f.sent)
	}
	for i := range f.queues {
		q := &f.queues[i]
		for m := q.sent - n; m < q.sent; m++ {
			if f.op == Atomic {
				if err := f.verifyAtomic(i, m, n); err != nil {
					return err
				}
				continue
			}
			if err := f.verifyMessage(i, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// verifyMessage compares what stands at the target with the pattern of message m.
func (f *flow) verifyMessage(queue int, m int64) error {
	b := f.target.message(queue, m)
	if off, want, ok := checkPattern(b, seed(f.index, queue, m)); !ok {
		return &MismatchError{Op: f.op, Size: f.size, Device: f.target.device, QP: queue, Message: m, Offset: off, Want: want, Got: b[off]}
	}
	return nil
}

// verifyAtomic checks the answer to message m, and after the last of a burst of n the
// counter: each request added one, in order, exactly once.
func (f *flow) verifyAtomic(queue int, m, n int64) error {
	q := &f.queues[queue]
	want := q.counter + uint64(m-(q.sent-n))
	if got := binary.NativeEndian.Uint64(f.source.message(queue, m)); got != want {
		return &AtomicMismatchError{Device: f.target.device, QP: queue, Message: m, Want: want, Got: got}
	}
	if m < q.sent-1 {
		return nil
	}
	if got := binary.NativeEndian.Uint64(f.target.message(queue, 0)); got != want+1 {
		return &AtomicMismatchError{Device: f.target.device, QP: queue, Message: m + 1, Want: want + 1, Got: got}
	}
	return nil
}
