package measure

import (
	"time"

	"ibverbx/verbs"
)

// counts is the number of messages and bytes delivered by a given time. The difference of two is a
// span.
type counts struct {
	at       time.Duration // since the start of the measurement, without copies
	busy     time.Duration // at without the time for patterns
	messages int64
	rails    []uint64 // bytes by rail
}

// counts returns the current counts.
func (r *SizeRun) counts() counts {
	at := r.spent(r.now())
	c := counts{at: at, busy: at - r.patterns(), messages: r.done(), rails: make([]uint64, len(r.own().rails))}
	for _, h := range r.sides {
		if h.here() && h.out != nil {
			for _, rail := range h.stats().Rails {
				c.rails[rail.Rail] += rail.Bytes
			}
		}
	}
	return c
}

// series samples the rate of a run at an interval. The run's goroutine drives it. A nil series is a
// no-op.
type series struct {
	run      *SizeRun
	every    time.Duration
	forget   bool          // keep only the last sample
	due      time.Duration // end of the current span
	samples  []counts      // at the start, and at the end of each span
	first    int64         // messages before the first span
	observer *Observer     // nil unless spans and snapshots are reported
}

// start begins the first span.
func (s *series) start() {
	if s != nil {
		first := s.run.counts()
		first.at, first.busy = 0, 0
		s.samples, s.due = []counts{first}, s.every
		s.first = first.messages
		s.present()
	}
}

// look closes the current span if it is due. at is the time since the start, without copies.
func (s *series) look(at time.Duration) {
	if s != nil && at >= s.due {
		s.take()
		s.due = at - at%s.every + s.every
	}
}

// end closes the last span. A short one is merged into the previous span, because a rate over a
// very short time is meaningless.
func (s *series) end() {
	if s == nil || len(s.samples) == 0 {
		return
	}
	if n := len(s.samples); n > 1 && s.run.spent(s.run.now())-s.samples[n-1].at < s.every/2 {
		s.samples[n-1] = s.run.counts()
		return
	}
	s.take()
}

// take closes the current span.
func (s *series) take() {
	s.samples = append(s.samples, s.run.counts())
	last := s.samples[len(s.samples)-2:]
	if s.observer != nil && s.observer.Span != nil {
		s.observer.Span(s.run.plan.size, spans(last, s.run.plan.size)[0])
	}
	if s.forget {
		s.samples = []counts{last[1]}
	}
	s.present()
}

// spans returns the rates of all spans.
func (s *series) spans() []Span {
	if s == nil || len(s.samples) == 0 {
		return nil
	}
	return spans(s.samples, s.run.plan.size)
}

// spans turns samples into rates, for messages of the given size.
func spans(list []counts, size int) []Span {
	out := []Span{}
	for i := range list[1:] {
		a, b := &list[i], &list[i+1]
		busy := b.busy - a.busy
		s := Span{From: seconds(a.at), To: seconds(b.at), BytesPerSecond: rate(float64(b.messages-a.messages)*float64(size), busy)}
		for rail := range a.rails {
			s.PerRail = append(s.PerRail, rate(float64(b.rails[rail]-a.rails[rail]), busy))
		}
		out = append(out, s)
	}
	return out
}

// present shows the state of the run.
func (s *series) present() {
	if s.observer == nil || s.observer.Snapshot == nil {
		return
	}
	r, last := s.run, &s.samples[len(s.samples)-1]
	shot := Snapshot{Size: r.plan.size, At: last.at, Messages: last.messages - s.first, Contexts: make([][]verbs.Context, len(r.own().rails))}
	if r.recent != nil {
		shot.P50, shot.P99 = r.recent()
	}
	for _, h := range r.sides {
		for i := range h.rails {
			if i < len(shot.Contexts) {
				shot.Contexts[i] = append(shot.Contexts[i], h.rails[i].Context)
			}
		}
	}
	shot.Lanes = r.own().stats().Lanes
	if other := r.sides[1-r.side]; other.here() && other.out != nil {
		for i, lane := range other.stats().Lanes {
			shot.Lanes[i].Bytes += lane.Bytes
		}
	}
	s.observer.Snapshot(shot)
}
