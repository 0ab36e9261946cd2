package sim

import (
	"errors"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/softnic"
)

// errBroken is the permanent post error of a broken lane.
var errBroken = errors.New("sim: the device refuses the request")

// schedule adds the faults of the plan to the event queue.
func (w *world) schedule() {
	for i := range w.plan.Faults {
		f := &w.plan.Faults[i]
		w.healed = max(w.healed, int64(f.At+f.length()))
		if f.Kind.uses(silences) {
			w.outage += f.length()
		}
		w.eventQueue.add(int64(f.At), func() { w.inject(f) })
	}
	w.eventQueue.add(w.healed, nil)
}

// inject injects a fault.
func (w *world) inject(f *Fault) {
	w.report.Faults[f.Kind]++
	w.trace.fault(w.now, f)
	w.excuse(f)
	rail := f.Rail % len(w.links)
	link, from, to := w.links[rail], w.hosts[f.From%len(w.hosts)], w.hosts[f.To%len(w.hosts)]
	e := w.targetEnd(f)
	nic, other := from.nics[rail], to.nics[rail]
	over := w.now + int64(f.For)
	w.healed = max(w.healed, w.now+int64(f.length())) // time moves in steps
	w.eventQueue.add(w.healed, nil)
	switch f.Kind {
	case FaultCut:
		link.Cut(nic, other)
		link.Cut(other, nic)
		w.eventQueue.add(over, func() { link.Restore(nic, other); link.Restore(other, nic) })
	case FaultBlackHole:
		link.Cut(nic, other)
		w.eventQueue.add(over, func() { link.Restore(nic, other) })
	case FaultPort:
		nic.SetPort(false)
		w.eventQueue.add(over, func() { nic.SetPort(true) })
	case FaultFlap:
		for i := range f.Times {
			at := w.now + 2*int64(i)*int64(f.For)
			w.eventQueue.add(at, func() { nic.SetPort(false) })
			w.eventQueue.add(at+int64(f.For), func() { nic.SetPort(true) })
		}
	case FaultHold:
		link.Hold(nic, other)
		w.eventQueue.add(over, func() { link.Release(nic, other) })
	case FaultSlow:
		w.slow(rail, nic, other, over)
		w.slow(rail, other, nic, over)
	case FaultPathCut, FaultPathSlow:
		w.injectPath(f, rail, nic, other, over)
		w.injectPath(f, rail, other, nic, over)
	case FaultReset:
		nic.Reset()
	case FaultDead:
		nic.Fail()
		w.eventQueue.add(over, nic.Recover)
	case FaultCQ:
		if from.transports[rail] != nil {
			return // Its CQ is not the NIC's.
		}
		from.cqFailed = true
		if cq, err := from.cq.CQ(rail); err == nil {
			_ = nic.FailCQ(cq) // The CQ is open.
		}
	case FaultPause:
		from.paused = max(from.paused, over)
		w.eventQueue.add(over, nil)
	case FaultStarve:
		e.starved = max(e.starved, over)
		w.eventQueue.add(over, nil)
	case FaultBadKey:
		e.badKey = true
	case FaultCrash:
		w.crash(e, over, false)
	case FaultRestart:
		w.crash(e, over, w.plan.Failover)
	case FaultQP, FaultRefuse, FaultBroken:
		e.injectLane(f)
	default:
		w.injectControl(e, f, over)
	}
}

// targetEnd is the end named by a fault.
func (w *world) targetEnd(f *Fault) *end { return w.ends[(2*f.Connect+f.End)%(2*len(w.plan.Connects))] }

// injectLane applies a fault to one lane, now or when enough packets have been placed.
func (e *end) injectLane(f *Fault) {
	if f.Kind == FaultQP && f.After > 0 {
		e.w.watches = append(e.w.watches, &watch{fault: f, end: e})
		return
	}
	lanes := e.qp.Stats().Lanes
	if len(lanes) == 0 {
		return // The VirtualQP is closed.
	}
	e.hitLane(f, &lanes[f.Lane%len(lanes)])
}

// watch is a fault of a lane that waits for packets to be placed.
type watch struct {
	fault  *Fault
	end    *end
	placed int // number of placed WRITE packets of the connection
}

// countPlaced counts the WRITE packets that NICs have placed in this turn, and injects the lane faults that waited for them. It runs after
// the turn, because a NIC places packets under its lock, and on a wrapped rail package reliable may hold another.
func (w *world) countPlaced() {
	for i := 0; i < len(w.placed); i++ { // A fault may make NICs place more.
		for _, x := range w.watches {
			lane := x.end.laneOf(&w.placed[i])
			if lane < 0 {
				continue
			}
			if x.placed++; x.placed != x.fault.After {
				continue
			}
			if lanes := x.end.qp.Stats().Lanes; lane < len(lanes) { // A closed VirtualQP does not have lanes.
				x.end.hitLane(x.fault, &lanes[lane])
				w.wake()
			}
		}
	}
	w.placed = w.placed[:0]
}

