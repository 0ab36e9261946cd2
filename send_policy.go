package ibverbx

import (
	"math"

	"ibverbx/internal/xorshift"
)

// picker chooses lanes according to a Policy, and holds its state.
type picker struct {
	policy Policy  // current policy, never AutoPolicy
	lanes  []*lane // data lanes, by index
	clock  *cachedClock
	pickState
	// random draws lanes for TwoChoices.
	random xorshift.Source
	// fastest is the highest rate of a lane, in bytes per nanosecond. It decays, to follow lanes that become slower.
	fastest float64
	// runBytes is the maximum length of a run on one lane.
	runBytes uint32

	ended uint64      // number of retired ledger entries
	tuner policyTuner // switches policy for AutoPolicy
}

// pickState is the position of round-robin and of the current run. Callers restore it to undo a pick.
type pickState struct {
	cursor  int    // index of the next lane for round-robin
	runLane *lane  // the current run's lane; valid while runLeft is not 0
	runLeft int    // number of requests that may still join the run
	runRoom uint32 // number of bytes that may still join the run
}

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

// A whole request gives its lane little work, but costs a doorbell and a completion like a long one. Whole requests
// that are dispatched together therefore share a lane as one chain, the run: up to runMax requests or runCuts times
// the smallest fragment. That is 64 KiB, a microsecond of one lane's time at 400 Gb/s, or 4 MiB where lanes do not
// work in parallel (setup.minCut).
const (
	runMax  = 64
	runCuts = 4
)

// pick chooses the lane for the next n bytes, or returns nil if all lanes are full. whole is set if the bytes are a
// whole request.
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

// reuseLane returns the current run's lane if it accepts another request of n bytes, and nil otherwise.
func (p *picker) reuseLane(n uint32) *lane {
	if p.runLeft == 0 || p.runRoom < n || !p.runLane.room() {
		return nil
	}
	p.runLeft--
	p.runRoom -= n
	return p.runLane
}

// extendRun returns how many of the next whole requests join the run that pick started or continued on l.
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

// twoChoices draws two lanes and returns the one expected to finish n more bytes first. If it does not draw two
// different lanes below their quota, it considers all lanes. It returns nil if all are full.
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

// drawTries is the number of attempts of draw.
const drawTries = 4

// draw returns a random lane below its quota, or nil after drawTries attempts. The probability is proportional to the
// square root of the lane's rate. Equal probabilities would pair two slow lanes too often where most lanes are slow.
// Probabilities proportional to the rate would let equal lanes of one rail drift apart, because a lane that gets a
// larger share of a wire measures a higher rate.
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

// belowQuota reports whether TwoChoices may give the lane more work: it is not full, and has fewer outstanding bytes
// than it has carried so far, plus initialQuota. Data waiting on a slow lane may delay everything behind it, so a new
// lane starts with little and doubles with each completion. A request that the quota delays continues at the next
// completion.
func (l *lane) belowQuota() bool { return l.room() && l.bytes < l.estimate.carried+initialQuota }

// initialQuota is the quota of a lane that has carried nothing yet.
const initialQuota = 64 << 10

// earliest returns the lane expected to finish n more bytes first, or nil if all are full. It starts at the cursor,
// so that equal lanes are used round-robin.
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

// idleHalfLife is the age, in multiples of the estimate, at which an idle lane's estimate loses half of its weight,
// so that a lane that was once slow is tried again.
const idleHalfLife = 16

// eta estimates the time a lane takes for n more bytes, in nanoseconds. A lane that has been silent for longer is
// rated by its silence, so a dead path stops receiving work long before its NIC gives up.
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

// measure records that a lane has completed bytes. The clock must have ticked.
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

// rateEstimate is a lane's recent rate and latency. RC completes in order, so a lane is a single-server queue: bytes
// completed during a busy period give the rate, and the extra time of the first bytes after idling gives the latency.
type rateEstimate struct {
	bytes        float64 // decaying sum of measured bytes
	time         float64 // decaying sum of the nanoseconds in which they were carried
	rate         float64 // bytes / time; 0 if unmeasured
	latency      float64 // decaying average in nanoseconds; valid if known
	since        int64   // time of the last completion, or of the first request after idling
	done         uint64  // bytes completed after since
	carried      uint64  // all bytes completed by the lane
	firstPending bool    // busy after idling, and nothing has completed yet
	known        bool    // the latency was measured
}

// Weights of a new sample.
const (
	rateShare    = 1.0 / 16
	latencyShare = 1.0 / 8
)

// rateOr returns the measured rate, or fastest for an unmeasured lane, so that it is tried.
func (v *rateEstimate) rateOr(fastest float64) float64 {
	if v.rate == 0 {
		return fastest
	}
	return v.rate
}

// startBusy records that an idle lane gets work. Earlier measurements lose weight with their age.
func (v *rateEstimate) startBusy(now int64) {
	if v.time > 0 {
		f := v.time / (v.time + float64(now-v.since))
		v.bytes *= f
		v.time *= f
	}
	v.since, v.done, v.firstPending = now, 0, true
}

