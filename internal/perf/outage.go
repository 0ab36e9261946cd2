package perf

import (
	"time"

	"ibverbx"
)

const (
	// A timeline has a span for every bucketLong, or bucketsMin of them if the row is
	// shorter than that.
	bucketLong = 100 * time.Millisecond
	bucketsMin = 20
	// laneInService is ibverbx.LaneStats.State of a lane that carries data.
	laneInService = "up"
)

var endNames = [...]string{"initiator", "target"}

// Phases of an outage.
const (
	phaseBefore = iota
	phaseDuring
	phaseAfter
	phaseCount
)

// outage is the loss of a rail as it goes on: what was done, what happened, and what came
// through meanwhile. All its times are since start.
type outage struct {
	row  *row
	kill *Kill
	ends [2]*virtualEnd
	rep  *Report // PerRail and PerLane are kept up to date

	now     time.Duration // as of the last look
	busy    time.Duration // of it, without the time for patterns
	down    bool          // the ports are
	phase   int
	phases  [phaseCount]span
	bucket  span
	width   time.Duration // of a bucket
	due     time.Duration // when the bucket is full
	buckets []span

	killedAt, backAt, recoveredAt time.Duration
	// recovered is when each end said so, 0 if it has not since a lane was last lost.
	recovered [2]time.Duration
	taken     [64]ibverbx.Event
	events    []FailoverEvent
}

// span is a stretch of time being counted.
type span struct {
	from, to time.Duration
	busy     time.Duration
	messages int64
	rails    []uint64 // bytes by rail when it began; when it has ended, since then
}

// newOutage prepares the loss of a rail.
func (r *row) newOutage(rep *Report) *outage {
	o := &outage{row: r, kill: &r.cfg.Kill, rep: rep, width: min(bucketLong, r.cfg.Duration/bucketsMin)}
	for i, h := range r.halves {
		o.ends[i] = h.end.(*virtualEnd) // Config.validate allows no other
	}
	return o
}

// start begins the measurement.
func (o *outage) start() {
	o.row.begin()
	o.bucket, o.due = o.open(), o.width
	o.phases[phaseBefore] = o.open()
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
	switch now := o.row.spent(o.row.now()); {
	case o.phase == phaseBefore && now >= o.kill.At:
		o.now, o.killedAt = now, now
		o.setPort(false)
		o.add(&FailoverEvent{End: "both", Event: "port down", Rail: o.kill.Rail})
		o.turn(phaseDuring)
	case o.down && now >= o.killedAt+o.kill.Back:
		o.now, o.backAt = now, now
		o.setPort(true)
		o.add(&FailoverEvent{End: "both", Event: "port up", Rail: o.kill.Rail})
	}
}

// observe counts messages that came through since the last look, and takes notice of what has
// happened. busy is the time of the transfer so far without that for patterns.
func (o *outage) observe(now, busy time.Duration, messages int64) {
	o.now = o.row.spent(now)
	for _, s := range []*span{&o.bucket, &o.phases[o.phase]} {
		s.busy += busy - o.busy
		s.messages += messages
	}
	o.busy = busy
	if o.takeEvents() {
		o.sample()
	}
	full := o.now >= o.due
	if full {
		o.sample()
		o.buckets = append(o.buckets, o.closed(o.bucket))
		o.bucket = o.open()
		o.due = o.now - o.now%o.width + o.width
	}
	if o.phase == phaseDuring && o.backAt > 0 && o.isRecovered(full) {
		o.recoveredAt = o.now
		o.turn(phaseAfter)
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
	ev := &FailoverEvent{End: endNames[end], Event: e.Kind.String(), Rail: e.Rail}
	if e.Err != nil {
		ev.Cause = e.Err.Error()
	}
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

// add notes an event as of now.
func (o *outage) add(e *FailoverEvent) {
	e.At = seconds(o.now)
	o.events = append(o.events, *e)
}

// isRecovered reports whether all lanes are in service again at both ends. With very many
// lanes events are lost; then their state says so, which is looked at now and then.
func (o *outage) isRecovered(look bool) bool {
	if o.recovered[0] > 0 && o.recovered[1] > 0 {
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

// over reports whether the row has lasted long enough: as long as was asked for, and until
// some time after the rail is back. A rail that does not come back is an error.
func (o *outage) over() (bool, error) {
	d := o.row.cfg.Duration
	if o.phase == phaseAfter {
		return o.now >= max(d, o.recoveredAt+min(d/10, afterMin)), nil
	}
	if o.backAt > 0 && o.now > max(d, o.backAt)+backWithin {
		return false, o.lateError()
	}
	return false, nil
}

// sample brings what lanes and rails carried up to date.
func (o *outage) sample() {
	for side, h := range o.row.halves {
		o.rep.add(side, h.carried())
	}
}

// turn begins the next phase.
func (o *outage) turn(phase int) {
	o.sample()
	o.phases[o.phase] = o.closed(o.phases[o.phase])
	o.phase = phase
	o.phases[phase] = o.open()
}

// open begins a span, right behind a sample.
func (o *outage) open() span {
	s := span{from: o.now, rails: make([]uint64, len(o.rep.PerRail))}
	for i := range s.rails {
		s.rails[i] = o.rep.PerRail[i].Bytes
	}
	return s
}

// closed ends a span, right behind a sample.
func (o *outage) closed(s span) span {
	s.to = o.now
	for i := range s.rails {
		s.rails[i] = o.rep.PerRail[i].Bytes - s.rails[i]
	}
	return s
}

// end says that all is complete, or never will be. A bucket that is hardly begun belongs to
// the one before it: a rate over next to no time means nothing.
func (o *outage) end() {
	o.sample()
	o.phases[o.phase] = o.closed(o.phases[o.phase])
	last := o.closed(o.bucket)
	n := len(o.buckets)
	if n == 0 || last.to-last.from >= o.width/2 {
		o.buckets = append(o.buckets, last)
		return
	}
	b := &o.buckets[n-1]
	b.to = last.to
	b.busy += last.busy
	b.messages += last.messages
	for i := range b.rails {
		b.rails[i] += last.rails[i]
	}
}
