package perf

import (
	"fmt"
	"strings"
	"time"
)

// backWithin is how long lanes may take to come back when their ports are up, and the row
// is over but for them: the engine tries every three seconds at the latest, and a try may
// take half a second.
const backWithin = 10 * time.Second

// copiesEach is how many copies are measured before the transfer, and behind it. They are
// not taken in turns with it: an outage has no pauses.
const copiesEach = 3

// Failover is what a test with Config.Kill saw. Times are in seconds since the start of the
// measurement, nil if it did not get so far.
type Failover struct {
	KillRail int `json:"kill_rail"`
	// KilledAt and BackAt are when the ports went down and up, RecoveredAt is when all
	// lanes were in service again at both ends.
	KilledAt    *float64 `json:"killed_at"`
	BackAt      *float64 `json:"back_at"`
	RecoveredAt *float64 `json:"recovered_at"`
	// LanesDown counts the lanes that went out of service, Replayed the physical requests
	// that other lanes took over from them, at both ends.
	LanesDown int    `json:"lanes_down"`
	Replayed  uint64 `json:"replayed"`
	// Before ends with the loss and After begins when all lanes are in service again.
	Before float64 `json:"before_bytes_per_second"`
	During float64 `json:"during_bytes_per_second"`
	After  float64 `json:"after_bytes_per_second"`

	Events []FailoverEvent `json:"events"`
	// Timeline is the rate in steps of equal time.
	Timeline []Span `json:"timeline"`
	// Phases are what was before, during and after, as far as it got.
	Phases []Span `json:"-"`
}

// FailoverEvent is something that happened to a rail or a lane.
type FailoverEvent struct {
	At float64 `json:"at"`
	// End is "initiator", "target" or, for what the test did itself, "both".
	End string `json:"end"`
	// Event is "port down" or "port up", which the test did, or the name of an
	// ibverbx.EventKind.
	Event string `json:"event"`
	Rail  int    `json:"rail"`
	// Lane is nil if it is not about one lane.
	Lane  *int   `json:"lane,omitempty"`
	Cause string `json:"cause,omitempty"`
}

// Span is what came through in a stretch of time.
type Span struct {
	From           float64 `json:"from"`
	To             float64 `json:"to"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	// PerRail is what the NICs of each rail took, in bytes per second. What was under way
	// on a rail that is lost counts there, and again where it was repeated.
	PerRail []float64 `json:"per_rail"`
}

// failover measures the row while a rail is lost and comes back.
func (r *row) failover(mine *outcome) error {
	o := r.outage
	defer o.setPort(true) // also after an error
	places := r.places()
	copies := r.copies(places, nil)
	t := tally{atLeast: peakSpan}
	o.start()
	err := r.burst(&t, endless, 0)
	for _, f := range r.flows {
		if err == nil {
			err = f.verifyAgain()
		}
	}
	o.end()
	o.rep.Failover = o.report(r.size)
	mine.take(&t, r.copies(places, copies))
	return err
}

// copies adds the rates of a few copies.
func (r *row) copies(places []place, rates []float64) []float64 {
	for range copiesEach {
		rates = append(rates, r.copyRate(places, warmUp))
	}
	return rates
}

// report says what happened, for messages of the given size.
func (o *outage) report(size int) *Failover {
	rep := &Failover{KillRail: o.kill.Rail, Events: o.events, Timeline: []Span{}}
	if rep.Events == nil {
		rep.Events = []FailoverEvent{}
	}
	for _, t := range []struct {
		at time.Duration
		to **float64
	}{{o.killedAt, &rep.KilledAt}, {o.backAt, &rep.BackAt}, {o.recoveredAt, &rep.RecoveredAt}} {
		if t.at > 0 {
			s := seconds(t.at)
			*t.to = &s
		}
	}
	for i := range o.buckets {
		rep.Timeline = append(rep.Timeline, o.buckets[i].report(size))
	}
	for i, to := range []*float64{&rep.Before, &rep.During, &rep.After}[:o.phase+1] {
		s := o.phases[i].report(size)
		*to = s.BytesPerSecond
		rep.Phases = append(rep.Phases, s)
	}
	for side, e := range o.ends {
		for _, l := range e.lanes() {
			rep.Replayed += l.Replayed
			if side == 0 && l.Deaths > 0 {
				rep.LanesDown++
			}
		}
	}
	return rep
}

// report turns a span that has ended into rates.
func (s *span) report(size int) Span {
	out := Span{From: seconds(s.from), To: seconds(s.to), BytesPerSecond: rate(float64(s.messages)*float64(size), s.busy), PerRail: []float64{}}
	for _, n := range s.rails {
		out.PerRail = append(out.PerRail, rate(float64(n), s.busy))
	}
	return out
}

// lateError says which lanes are not back in service.
func (o *outage) lateError() error {
	var late []string
	for i, e := range o.ends {
		for _, l := range e.lanes() {
			if l.State != laneInService {
				late = append(late, fmt.Sprintf("lane %d of the %s is %s", l.Lane, endNames[i], l.State))
			}
		}
	}
	return fmt.Errorf("rail %d is not back in service %v after its ports came up: %s",
		o.kill.Rail, (o.now - o.backAt).Round(time.Millisecond), strings.Join(late, ", "))
}

// seconds is a time as a report has it, exact to the microsecond.
func seconds(d time.Duration) float64 { return round(d.Seconds(), 6) }
