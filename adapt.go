package ibverbx

import "math"

// adapter chooses between RoundRobin and TwoChoices for AutoPolicy, by what the rails carry. The
// speeds that ports report do not tell that a rail is degraded, and software NICs report none.
//
// Round robin gives all lanes the same work. The lanes of a slow rail hold it longer, so they have
// more bytes outstanding on average (Little's law). The adapter takes a look from time to time: it
// sums up the outstanding bytes of each rail over time. Only a look reads the clock. If a rail is
// behind in a short look and again in a longer one, the policy becomes TwoChoices.
//
// TwoChoices gives rails of the same speed the same work. When it has done so for a while, the policy
// becomes RoundRobin again. So a rail that stood still only once does not count as slow, although
// round robin would never let it catch up.
//
// All periods are counted in rounds: in a round, as many fragments end as there are data lanes.
type adapter struct {
	due     uint64 // the value of picker.ended at which review has work; MaxUint64 if the policy is fixed
	until   uint64 // the value of picker.ended at which the look ends; valid while looking
	gap     int    // how many rounds pass from the last look to the next
	equal   int    // how many periods of TwoChoices in a row gave the rails the same work
	looking bool   // a look is under way
	long    bool   // the look is a longer one
	at      int64  // when the look last read what is outstanding
	rails   [MaxRails]railLoad
}

// railLoad is what the adapter measures of a rail.
type railLoad struct {
	lanes int    // the number of data lanes in service
	bytes uint64 // what these lanes had outstanding at adapter.at
	empty uint64 // VirtualCQ.idle of the rail at adapter.at
	// sum is the result: in a look the outstanding bytes summed up over time, in byte nanoseconds,
	// and under TwoChoices the bytes that the lanes have carried.
	sum float64
}

// Periods in rounds.
const (
	firstGap  = 4    // before the first look; every gap is twice the one before it
	lookGap   = 128  // the longest gap after looks that found no rail behind
	learnGap  = 1024 // the longest gap after TwoChoices found the rails equal
	shortLook = 2    // a look
	longLook  = 8    // a look after a short one that found a rail behind
	period    = 64   // between two comparisons under TwoChoices
)

const (
	behind = 1.5  // how much more a rail that is behind has outstanding than another, per lane
	same   = 1.25 // how much more a rail may carry than another that has the same work, per lane
	calm   = 2    // how many periods in a row with the same work end TwoChoices
)

// start makes the adapter watch a picker whose policy is RoundRobin.
func (a *adapter) start(p *picker) { a.gap, a.due = firstGap, p.rounds(firstGap) }

// stop keeps the policy as it is.
func (a *adapter) stop() { a.due = math.MaxUint64 }

// rounds is the value of ended in n rounds.
func (p *picker) rounds(n int) uint64 { return p.ended + uint64(n*len(p.lanes)) }

// review does what is due. empty counts the polls of each rail that left nothing in its CQ.
func (a *adapter) review(p *picker, empty *[MaxRails]uint64) {
	switch {
	case p.policy == TwoChoices:
		a.compare(p)
	case !a.looking:
		a.look(p, empty, shortLook)
	default:
		a.read(p, empty)
		if p.ended >= a.until {
			a.judge(p, empty)
		}
	}
}

// look begins a look of n rounds.
func (a *adapter) look(p *picker, empty *[MaxRails]uint64, n int) {
	a.until, a.looking, a.long = p.rounds(n), true, n == longLook
	p.time.run(true)
	p.time.tick()
	a.read(p, empty)
	a.clear()
}

// read adds the time since the last reading to the sums, and reads what is outstanding. A rail whose
// CQ was not found empty since then may have completed everything long ago, so the time does not
// count. Otherwise the rail that a poll looks at last would seem slow.
func (a *adapter) read(p *picker, empty *[MaxRails]uint64) {
	took := float64(p.time.now - a.at)
	a.at = p.time.now
	for i := range a.rails {
		r := &a.rails[i]
		if r.empty != empty[i] {
			r.sum += float64(r.bytes) * took
		}
		r.lanes, r.bytes, r.empty = 0, 0, empty[i]
	}
	for _, l := range p.lanes {
		if !l.out() {
			r := &a.rails[l.rail&(MaxRails-1)]
			r.lanes++
			r.bytes += l.bytes
		}
	}
	a.due = p.ended + uint64(len(p.lanes)/16) // many lanes are read less often
}

// judge ends a look.
func (a *adapter) judge(p *picker, empty *[MaxRails]uint64) {
	switch uneven := a.uneven(behind); {
	case uneven && a.long:
		a.learn(p)
	case uneven:
		a.look(p, empty, longLook)
	default:
		a.rest(p, lookGap)
	}
}

// uneven reports whether the sum of a rail is more than limit times that of another, per lane.
func (a *adapter) uneven(limit float64) bool {
	least, most := math.Inf(1), 0.0
	for i := range a.rails {
		if r := &a.rails[i]; r.lanes > 0 {
			perLane := r.sum / float64(r.lanes)
			least, most = min(least, perLane), max(most, perLane)
		}
	}
	return most > least*limit
}

// clear sets the sums to 0.
func (a *adapter) clear() {
	for i := range a.rails {
		a.rails[i].sum = 0
	}
}

// rest makes the policy RoundRobin until the next look. The gap grows up to a limit, so that the cost
// stays small.
func (a *adapter) rest(p *picker, limit int) {
	p.policy, a.looking = RoundRobin, false
	a.gap = max(a.gap, min(2*a.gap, limit))
	a.due = p.rounds(a.gap)
	p.time.run(false)
}

// learn makes the policy TwoChoices. It measures lanes from now on.
func (a *adapter) learn(p *picker) {
	p.policy, p.fastest = TwoChoices, 0
	for _, l := range p.lanes {
		l.speed = speed{since: p.time.now}
	}
	a.looking, a.equal = false, 0
	a.clear()
	a.due = p.rounds(period)
}

// compare ends a period of TwoChoices.
func (a *adapter) compare(p *picker) {
	for i := range a.rails {
		a.rails[i].lanes = 0
	}
	for _, l := range p.lanes {
		r := &a.rails[l.rail&(MaxRails-1)]
		if r.sum += float64(l.speed.carried); !l.out() {
			r.lanes++
		}
	}
	if a.equal++; a.uneven(same) {
		a.equal = 0
	}
	if a.equal == calm {
		a.rest(p, learnGap)
		return
	}
	a.clear()
	for _, l := range p.lanes { // the next period begins with what was carried before it
		a.rails[l.rail&(MaxRails-1)].sum -= float64(l.speed.carried)
	}
	a.due = p.rounds(period)
}
