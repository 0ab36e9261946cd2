package ibverbx

import (
	"math"

	"ibverbx/internal/xorshift"
)

// picker chooses lanes. It owns the state of the policy.
type picker struct {
	policy Policy       // the policy in use, never AutoPolicy
	lanes  []*lane      // the data lanes, in the order of their indices
	clock  *cachedClock // the time of the current call
	pickState
	// random draws lanes for TwoChoices.
	random xorshift.Source
	// fastest is the highest rate of a lane in bytes per nanosecond. It decays, so that it follows
	// lanes that have become slower.
	fastest float64
	// runBytes is how many bytes of whole requests may share a lane.
	runBytes uint32

	ended uint64      // counts the ledger entries that have ended
	tuner policyTuner // changes policy for AutoPolicy
}

// pickState is whose turn it is. It is put back where a pick comes to nothing.
type pickState struct {
	cursor  int    // the index of the lane that round robin tries next
	runLane *lane  // the lane that whole requests share; valid while runLeft is not 0
	runLeft int    // how many more requests may share runLane
	runRoom uint32 // how many more bytes may share runLane
}

// begin sets the lanes and the policy.
func (p *picker) begin(lanes []*lane, policy Policy, rails *Rails) {
	p.lanes, p.policy = lanes, policy
	p.tuner.due = math.MaxUint64
	if policy == AutoPolicy {
		if p.policy = rails.policy(); p.policy == RoundRobin && rails.Len() > 1 {
			p.tuner.gap, p.tuner.due = firstGap, p.rounds(firstGap)
		}
	}
	p.clock.run(p.policy == TwoChoices)
}

// A request that is not cut gives its lane little work, but a doorbell and a completion cost as
// much as for a long one. Such requests, if they are handed over together, therefore share a lane
// as one chain, until they are runMax requests or runCuts of the smallest fragments long. That is
// 64 KiB, a microsecond of one lane's time at 400 Gb/s, or 4 MiB where lanes do not work in parallel
// (setup.minCut).
const (
	runMax  = 64
	runCuts = 4
)

// pick chooses the lane for the next n bytes. It returns nil if no lane has room. whole says that
// the bytes are a whole request.
func (p *picker) pick(n uint32, whole bool) *lane {
	if whole {
		if l := p.reuseLane(n); l != nil {
			return l
		}
	}
	l := p.choose(n)
	if p.policy == TwoChoices && l != nil && l.idle() {
		l.estimate.startBusy(p.clock.now)
	}
	if whole && n < p.runBytes {
		p.runLeft, p.runRoom, p.runLane = runMax-1, p.runBytes-n, l
		if l == nil {
			p.runLeft = 0
		}
	}
	return l
}

// reuseLane returns the lane that whole requests share if it takes one more, of n bytes. Otherwise it returns nil.
func (p *picker) reuseLane(n uint32) *lane {
	if p.runLeft == 0 || p.runRoom < n || !p.runLane.room() {
		return nil
	}
	p.runLeft--
	p.runRoom -= n
	return p.runLane
}

// extendRun returns how many of the next requests, which are whole, share l with the one that pick has just given to it.
func (p *picker) extendRun(l *lane, wrs []SendWR) (n int) {
	if p.runLane != l {
		return 0
	}
	wrs = wrs[:min(len(wrs), p.runLeft, int(l.capacity-l.load())-1)]
	room := p.runRoom
	for n < len(wrs) && wrs[n].SGE[0].Length <= room {
		room -= wrs[n].SGE[0].Length
		n++
	}
	p.runLeft, p.runRoom = p.runLeft-n, room
	return n
}

// choose applies the policy.
func (p *picker) choose(n uint32) *lane {
	switch p.policy {
	case TwoChoices:
		return p.twoChoices(n)
	case AutoPolicy, RoundRobin:
	}
	for range p.lanes {
		if l := p.next(); l.room() {
			return l
		}
	}
	return nil
}

// next returns the lane at the cursor and advances the cursor.
func (p *picker) next() *lane {
	l := p.lanes[p.cursor]
	if p.cursor++; p.cursor == len(p.lanes) {
		p.cursor = 0
	}
	return l
}

