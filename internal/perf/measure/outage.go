package measure

import (
	"slices"
	"time"

	"ibverbx"
)

const (
	// bucketLong is the maximum length of a timeline span if Observer.Interval is zero.
	bucketLong = 100 * time.Millisecond
	// bucketsMin is the minimum number of such spans; short rows use shorter spans.
	bucketsMin = 20
	// loadWithin bounds how long the outage is delayed to catch messages in flight. Over shared
	// memory none are ever seen.
	loadWithin = 100 * time.Millisecond
	// laneInService is ibverbx.LaneStats.State of a lane that carries data.
	laneInService = "up"
)

var sideNames = [...]string{"initiator", "target"}

// outage runs the loss of a rail and records its events and the traffic meanwhile. All its times
// count from the start of the measurement.
type outage struct {
	run   *SizeRun
	kill  *Kill
	sides []*side // in this process; their QPs are VirtualQPs
	rep   *Report // gets the Failover

	now  time.Duration // time of the last observe
	down bool          // the ports are down

	// phases holds the counts at the start, at the loss, at the recovery and at the end.
	phases []counts

	killedAt    time.Duration // when the ports went down, 0 before
	backAt      time.Duration // when the ports were up again, 0 before
	recoveredAt time.Duration // when all lanes were in service again, 0 before
	taken       [64]ibverbx.Event
	events      []FailoverEvent
}

// newOutage prepares the loss of a rail.
func (r *SizeRun) newOutage(rep *Report) *outage {
	o := &outage{run: r, kill: &r.cfg.Kill, rep: rep, events: []FailoverEvent{}}
	for _, h := range r.sides {
		if h.here() {
			o.sides = append(o.sides, h)
		}
	}
	return o
}

// start begins the first phase. It is a no-op on nil.
func (o *outage) start() {
	if o != nil {
		o.phases = o.run.series.samples[:1:1]
	}
}

// setPort takes the ports of the rail up or down. It is a no-op on nil.
func (o *outage) setPort(up bool) {
	if o != nil && o.down == up {
		o.kill.SetPort(o.kill.Rail, up)
		o.down = !up
	}
}

// act takes the rail down or up when it is due.
func (o *outage) act() {
	switch now := o.run.spent(o.run.now()); {
	case o.killedAt == 0 && now >= o.kill.At && o.moved() && (o.loaded() || now >= o.kill.At+loadWithin):
		o.now, o.killedAt = now, now
		o.setPort(false)
		o.add(&FailoverEvent{End: o.killed(), Event: "port down", Rail: o.kill.Rail})
		o.phases = append(o.phases, o.run.counts())
	case o.down && now >= o.killedAt+o.kill.Back && o.moved():
		o.now, o.backAt = now, now
		o.setPort(true)
		o.add(&FailoverEvent{End: o.killed(), Event: "port up", Rail: o.kill.Rail})
	}
}

// loaded reports whether messages are in flight. Between two bursts of a check none are.
func (o *outage) loaded() bool {
	return slices.ContainsFunc(o.run.flows, func(f *flow) bool { return f.inFlight > 0 })
}

// killed returns the side whose ports go down.
func (o *outage) killed() string {
	if len(o.sides) > 1 {
		return "both"
	}
	return sideNames[0]
}

// moved reports whether the current phase has delivered enough messages.
func (o *outage) moved() bool {
	need := min(phaseMessages, max(phaseBytes/max(o.run.plan.size, 1), 1))
	return o.run.done()-o.phases[len(o.phases)-1].messages >= int64(need)
}

// observe processes the events since the last call. Every change of a lane has one, although some are dropped if very
// many lanes change at once.
func (o *outage) observe(now time.Duration) {
	o.now = o.run.spent(now)
	if o.takeEvents() && o.backAt > 0 && o.recoveredAt == 0 && o.isRecovered() {
		o.recoveredAt = o.now
		o.phases = append(o.phases, o.run.counts())
	}
}

// takeEvents drains the event queues of the sides and reports whether any event was found.
func (o *outage) takeEvents() (some bool) {
	for i, e := range o.sides {
		for {
			n := e.cq.Events(o.taken[:])
			if n == 0 {
				break
			}
			some = true
			for k := range o.taken[:n] {
				o.take(i, &o.taken[k])
			}
		}
	}
	return some
}

func (o *outage) take(side int, e *ibverbx.Event) {
	ev := &FailoverEvent{End: sideNames[side], Event: e.Kind.String(), Rail: e.Rail, Cause: brief(e.Err)}
	if lane := e.Lane; e.Kind == ibverbx.EventLaneDown || e.Kind == ibverbx.EventLaneUp {
		ev.Lane = &lane
	}
	o.add(ev)
}

// add records an event at the time of the last observe.
func (o *outage) add(e *FailoverEvent) {
	e.At = seconds(o.now)
	o.events = append(o.events, *e)
}

// isRecovered reports whether every side has lost lanes, and has all of them in service again.
func (o *outage) isRecovered() bool {
	return !slices.ContainsFunc(o.sides, func(h *side) bool {
		s := h.stats()
		return s.Deaths == 0 || s.Out > 0
	})
}

// lasted reports whether a transfer has lasted long enough. o is nil unless an outage is planned.
func (o *outage) lasted(lasted, d time.Duration) (bool, error) {
	if o != nil {
		return o.over()
	}
	return d > 0 && lasted >= d, nil
}

// over reports whether the row has lasted long enough: for its duration, and some time after
// recovery. It returns an error if the lanes do not recover in time.
func (o *outage) over() (bool, error) {
	d := o.run.cfg.Duration
	if o.recoveredAt > 0 {
		return o.now >= max(d, o.recoveredAt+min(d/10, afterMin)) && o.moved(), nil
	}
	if o.backAt > 0 && o.now > max(d, o.backAt)+backWithin {
		return false, o.lateError()
	}
	return false, nil
}

// end closes the last span and the last phase, and stores the report. It is a no-op on nil.
func (o *outage) end() {
	if o == nil {
		return
	}
	line, size := o.run.series, o.run.plan.size
	line.end()
	o.phases = append(o.phases, line.samples[len(line.samples)-1])
	rep := &Failover{
		KillRail: o.kill.Rail, KilledAt: when(o.killedAt), BackAt: when(o.backAt), RecoveredAt: when(o.recoveredAt),
		Events: o.events, Timeline: line.spans(), Phases: spans(o.phases, size),
	}
	for i, to := range []*float64{&rep.Before, &rep.During, &rep.After}[:len(rep.Phases)] {
		*to = rep.Phases[i].BytesPerSecond
	}
	for side, h := range o.sides {
		s := h.stats()
		rep.Replayed += s.Replayed
		for i := range s.Lanes {
			if side == 0 && s.Lanes[i].Deaths > 0 {
				rep.LanesDown++
			}
		}
	}
	o.rep.Failover = rep
}

// when converts at to seconds for a report, or to nil if the event did not happen.
func when(at time.Duration) *float64 {
	if at == 0 {
		return nil
	}
	s := seconds(at)
	return &s
}