// addDelay records the time of the first bytes after idling. If the rate is unknown, or the bytes completed sooner
// than it allows, the whole time counts for both rate and latency.
func (v *rateEstimate) addDelay(took, bytes float64) {
	if took*v.rate > bytes {
		took -= bytes / v.rate
	} else {
		v.bytes, v.time = bytes/4, took/4 // a low weight: the next samples count more
		v.rate = v.bytes / v.time
	}
	if !v.known {
		v.known, v.latency = true, took
		return
	}
	v.latency += (took - v.latency) * latencyShare
}

// policyTuner switches between RoundRobin and TwoChoices for AutoPolicy, according to measurements of the rails.
// Reported port speeds do not reveal a degraded rail, and software NICs do not report any.
//
// RoundRobin gives all lanes equal work. The lanes of a slow rail hold it longer, so they have more outstanding bytes
// on average (Little's law). From time to time, the tuner takes a sample: it integrates each rail's outstanding bytes
// over time. It reads the clock only during samples. If a rail is behind in a short sample and again in a long one,
// the policy becomes TwoChoices.
//
// TwoChoices gives rails of equal speed equal work. After a while of that, the policy becomes RoundRobin again. A
// rail that stalled only once is thus not treated as slow, although it would never catch up under RoundRobin.
//
// Periods are counted in rounds: during one round, as many fragments complete as there are data lanes.
type policyTuner struct {
	due         uint64 // value of picker.ended at the next review; MaxUint64 if the policy is fixed
	sampleEnd   uint64 // value of picker.ended at which the sample ends; valid while sampling
	gap         int    // rounds from the last sample to the next
	evenPeriods int    // consecutive periods of TwoChoices with equal work
	sampling    bool   // a sample is in progress
	longer      bool   // the sample is a long one
	readAt      int64  // time of the last reading of outstanding bytes
	rails       [MaxRails]railLoad
}

// railLoad is a rail's measured load.
type railLoad struct {
	lanes int    // number of data lanes in service
	bytes uint64 // their outstanding bytes at policyTuner.readAt
	empty uint64 // VirtualCQ.idle of the rail at policyTuner.readAt
	// sum is the result: during a sample the integral of the outstanding bytes in byte nanoseconds, under TwoChoices
	// the bytes carried.
	sum float64
}

// Periods in rounds.
const (
	firstGap     = 4    // before the first sample; each gap is twice the previous one
	maxSampleGap = 128  // longest gap while samples do not find a slow rail
	maxTunedGap  = 1024 // longest gap after TwoChoices has found the rails equal
	shortSample  = 2
	longSample   = 8  // after a short sample that found a rail behind
	tuningPeriod = 64 // between two comparisons under TwoChoices
)

const (
	behindRatio  = 1.5  // minimum ratio of outstanding bytes per lane between a rail that is behind and another
	equalRatio   = 1.25 // maximum ratio of carried bytes per lane between rails with equal work
	equalPeriods = 2    // number of consecutive periods with equal work that end TwoChoices
)

// rounds returns the value that ended reaches after n rounds.
func (p *picker) rounds(n int) uint64 { return p.ended + uint64(n*len(p.lanes)) }

// review runs the action that is due. empty is VirtualCQ.idle.
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

// startSample starts a sample of n rounds.
func (a *policyTuner) startSample(p *picker, empty *[MaxRails]uint64, n int) {
	a.sampleEnd, a.sampling, a.longer = p.rounds(n), true, n == longSample
	p.clock.run(true)
	p.clock.tick()
	a.accumulate(p, empty)
	a.clearSums()
}

// accumulate adds the time since the last reading to the sums, and reads the outstanding bytes. The time does not
// count for a rail whose CQ was not found empty since then: it may have completed everything long ago. Otherwise the
// rail polled last would seem slow.
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

// uneven reports whether a rail's sum per lane exceeds another's by more than the factor limit.
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

func (a *policyTuner) clearSums() {
	for i := range a.rails {
		a.rails[i].sum = 0
	}
}

// useRoundRobin selects RoundRobin until the next sample. The gap doubles up to limit, which keeps the cost low.
func (a *policyTuner) useRoundRobin(p *picker, limit int) {
	p.policy, a.sampling = RoundRobin, false
	a.gap = max(a.gap, min(2*a.gap, limit))
	a.due = p.rounds(a.gap)
	p.clock.run(false)
}

// useTwoChoices selects TwoChoices, with new estimates for all lanes.
func (a *policyTuner) useTwoChoices(p *picker) {
	p.policy, p.fastest = TwoChoices, 0
	for _, l := range p.lanes {
		l.estimate = rateEstimate{since: p.clock.now}
	}
	a.sampling, a.evenPeriods = false, 0
	a.clearSums()
	a.due = p.rounds(tuningPeriod)
}

// endPeriod compares the rails at the end of a period of TwoChoices.
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
	for _, l := range p.lanes { // the next period counts from here
		a.rails[l.rail&(MaxRails-1)].sum -= float64(l.estimate.carried)
	}
	a.due = p.rounds(tuningPeriod)
}