// twoChoices draws two lanes and takes the one that would finish n more bytes first. If the draws
// do not find two lanes with room, it looks at all lanes. It returns nil if none has room.
func (p *picker) twoChoices(n uint32) *lane {
	a, b := p.draw(), p.draw()
	if a == nil || b == nil || a == b {
		return p.earliest(n)
	}
	if p.eta(b, n) < p.eta(a, n) {
		return b
	}
	return a
}

// drawTries is how many lanes draw looks at.
const drawTries = 4

// draw returns a random lane with room, or nil if it has found none. A lane is drawn in proportion
// to the square root of its rate. Equal chances would pair two slow lanes too often where most
// lanes are slow. Chances in proportion to the rate itself would let equal lanes of one rail drift
// apart, because a lane that gets more of a wire measures more.
func (p *picker) draw() *lane {
	for range drawTries {
		x := p.random.Next()
		l := p.lanes[uint64(uint32(x))*uint64(len(p.lanes))>>32]
		u := float64(x>>32) * (1.0 / (1 << 32))
		if l.belowQuota() && u*u*p.fastest <= l.estimate.rateOr(p.fastest) {
			return l
		}
	}
	return nil
}

// belowQuota reports whether TwoChoices may give the lane more: the lane has room, and it has no more
// outstanding than it has carried so far. Data that waits on a slow lane may hold up everything
// behind it, so a lane without history gets little at first, and twice as much with every
// completion. If this limit holds a request back, a completion is due that continues it.
func (l *lane) belowQuota() bool { return l.room() && l.bytes < l.estimate.carried+initialQuota }

// initialQuota is how much a lane gets that has carried nothing yet.
const initialQuota = 64 << 10

// earliest returns the lane that would finish n more bytes first, or nil if none has room. It starts
// where round robin would, so that equal lanes are taken in turn.
func (p *picker) earliest(n uint32) (best *lane) {
	least := 0.0
	for range p.lanes {
		l := p.next()
		if !l.belowQuota() {
			continue
		}
		if t := p.eta(l, n); best == nil || t < least {
			best, least = l, t
		}
	}
	if best != nil {
		p.cursor = (int(best.index) + 1) % len(p.lanes)
	}
	return best
}

// idleHalfLife is the age, in multiples of the estimate itself, at which the estimate for an idle lane
// loses half of its weight. So a lane that was slow once is tried again.
const idleHalfLife = 16

// eta estimates how long a lane takes for n more bytes, in nanoseconds. A lane that has been silent
// for longer than that takes at least as long again. So a dead path gets no more data long before
// its NIC gives up.
func (p *picker) eta(l *lane, n uint32) float64 {
	v := &l.estimate
	rate := v.rateOr(max(p.fastest, 1))
	t := v.latency + float64(l.bytes+uint64(n))/rate
	age := float64(p.clock.now - v.since)
	if !l.idle() {
		return max(t, age)
	}
	return t * t / (t + age/idleHalfLife + 1)
}

// measure notes that a lane has completed bytes, after a tick.
func (p *picker) measure(l *lane, bytes uint64) {
	v := &l.estimate
	v.done += bytes
	v.carried += bytes
	took := p.clock.now - v.since
	if took <= 0 || v.done == 0 {
		return
	}
	if v.firstPending {
		v.addDelay(float64(took), float64(v.done))
	} else {
		v.bytes += float64(v.done) - v.bytes*rateShare
		v.time += float64(took) - v.time*rateShare
		v.rate = v.bytes / v.time
	}
	p.fastest = max(p.fastest*(1-rateShare/16), v.rate)
	v.since, v.done, v.firstPending = p.clock.now, 0, false
}

