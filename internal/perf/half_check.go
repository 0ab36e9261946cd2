package perf

import (
	"encoding/binary"
	"fmt"
)

// prepare makes the next n messages of this end's direction recognisable, wherever they
// stand.
func (h *half) prepare(n int64) error {
	f := h.out
	switch f.op {
	case Atomic:
		f.queues[0].counter = uint64(f.queues[0].sent) // the memory was cleared, and each adds one
		return nil
	case Read:
		return h.ask(noteFill, f.queues[0].sent, n)
	default:
		f.fill(0, f.queues[0].sent, f.queues[0].sent+n)
		return nil
	}
}

// verify compares the last n messages of this end's direction, which are complete. If the
// partner has to do it it is asked to: answered waits for what it found.
func (h *half) verify(n int64) error {
	f := h.out
	q := &f.queues[0]
	for m := q.sent - n; m < q.sent; m++ {
		switch f.op {
		case Read:
			if err := f.verifyMessage(0, m); err != nil {
				return err
			}
		case Atomic:
			want := q.counter + uint64(m-(q.sent-n))
			if got := binary.NativeEndian.Uint64(f.source.message(0, m)); got != want {
				return &AtomicMismatchError{Device: "the partner", Message: m, Want: want, Got: got}
			}
		default:
		}
	}
	if f.op == Read || n == 0 {
		return nil
	}
	if err := h.answered(); err != nil {
		return err
	}
	if f.op == Atomic { // the counter must stand still
		return h.ask(noteCompare, q.sent-n, n)
	}
	return h.begin(noteCompare, q.sent-n, n)
}

// compare looks at messages that the partner has sent here.
func (h *half) compare(n *note) error {
	f := h.in
	if f.op == Atomic {
		want := uint64(n.First + n.N)
		if got := binary.NativeEndian.Uint64(f.target.message(0, 0)); got != want {
			return &AtomicMismatchError{Device: f.target.device, Message: n.First + n.N, Want: want, Got: got}
		}
		return nil
	}
	for m := n.First; m < n.First+n.N; m++ {
		if err := f.verifyMessage(0, m); err != nil {
			return fmt.Errorf("at the other end: %w", err)
		}
	}
	return nil
}