// laneOf returns the lane whose QP, at either end, touched memory. It is -1 if the QP belongs to
// another connection.
func (e *end) laneOf(t *softnic.MemoryAccess) int {
	for _, side := range []*end{e, e.peer} {
		for _, l := range side.qp.Stats().Lanes {
			if side.host.nics[l.Rail] == t.NIC && slices.Contains(side.host.carriers(l.Rail, l.QPN), t.QPN) {
				return l.Lane
			}
		}
	}
	return -1
}

// hitLane applies a fault to a lane.
func (e *end) hitLane(f *Fault, l *ibverbx.LaneStats) {
	nic := e.host.nics[l.Rail]
	carriers := e.host.carriers(l.Rail, l.QPN)
	qpn := carriers[f.Lane%len(carriers)]
	var err error
	switch f.Kind {
	case FaultRefuse:
		e.refused = true
		err = nic.RefuseSend(qpn, f.After, nil)
	case FaultBroken:
		err = nic.RefuseSend(qpn, f.After, errBroken)
	default:
		err = nic.FailQP(qpn)
	}
	if err != nil {
		e.fail("world", "lane %d: %v", l.Lane, err)
	}
}

// slow makes one direction slow until over. A full queue still drains before RC's timer fires.
func (w *world) slow(rail int, from, to *softnic.NIC, over int64) {
	link := w.links[rail]
	change := func(more time.Duration) {
		imp, plan := link.Impairment(from, to), &w.plan.Rails[rail].Impairment
		// Another fault may have made it slow, too, and last longer.
		imp.Delay, imp.Rate = imp.Delay+more, plan.Rate
		if imp.Delay > plan.Delay && (imp.Rate == 0 || imp.Rate > slowRate) {
			imp.Rate = slowRate
		}
		_ = link.Impair(from, to, imp) // The impairment is valid.
	}
	change(slowDelay)
	w.eventQueue.add(over, func() { change(-slowDelay) })
}

// A slow direction or path has slowDelay more delay and at most slowRate bytes per second.
const (
	slowDelay = 300 * time.Microsecond
	slowRate  = 250e6
)

// activeFault is an injected fault.
type activeFault struct {
	fault *Fault
	over  int64 // virtual time of its end
}

// excuse records which ends may fail because of a fault.
func (w *world) excuse(f *Fault) {
	w.activeFaults = append(w.activeFaults, activeFault{fault: f, over: w.now + int64(f.length())})
	for _, e := range w.ends {
		e.excuseFor(f)
	}
}

// excuseFor records whether an end and its peer may fail because of a fault.
func (e *end) excuseFor(f *Fault) {
	w := e.w
	if !w.affects(f, e) {
		return
	}
	switch {
	case f.Kind == FaultBadKey:
		e.mayFailFor(0)
	case f.Kind == FaultCrash || f.Kind == FaultRestart:
		e.mayFailFor(0)
		e.anyCrashed, e.peer.anyCrashed = true, true
	case f.Kind == FaultCQ && e.onlyOn(f.Rail%len(w.links)):
		e.mayFailFor(1) // The CQ does not recover, and no other rail has a lane.
	case !w.plan.Failover && (f.fatal() || (f.Kind.uses(silences) && w.outage > survivable)):
		e.mayFailFor(1)
	}
}

// mayFailFor lets both ends of a connection fail, and adds to their reasons.
func (e *end) mayFailFor(reasons int) {
	for _, one := range []*end{e, e.peer} {
		one.mayFail = true
		one.reasons += reasons
	}
}

// onlyOn reports whether all data lanes are on one rail.
func (e *end) onlyOn(rail int) bool {
	for i := range e.conn.Lanes {
		if i%len(e.w.links) != rail {
			return false
		}
	}
	return true
}

// affects reports whether a fault affects an end or its peer.
func (w *world) affects(f *Fault, e *end) bool {
	uses := func(t targets) bool { return f.Kind.uses(t) }
	hosts := len(w.hosts)
	at := func(host int) bool { return e.host.index == host%hosts || e.peer.host.index == host%hosts }
	switch {
	case uses(atEnd):
		return w.targetEnd(f).index/2 == e.index/2
	case uses(atRoute):
		return at(f.From) && at(f.To) && e.usesPath(f)
	case uses(atPath):
		return at(f.From) && at(f.To)
	default:
		return at(f.From)
	}
}