// rateEstimate is a lane's recent rate and latency. RC completes in order, so a lane is a queue with one
// server. While it is busy, the bytes that complete between two readings of the clock give the
// rate. The latency is what the first bytes after an idle time take beyond that.
type rateEstimate struct {
	bytes        float64 // a decaying sum of the bytes that the rate is measured by
	time         float64 // the decaying sum of nanoseconds in which bytes were carried
	rate         float64 // bytes / time; 0 if it was not measured
	latency      float64 // a decaying average, in nanoseconds; valid if known
	since        int64   // when the lane last completed something, or got work after being idle
	done         uint64  // the number of bytes completed after since
	carried      uint64  // the number of bytes that the lane has completed in all
	firstPending bool    // the lane got work after being idle, and none of it has completed
	known        bool    // the latency was measured
}

// The weight of a new sample against all samples before it.
const (
	rateShare    = 1.0 / 16
	latencyShare = 1.0 / 8
)

// rateOr is the rate by which a lane is drawn. A lane that was never measured counts as fast as
// the fastest, so that it is tried.
func (v *rateEstimate) rateOr(fastest float64) float64 {
	if v.rate == 0 {
		return fastest
	}
	return v.rate
}

// startBusy notes that an idle lane gets work. Earlier measurements lose weight with their age.
func (v *rateEstimate) startBusy(now int64) {
	if v.time > 0 {
		f := v.time / (v.time + float64(now-v.since))
		v.bytes *= f
		v.time *= f
	}
	v.since, v.done, v.firstPending = now, 0, true
}

// addDelay takes the time of the first bytes after an idle time. If the rate is not known, or the
// bytes came sooner than it allows, the whole time counts for both rate and latency.
func (v *rateEstimate) addDelay(took, bytes float64) {
	if took*v.rate > bytes {
		took -= bytes / v.rate
	} else {
		v.bytes, v.time = bytes/4, took/4 // a small weight: the next samples count more
		v.rate = v.bytes / v.time
	}
	if !v.known {
		v.known, v.latency = true, took
		return
	}
	v.latency += (took - v.latency) * latencyShare
}

// policyTuner chooses between RoundRobin and TwoChoices for AutoPolicy, by what the rails carry. The
// speeds that ports report do not tell that a rail is degraded, and software NICs report none.
//
// Round robin gives all lanes the same work. The lanes of a slow rail hold it longer, so they have
// more bytes outstanding on average (Little's law). The tuner takes a look from time to time: it
// sums up the outstanding bytes of each rail over time. Only a look reads the clock. If a rail is
// behind in a short look and again in a longer one, the policy becomes TwoChoices.
//
// TwoChoices gives rails of the same speed the same work. When it has done so for a while, the policy
// becomes RoundRobin again. So a rail that stood still only once does not count as slow, although
// round robin would never let it catch up.
//
// All periods are counted in rounds: in a round, as many fragments end as there are data lanes.
type policyTuner struct {
	due         uint64 // the value of picker.ended at which review has work; MaxUint64 if the policy is fixed
	sampleEnd   uint64 // the value of picker.ended at which the look ends; valid while looking
	gap         int    // how many rounds pass from the last look to the next
	evenPeriods int    // how many periods of TwoChoices in a row gave the rails the same work
	sampling    bool   // a look is under way
	longer      bool   // the look is a longer one
	readAt      int64  // when the look last read what is outstanding
	rails       [MaxRails]railLoad
}

// railLoad is what the tuner measures of a rail.
type railLoad struct {
	lanes int    // the number of data lanes in service
	bytes uint64 // what these lanes had outstanding at policyTuner.readAt
	empty uint64 // VirtualCQ.idle of the rail at policyTuner.readAt
	// sum is the result: in a look the outstanding bytes summed up over time, in byte nanoseconds,
	// and under TwoChoices the bytes that the lanes have carried.
	sum float64
}

// Periods in rounds.
const (
	firstGap     = 4    // before the first look; every gap is twice the one before it
	maxSampleGap = 128  // the longest gap after looks that found no rail behind
	maxTunedGap  = 1024 // the longest gap after TwoChoices found the rails equal
	shortSample  = 2    // a look
	longSample   = 8    // a look after a short one that found a rail behind
	tuningPeriod = 64   // between two comparisons under TwoChoices
)

const (
	behindRatio  = 1.5  // how much more a rail that is behind has outstanding than another, per lane
	equalRatio   = 1.25 // how much more a rail may carry than another that has the same work, per lane
	equalPeriods = 2    // how many periods in a row with the same work end TwoChoices
)

