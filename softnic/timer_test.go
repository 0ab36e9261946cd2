package softnic

import (
	"testing"

	"pgregory.net/rapid"
)

// TestTimers compares the timers with a list, under sets, moves and drops.
func TestTimers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		qps := make([]*qp, 12)
		for i := range qps {
			qps[i] = &qp{}
			qps[i].timerIdx = -1
		}
		h := newTimers()
		model := make(map[*qp]int64)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			q := qps[rapid.IntRange(0, len(qps)-1).Draw(t, "qp")]
			if rapid.IntRange(0, 3).Draw(t, "drop") == 0 {
				h.drop(q)
				delete(model, q)
			} else {
				at := rapid.Int64Range(0, 20).Draw(t, "at")
				h.set(q, at)
				model[q] = at
			}
			want := int64(never)
			for _, at := range model {
				want = min(want, at)
			}
			if got := h.Next(); got != want || h.Len() != len(model) {
				t.Fatalf("next = %d with %d timers, want %d with %d", got, h.Len(), want, len(model))
			}
			for i, q := range qps {
				if at, set := model[q]; (q.timerIdx >= 0) != set || (set && q.timerAt != at) {
					t.Fatalf("QP %d: index %d, at %d, want at %d, in the heap %v", i, q.timerIdx, q.timerAt, at, set)
				}
			}
		}
	})
}
