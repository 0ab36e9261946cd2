package measure

import (
	"fmt"
	"strings"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// backWithin is how long lanes may take to come back when their ports are up and only they keep
// the row from ending. The engine tries at least every three seconds, and a try may take half a
// second.
const backWithin = 10 * time.Second

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

const (
	defaultKillAt   = time.Second
	defaultKillBack = time.Second
	// killSize is the message size if none was asked for: large enough to be cut.
	killSize = 1 << 20
	// afterMin is how long a row goes on at least after the rail is back, if no Duration was
	// asked for.
	afterMin = 200 * time.Millisecond
	// phaseMessages and phaseBytes are what must come through before the loss, during it and after the
	// return: the less of the two. A process that had no processor for a while has moved nothing, and a
	// rate over that time says nothing about the rails.
	phaseMessages = 256
	phaseBytes    = 64 << 20
)

// Kill makes the test lose a rail under load and get it back: the ports of both NICs of the rail
// go down and, later, up. Between processes only the port of the client does. It needs a VirtualQP with lanes on several rails, and implies Check.
// There is one row.
type Kill struct {
	// On means that a rail is to be lost. Otherwise all else must be zero.
	On bool
	// Rail is the rail.
	Rail int
	// At is when it is lost, after the start of the measurement, or when there was enough traffic before.
	// If zero, 1 s.
	At time.Duration
	// Back is how long it is lost, or until there was enough traffic meanwhile. If zero, 1 s. If Config.Duration is zero the row lasts as
	// long after the return as before the loss.
	Back time.Duration
	// SetPort takes the ports of both NICs of a rail down or up, in the goroutine that runs the test. If nil, the test calls
	// SetPort of software NICs.
	SetPort func(rail int, up bool)
}

// Live makes the test one long transfer that people watch. Lost lanes are rebuilt, and messages are compared while others
// are in flight. Kill implies it.
type Live struct {
	// On enables it. Otherwise all else must be zero.
	On bool
	// Patience limits the time without any completion. Zero means 10 s. It is also ibverbx.Config.Deadline.
	Patience time.Duration
	// Idle is the sleep after a round without completions. Zero means none.
	Idle time.Duration
}

// withDefaults fills in what a Config with a Kill implies.
func (k *Kill) withDefaults(c *Config) {
	if k.At == 0 {
		k.At = defaultKillAt
	}
	if k.Back == 0 {
		k.Back = defaultKillBack
	}
	if c.Iterations == 0 && c.Duration == 0 {
		c.Duration = k.At + k.Back + max(k.At, afterMin)
	}
	c.Check, c.Live.On = true, true
}

// control sets SetPort, unless it is set, for the NICs of the ends in this process. It refuses NICs whose ports this program
// does not control.
func (k *Kill) control(ends ...[]ibverbx.RailConfig) error {
	if !k.On || k.SetPort != nil {
		return nil
	}
	var nics []interface{ SetPort(up bool) }
	for _, rails := range ends {
		device := rails[k.Rail].Context.Device()
		if wrapped, ok := device.(interface{ Unwrap() verbs.Device }); ok {
			device = wrapped.Unwrap()
		}
		nic, ok := device.(interface{ SetPort(up bool) })
		if !ok {
			return Refuse("kill-rail", k.Rail, "this program cannot take the ports of real NICs down",
				"use --provider softnic, or leave it out and pull a cable: the test goes on, and --interval shows it")
		}
		nics = append(nics, nic)
	}
	k.SetPort = func(_ int, up bool) {
		for _, nic := range nics {
			nic.SetPort(up)
		}
	}
	return nil
}
