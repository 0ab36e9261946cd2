package measure

import (
	"fmt"
	"strings"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// backWithin bounds the recovery of lanes after their ports are up, once the row is otherwise
// complete. The engine retries at least every three seconds, and a retry may take half a second.
const backWithin = 10 * time.Second

// Failover is the result of a test with Config.Kill. Times are in seconds since the start of the
// measurement.
type Failover struct {
	// KillRail is the rail taken down.
	KillRail int `json:"kill_rail"`
	// KilledAt is the time the ports went down, nil if they did not.
	KilledAt *float64 `json:"killed_at"`
	// BackAt is the time the ports were up again, nil if they were not.
	BackAt *float64 `json:"back_at"`
	// RecoveredAt is the time all lanes were in service again at both sides, nil if they were not.
	RecoveredAt *float64 `json:"recovered_at"`
	// LanesDown counts the lanes that went out of service.
	LanesDown int `json:"lanes_down"`
	// Replayed counts the physical requests that other lanes took over, at both sides.
	Replayed uint64 `json:"replayed"`
	// Before is the rate until the loss.
	Before float64 `json:"before_bytes_per_second"`
	// During is the rate from the loss until all lanes were in service again.
	During float64 `json:"during_bytes_per_second"`
	// After is the rate after recovery.
	After float64 `json:"after_bytes_per_second"`
	// Events are in chronological order.
	Events []FailoverEvent `json:"events"`
	// Timeline is the rate over time, in spans of Observer.Interval or, without one, of at most 100 ms.
	Timeline []Span `json:"timeline"`
	// Phases are the periods before, during and after the outage that the test reached.
	Phases []Span `json:"-"`
}

// FailoverEvent is an event on a rail or a lane.
type FailoverEvent struct {
	// At is the time in seconds.
	At float64 `json:"at"`
	// End is "initiator" or "target", or "both" for port changes within one process.
	End string `json:"end"`
	// Event is "port down" or "port up" for changes by the test, or the name of an
	// ibverbx.EventKind.
	Event string `json:"event"`
	// Rail is the affected rail, or the rail of the lane; -1 if it concerns no rail.
	Rail int `json:"rail"`
	// Lane is nil unless the event concerns one lane.
	Lane *int `json:"lane,omitempty"`
	// Cause is empty if unknown.
	Cause string `json:"cause,omitempty"`
}

// Span is the throughput of one time interval.
type Span struct {
	// From is its start in seconds.
	From float64 `json:"from"`
	// To is its end in seconds.
	To float64 `json:"to"`
	// BytesPerSecond is the rate of delivered messages.
	BytesPerSecond float64 `json:"bytes_per_second"`
	// PerRail is the rate of bytes accepted by the NICs of each rail, in bytes per second. Bytes in
	// flight on a lost rail count there, and again on the rail that replayed them.
	PerRail []float64 `json:"per_rail"`
}

// lateError names the lanes that have not recovered.
func (o *outage) lateError() error {
	var late []string
	for i, e := range o.sides {
		for _, l := range e.stats().Lanes {
			if l.State != laneInService {
				late = append(late, fmt.Sprintf("lane %d of the %s is %s", l.Lane, sideNames[i], l.State))
			}
		}
	}
	return fmt.Errorf("rail %d is not back in service %v after its ports came up: %s",
		o.kill.Rail, (o.now - o.backAt).Round(time.Millisecond), strings.Join(late, ", "))
}

// seconds converts d to seconds for a report, rounded to microseconds.
func seconds(d time.Duration) float64 { return round(d.Seconds(), 6) }

const (
	defaultKillAt   = time.Second
	defaultKillBack = time.Second
	// killSize is the default message size: large enough to be fragmented.
	killSize = 1 << 20
	// afterMin is the minimum time a row continues after recovery, capped at a tenth of Duration.
	afterMin = 200 * time.Millisecond
	// phaseMessages and phaseBytes set the minimum traffic before, during and after the outage:
	// whichever is less. A descheduled process moves no data, so a rate measured without traffic
	// would not describe the rails.
	phaseMessages = 256
	phaseBytes    = 64 << 20
)

// Kill makes the test lose and recover a rail under load: the ports of both NICs of the rail go
// down and, later, up. Between processes only the client's port does. It needs a VirtualQP with
// lanes on several rails, and implies Check. The test has a single row.
type Kill struct {
	// On enables the outage. If it is false, all other fields must be zero.
	On bool
	// Rail is the rail.
	Rail int
	// At is the time of the loss after the start of the measurement. The loss is delayed until
	// enough traffic has been seen. If zero, 1 s.
	At time.Duration
	// Back is the duration of the outage. It is extended until enough traffic has been seen. If
	// zero, 1 s. If Config.Duration is zero, the row lasts as long after the outage as before it.
	Back time.Duration
	// SetPort takes the ports of both NICs of a rail down or up. It is called by the goroutine that
	// runs the test. If nil, the test calls SetPort of the software NICs.
	SetPort func(rail int, up bool)
}

// Live makes the test one long transfer that people watch. Lost lanes are rebuilt, and messages are compared while others
// are in flight. Kill implies it.
type Live struct {
	// On enables it. Otherwise all else must be zero.
	On bool
	// Patience limits the time without any completion. Zero means 10 s. It is also ibverbx.Config.Deadline.
	Patience time.Duration
	// Idle is the sleep after a round without completions. Zero disables it.
	Idle time.Duration
}

// withDefaults fills in the settings that Kill implies.
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

// control sets SetPort, if it is nil, for the NICs of the sides in this process. It fails if a NIC
// does not let this program control its port.
func (k *Kill) control(sides ...[]ibverbx.RailConfig) error {
	if !k.On || k.SetPort != nil {
		return nil
	}
	var nics []interface{ SetPort(up bool) }
	for _, rails := range sides {
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
