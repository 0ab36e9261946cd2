package measure

import (
	"slices"
	"time"

	"ibverbx"
)

const (
	// bucketLong is how much time a span of the timeline covers.
	bucketLong = 100 * time.Millisecond
	// bucketsMin is how many spans there are at least; those of short rows are shorter.
	bucketsMin = 20
	// loadWithin is how long the loss waits for a moment with something in flight. Over shared memory there is none.
	loadWithin = 100 * time.Millisecond
	// laneInService is ibverbx.LaneStats.State of a lane that carries data.
	laneInService = "up"
)

var endNames = [...]string{"initiator", "target"}

// outage is the loss of a rail as it goes on: what was done, what happened, and what came through
// meanwhile. All its times count from the start of the measurement.
type outage struct {
	run  *SizeRun
	kill *Kill
	ends []*virtualQPs // those in this process
	rep  *Report       // PerRail and PerLane are kept up to date, unless the other side is in another process

	now      time.Duration // time of the last look
	down     bool          // the ports are down
	timeline *series

	// phases are the state at the start, at the loss, at the recovery and at the end.
	phases []counts

	killedAt    time.Duration // when the ports went down, 0 before
	backAt      time.Duration // when the ports came up again, 0 before
	recoveredAt time.Duration // when all lanes were in service again, 0 before
	// recovered is when each end reported that, 0 if it has not since it last lost a lane.
	recovered [2]time.Duration
	taken     [64]ibverbx.Event
	events    []FailoverEvent
}

// newOutage prepares the loss of a rail.
func (r *SizeRun) newOutage(rep *Report) *outage {
	o := &outage{
		run: r, kill: &r.cfg.Kill, rep: rep, events: []FailoverEvent{},
		timeline: &series{run: r, every: min(bucketLong, r.cfg.Duration/bucketsMin)},
	}
	for _, h := range r.sides {
		if h.sideQPs != nil {
			o.ends = append(o.ends, h.sideQPs.(*virtualQPs)) // Config.Validate allows no other
		}
	}
	return o
}

// start begins the timeline and the first phase. A nil outage does nothing.
func (o *outage) start() {
	if o == nil {
		return
	}
	o.timeline.start()
	o.phases = o.timeline.samples[:1:1]
}

// setPort takes the ports of the rail up or down. A nil outage does nothing.
func (o *outage) setPort(up bool) {
	if o != nil && o.down == up {
		o.kill.SetPort(o.kill.Rail, up)
		o.down = !up
	}
}

// act takes the rail down or up if it is time.
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

// loaded reports whether something is in flight. Between two bursts of a check nothing is.
func (o *outage) loaded() bool {
	return slices.ContainsFunc(o.run.flows, func(f *flow) bool { return f.inFlight > 0 })
}

// killed is the end whose ports go down.
func (o *outage) killed() string {
	if len(o.ends) > 1 {
		return "both"
	}
	return endNames[0]
}

// moved reports whether enough came through in the present phase.
func (o *outage) moved() bool {
	need := min(phaseMessages, max(phaseBytes/max(o.run.plan.size, 1), 1))
	return o.run.done()-o.phases[len(o.phases)-1].messages >= int64(need)
}

// observe takes notice of what has happened since the last look.
func (o *outage) observe(now time.Duration) {
	o.now = o.run.spent(now)
	if o.takeEvents() {
		o.sample()
	}
	full := o.timeline.look(o.now)
	if o.backAt > 0 && o.recoveredAt == 0 && o.isRecovered(full) {
		o.recoveredAt = o.now
		o.phases = append(o.phases, o.run.counts())
	}
}

// takeEvents takes what the ends have noticed, and reports whether there was something.
func (o *outage) takeEvents() (some bool) {
	for i, e := range o.ends {
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

func (o *outage) take(end int, e *ibverbx.Event) {
	ev := &FailoverEvent{End: endNames[end], Event: e.Kind.String(), Rail: e.Rail, Cause: errorText(e.Err)}
	if lane := e.Lane; e.Kind == ibverbx.EventLaneDown || e.Kind == ibverbx.EventLaneUp {
		ev.Lane = &lane
	}
	switch e.Kind {
	case ibverbx.EventLaneDown:
		o.recovered[end] = 0
	case ibverbx.EventRecovered:
		o.recovered[end] = o.now
	default:
	}
	o.add(ev)
}

// add records an event at the time of the last look.
func (o *outage) add(e *FailoverEvent) {
	e.At = seconds(o.now)
	o.events = append(o.events, *e)
}

// isRecovered reports whether all lanes are in service again at both ends. With very many lanes
// some events are dropped. Then the state of the lanes decides, if look allows to ask for it.
func (o *outage) isRecovered(look bool) bool {
	if !slices.Contains(o.recovered[:len(o.ends)], 0) {
		return true
	}
	if !look {
		return false
	}
	deaths := uint64(0)
	for _, e := range o.ends {
		for _, l := range e.lanes() {
			deaths += l.Deaths
			if l.State != laneInService {
				return false
			}
		}
	}
	return deaths > 0
}

// lasted reports whether a transfer has lasted long enough. o is nil if no rail is to be lost.
func (o *outage) lasted(lasted, d time.Duration) (bool, error) {
	if o != nil {
		return o.over()
	}
	return d > 0 && lasted >= d, nil
}

// over reports whether the row has lasted long enough: for its duration, and some time after the
// rail is back. A rail that does not come back is an error.
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

// sample brings what lanes and rails carried up to date. Between processes that is done when the row ends, because the
// partner is told the sum.
func (o *outage) sample() {
	if o.run.control != nil {
		return
	}
	for side, h := range o.run.sides {
		o.rep.add(side, h.carried())
	}
}

// end ends the last span and the last phase, and reports what happened. A nil outage does nothing.
func (o *outage) end() {
	if o == nil {
		return
	}
	o.sample()
	o.timeline.end()
	o.phases = append(o.phases, o.timeline.samples[len(o.timeline.samples)-1])
	o.rep.Failover = o.report(o.run.plan.size)
}

// report returns what happened, for messages of the given size.
func (o *outage) report(size int) *Failover {
	rep := &Failover{
		KillRail: o.kill.Rail, KilledAt: when(o.killedAt), BackAt: when(o.backAt), RecoveredAt: when(o.recoveredAt),
		Events: o.events, Timeline: o.timeline.spans(), Phases: spans(o.phases, size),
	}
	for i, to := range []*float64{&rep.Before, &rep.During, &rep.After}[:len(rep.Phases)] {
		*to = rep.Phases[i].BytesPerSecond
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

// when is a time as a report has it, nil for one that did not come.
func when(at time.Duration) *float64 {
	if at == 0 {
		return nil
	}
	s := seconds(at)
	return &s
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