// rounds is the value of ended in n rounds.
func (p *picker) rounds(n int) uint64 { return p.ended + uint64(n*len(p.lanes)) }

// review does what is due. empty counts the polls of each rail that left nothing in its CQ.
func (a *policyTuner) review(p *picker, empty *[MaxRails]uint64) {
	switch {
	case p.policy == TwoChoices:
		a.endPeriod(p)
	case !a.sampling:
		a.startSample(p, empty, shortSample)
	default:
		a.accumulate(p, empty)
		if p.ended >= a.sampleEnd {
			a.endSample(p, empty)
		}
	}
}

// startSample begins a look of n rounds.
func (a *policyTuner) startSample(p *picker, empty *[MaxRails]uint64, n int) {
	a.sampleEnd, a.sampling, a.longer = p.rounds(n), true, n == longSample
	p.clock.run(true)
	p.clock.tick()
	a.accumulate(p, empty)
	a.clearSums()
}

// accumulate adds the time since the last reading to the sums, and reads what is outstanding. A rail whose
// CQ was not found empty since then may have completed everything long ago, so the time does not
// count. Otherwise the rail that a poll looks at last would seem slow.
func (a *policyTuner) accumulate(p *picker, empty *[MaxRails]uint64) {
	took := float64(p.clock.now - a.readAt)
	a.readAt = p.clock.now
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

// endSample ends a look.
func (a *policyTuner) endSample(p *picker, empty *[MaxRails]uint64) {
	switch uneven := a.uneven(behindRatio); {
	case uneven && a.longer:
		a.useTwoChoices(p)
	case uneven:
		a.startSample(p, empty, longSample)
	default:
		a.useRoundRobin(p, maxSampleGap)
	}
}

// uneven reports whether the sum of a rail is more than limit times that of another, per lane.
func (a *policyTuner) uneven(limit float64) bool {
	least, most := math.Inf(1), 0.0
	for i := range a.rails {
		if r := &a.rails[i]; r.lanes > 0 {
			perLane := r.sum / float64(r.lanes)
			least, most = min(least, perLane), max(most, perLane)
		}
	}
	return most > least*limit
}

// clearSums sets the sums to 0.
func (a *policyTuner) clearSums() {
	for i := range a.rails {
		a.rails[i].sum = 0
	}
}

// useRoundRobin makes the policy RoundRobin until the next look. The gap grows up to a limit, so that the cost
// stays small.
func (a *policyTuner) useRoundRobin(p *picker, limit int) {
	p.policy, a.sampling = RoundRobin, false
	a.gap = max(a.gap, min(2*a.gap, limit))
	a.due = p.rounds(a.gap)
	p.clock.run(false)
}

// useTwoChoices makes the policy TwoChoices. It measures lanes from now on.
func (a *policyTuner) useTwoChoices(p *picker) {
	p.policy, p.fastest = TwoChoices, 0
	for _, l := range p.lanes {
		l.estimate = rateEstimate{since: p.clock.now}
	}
	a.sampling, a.evenPeriods = false, 0
	a.clearSums()
	a.due = p.rounds(tuningPeriod)
}

// endPeriod ends a period of TwoChoices.
func (a *policyTuner) endPeriod(p *picker) {
	for i := range a.rails {
		a.rails[i].lanes = 0
	}
	for _, l := range p.lanes {
		r := &a.rails[l.rail&(MaxRails-1)]
		if r.sum += float64(l.estimate.carried); !l.out() {
			r.lanes++
		}
	}
	if a.evenPeriods++; a.uneven(equalRatio) {
		a.evenPeriods = 0
	}
	if a.evenPeriods == equalPeriods {
		a.useRoundRobin(p, maxTunedGap)
		return
	}
	a.clearSums()
	for _, l := range p.lanes { // the next period begins with what was carried before it
		a.rails[l.rail&(MaxRails-1)].sum -= float64(l.estimate.carried)
	}
	a.due = p.rounds(tuningPeriod)
}
