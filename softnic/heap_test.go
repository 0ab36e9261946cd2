package softnic

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestTimerHeap compares the heap of timers with a sorted list, under sets, moves and
// drops.
func TestTimerHeap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		qps := make([]*qp, 12)
		for i := range qps {
			qps[i] = &qp{timerIdx: -1}
		}
		var h timerHeap
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
			if got := h.next(); got != want || len(h) != len(model) {
				t.Fatalf("next = %d with %d timers, want %d with %d", got, len(h), want, len(model))
			}
			for i, q := range h {
				if q.timerIdx != i || q.timerAt != model[q] {
					t.Fatalf("timer %d is out of step: index %d, at %d, want at %d", i, q.timerIdx, q.timerAt, model[q])
				}
			}
		}
	})
}

// TestFlightHeap: packets come out by time and, at one time, by order.
func TestFlightHeap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h flightHeap
		var want []*flight
		for i := range rapid.IntRange(0, 50).Draw(t, "packets") {
			f := &flight{at: rapid.Int64Range(0, 5).Draw(t, "at"), order: uint64(i)}
			h.push(f)
			want = append(want, f)
		}
		slices.SortStableFunc(want, func(a, b *flight) int { return int(a.at - b.at) })
		for i, f := range want {
			if got := h.pop(); got != f {
				t.Fatalf("packet %d is at %d order %d, want at %d order %d", i, got.at, got.order, f.at, f.order)
			}
		}
	})
}
