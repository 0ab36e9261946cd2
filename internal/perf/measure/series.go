package measure

import (
	"time"

	"ibverbx/verbs"
)

// series takes the rate of a row over time. The goroutine of the row drives it. A nil series takes nothing.
type series struct {
	run   *SizeRun
	every time.Duration
	due   time.Duration // when the present span ends
	last  counts        // the start of the present span
	first int64         // messages before the first span
	spans []Span
	tell  func(size int, s Span) // called with each span, may be nil
	show  func(Snapshot)         // Observer.Snapshot
}

// start begins the first span.
func (s *series) start() {
	if s != nil {
		s.last, s.due = s.snap(), s.every
		s.last.at, s.last.busy = 0, 0
		s.first = s.last.messages
		s.present()
	}
}

// look ends the present span if it is time. at is the time since the start, without copies.
func (s *series) look(at time.Duration) {
	if s != nil && at >= s.due {
		s.take()
		s.due = at - at%s.every + s.every
	}
}

// end ends the last span, unless it is so short that a rate means nothing.
func (s *series) end() {
	if s != nil && (len(s.spans) == 0 || s.run.spent(s.run.Now())-s.last.at >= s.every/2) {
		s.take()
	}
}

func (s *series) take() {
	now := s.snap()
	span := spans([]counts{s.last, now}, s.run.plan.size)[0]
	s.spans, s.last = append(s.spans, span), now
	if s.tell != nil {
		s.tell(s.run.plan.size, span)
	}
	s.present()
}

// present shows the state of the row.
func (s *series) present() {
	if s.show == nil {
		return
	}
	r := s.run
	l := Snapshot{Size: r.plan.size, At: s.last.at, Messages: s.last.messages - s.first, Contexts: make([][]verbs.Context, len(r.own().rails))}
	if r.recent != nil {
		l.P50, l.P99 = r.recent()
	}
	for _, h := range r.sides {
		for i := range h.rails {
			if i < len(l.Contexts) {
				l.Contexts[i] = append(l.Contexts[i], h.rails[i].Context)
			}
		}
	}
	l.Lanes = r.own().lanes()
	if other := r.sides[1-r.side]; other.sideQPs != nil && other.out != nil {
		for i, lane := range other.lanes() {
			l.Lanes[i].Bytes += lane.Bytes
		}
	}
	s.show(l)
}

// snap returns what has come through until now.
func (s *series) snap() counts {
	r := s.run
	at := r.spent(r.Now())
	shot := counts{at: at, busy: at, messages: r.done(), rails: make([]uint64, len(r.own().rails))}
	for _, h := range r.sides {
		if h.sideQPs != nil && h.out != nil {
			h.addRails(shot.rails)
		}
	}
	return shot
}

// addRails adds what each rail of the side has carried.
func (h *side) addRails(rails []uint64) {
	if v, ok := h.sideQPs.(*virtualQPs); ok {
		for _, rail := range v.qp.Stats().Rails {
			rails[rail.Rail] += rail.Bytes
		}
		return
	}
	for _, l := range h.lanes() {
		rails[l.Rail] += l.Bytes
	}
}
