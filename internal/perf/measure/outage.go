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
	busy     time.Duration // now without the time for patterns
	messages int64         // messages that came through until now
	down     bool          // the ports are down
	width    time.Duration // of a bucket
	due      time.Duration // when the bucket is full

	// buckets are the state at the start and at the end of each bucket.
	buckets []counts
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

// counts is what had come through at some time. The difference of two is a span.
type counts struct {
	at, busy time.Duration
	messages int64
	rails    []uint64 // bytes by rail
}

// newOutage prepares the loss of a rail.
func (r *SizeRun) newOutage(rep *Report) *outage {
	o := &outage{run: r, kill: &r.cfg.Kill, rep: rep, width: min(bucketLong, r.cfg.Duration/bucketsMin), events: []FailoverEvent{}}
	for _, h := range r.sides {
		if h.sideQPs != nil {
			o.ends = append(o.ends, h.sideQPs.(*virtualQPs)) // Config.Validate allows no other
		}
	}
	return o
}

// start begins the measurement.
func (o *outage) start() {
	o.run.begin()
	o.due = o.width
	o.buckets, o.phases = []counts{o.snap()}, []counts{o.snap()}
}

// setPort takes the ports of the rail up or down.
func (o *outage) setPort(up bool) {
	if o.down == up {
		o.kill.SetPort(o.kill.Rail, up)
		o.down = !up
	}
}

// act takes the rail down or up if it is time.
func (o *outage) act() {
	switch now := o.run.spent(o.run.Now()); {
	case o.killedAt == 0 && now >= o.kill.At && o.moved() && (o.loaded() || now >= o.kill.At+loadWithin):
		o.now, o.killedAt = now, now
		o.setPort(false)
		o.add(&FailoverEvent{End: o.killed(), Event: "port down", Rail: o.kill.Rail})
		o.phases = append(o.phases, o.snap())
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
	return o.messages-o.phases[len(o.phases)-1].messages >= int64(need)
}

// observe counts messages that came through since the last look, and takes notice of what has
// happened. busy is the time of the transfer so far without that for patterns.
func (o *outage) observe(now, busy time.Duration, messages int64) {
	o.now, o.busy = o.run.spent(now), busy
	o.messages += messages
	if o.takeEvents() {
		o.sample()
	}
	full := o.now >= o.due
	if full {
		o.buckets = append(o.buckets, o.snap())
		o.due = o.now - o.now%o.width + o.width
	}
	if o.backAt > 0 && o.recoveredAt == 0 && o.isRecovered(full) {
		o.recoveredAt = o.now
		o.phases = append(o.phases, o.snap())
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

// snap returns what has come through until now.
func (o *outage) snap() counts {
	o.sample()
	s := counts{at: o.now, busy: o.busy, messages: o.messages}
	if o.run.control != nil {
		s.rails = make([]uint64, len(o.run.own().rails))
		o.run.own().addRails(s.rails)
		return s
	}
	for i := range o.rep.PerRail {
		s.rails = append(s.rails, o.rep.PerRail[i].Bytes)
	}
	return s
}

// end ends the last bucket and the last phase. A short bucket is joined with the one before it,
// because a rate over very little time means nothing.
func (o *outage) end() {
	s := o.snap()
	o.phases = append(o.phases, s)
	if n := len(o.buckets); n > 1 && s.at-o.buckets[n-1].at < o.width/2 {
		o.buckets = o.buckets[:n-1]
	}
	o.buckets = append(o.buckets, s)
}

// spans turns snapshots into rates, for messages of the given size.
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

// report returns what happened, for messages of the given size.
func (o *outage) report(size int) *Failover {
	rep := &Failover{
		KillRail: o.kill.Rail, KilledAt: when(o.killedAt), BackAt: when(o.backAt), RecoveredAt: when(o.recoveredAt),
		Events: o.events, Timeline: spans(o.buckets, size), Phases: spans(o.phases, size),
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
