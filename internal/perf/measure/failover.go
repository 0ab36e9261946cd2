package measure

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// backWithin is how long lanes may take to come back when their ports are up and only they keep
// the row from ending. The engine tries at least every three seconds, and a try may take half a
// second.
const backWithin = 10 * time.Second

// copiesEach is how many copies are measured before the transfer, and after it. They are not
// measured in turns with it, because an outage has no pauses.
const copiesEach = 3

// Failover is what a test with Config.Kill saw. Times are in seconds since the start of the
// measurement.
type Failover struct {
	// KillRail is the rail that was lost.
	KillRail int `json:"kill_rail"`
	// KilledAt is when the ports went down, nil if they did not.
	KilledAt *float64 `json:"killed_at"`
	// BackAt is when the ports came up again, nil if they did not.
	BackAt *float64 `json:"back_at"`
	// RecoveredAt is when all lanes were in service again at both ends, nil if they were not.
	RecoveredAt *float64 `json:"recovered_at"`
	// LanesDown counts the lanes that went out of service.
	LanesDown int `json:"lanes_down"`
	// Replayed counts the physical requests that other lanes took over, at both ends.
	Replayed uint64 `json:"replayed"`
	// Before is the rate until the loss.
	Before float64 `json:"before_bytes_per_second"`
	// During is the rate from the loss until all lanes were in service again.
	During float64 `json:"during_bytes_per_second"`
	// After is the rate from then on.
	After float64 `json:"after_bytes_per_second"`
	// Events are in the order in which they happened.
	Events []FailoverEvent `json:"events"`
	// Timeline is the rate in steps of equal time.
	Timeline []Span `json:"timeline"`
	// Phases are the times before, during and after the outage, as far as the test got.
	Phases []Span `json:"-"`
}

// FailoverEvent is something that happened to a rail or a lane.
type FailoverEvent struct {
	// At is the time in seconds.
	At float64 `json:"at"`
	// End is "initiator" or "target". For what the test did itself in one process it is "both".
	End string `json:"end"`
	// Event is "port down" or "port up", which the test did, or the name of an
	// ibverbx.EventKind.
	Event string `json:"event"`
	// Rail is the rail that it happened to, or that the lane is on. It is -1 if no rail is to blame.
	Rail int `json:"rail"`
	// Lane is nil if it is not about one lane.
	Lane *int `json:"lane,omitempty"`
	// Cause is empty if there is none.
	Cause string `json:"cause,omitempty"`
}

// Span is what came through in a stretch of time.
type Span struct {
	// From is its start in seconds.
	From float64 `json:"from"`
	// To is its end in seconds.
	To float64 `json:"to"`
	// BytesPerSecond is the rate of messages that came through.
	BytesPerSecond float64 `json:"bytes_per_second"`
	// PerRail is what the NICs of each rail took, in bytes per second. Bytes that were in
	// flight on a lost rail count there, and again where they were replayed.
	PerRail []float64 `json:"per_rail"`
}

// long measures one long transfer, in which a rail may be lost and come back. Copies are measured before and after it.
func (r *SizeRun) long(mine *Outcome) error {
	if r.outage != nil {
		defer r.outage.setPort(true) // even after an error
	}
	if r.control != nil {
		t := tally{atLeast: remotePeakSpan}
		err := r.watched(func() error { return r.transfer(&t, endless, 0) })
		mine.take(&t, nil)
		return err
	}
	places := r.places()
	copies, err := r.copies(places, nil)
	if err != nil {
		return err
	}
	t := tally{atLeast: peakSpan}
	err = r.watched(func() error { return r.burst(&t, endless, r.cfg.Duration) })
	for _, f := range r.flows {
		if err == nil {
			err = f.verifyAgain()
		}
	}
	copies, failed := r.copies(places, copies)
	mine.take(&t, copies)
	return errors.Join(err, failed)
}

// watched runs a transfer, with the outage if there is one.
func (r *SizeRun) watched(transfer func() error) error {
	r.begin()
	if r.outage == nil {
		return transfer()
	}
	r.outage.start()
	err := transfer()
	r.outage.end()
	r.outage.rep.Failover = r.outage.report(r.plan.size)
	return err
}

// copies adds the rates of a few copies.
func (r *SizeRun) copies(p *places, rates []float64) ([]float64, error) {
	for range copiesEach {
		rate, err := r.copyRate(p, warmUp)
		if err != nil {
			return rates, err
		}
		rates = append(rates, rate)
	}
	return rates, nil
}

// lateError names the lanes that are not back in service.
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
