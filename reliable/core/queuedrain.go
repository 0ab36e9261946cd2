package core

// drain measures base, which is visible only while the queue is empty. A drain holds the bytes in flight
// down until a chunk has measured the network in this state, first at half of the link's capacity. If that does
// not reveal base, others fill the queue, and the connection falls back to one chunk. A newcomer takes the queue of
// others for its base. Its start lengthens their queue suddenly, which makes them drain too, so that all measure the
// same base.
type drain struct {
	hold         int   // the limit of the bytes in flight
	deep         bool  // set if hold is one chunk
	fromAt       int64 // the start of valid transmissions; never while more than hold is in flight
	until        int64 // the timeout, or never
	least        int64 // its minimum sample, 0 without samples
	last         int64 // its last sample; initially the minimum round trip time of the previous round
	flightBefore int   // the bytes in flight before the drain
	rttBefore    int64 // the minimum round trip time before the drain

	seenAt        int64 // the last measurement of base
	endedAt       int64 // the end of the last drain
	spike         bool  // set if a sudden queue requires a drain
	retry         bool  // set if the last drain has not found base
	rttBeforeJump int64 // the round trip time before a sudden increase, as by another route, or 0
	samples       int   // counts the samples of a deep drain
}

// drainKind is a kind of drain.
type drainKind uint8

const (
	drainNone drainKind = iota
	drainShallow
	drainDeep
)

const (
	// drainPeriod is the minimum interval after which a connection without a measurement of base drains, in nanoseconds. It
	// is doubled until it is at least drainTrips round trips, so that connections with similar round trips stay in
	// step once they have seen an empty queue together.
	drainPeriod, drainTrips = 5_000_000, 80
	// drainRest is the minimum number of round trips between a drain and one caused by an event.
	drainRest = 16
	// joinRest is the minimum number of round trips between a drain and one that joins others.
	joinRest = 8
)

// dueDrain returns the kind of the due drain.
func (a *congestion) dueDrain() drainKind {
	d, now := &a.drain, a.c.now
	period := int64(drainPeriod)
	for period < drainTrips*a.base {
		period *= 2
	}
	rested := now-d.endedAt >= drainRest*a.base
	switch {
	case d.rttBeforeJump != 0:
		return drainDeep
	case now-d.seenAt >= period, rested && (d.spike || d.retry):
		return drainShallow
	}
	return drainNone
}

// startDrain starts a drain.
func (a *congestion) startDrain(kind drainKind) {
	d, c := &a.drain, a.c
	a.phase = phaseDrain
	d.flightBefore, d.rttBefore = min(a.before.peak, a.window), max(a.round.least, 1)
	if a.before.peak == 0 {
		d.flightBefore = min(a.round.peak, a.window)
	}
	d.least, d.last, d.samples = 0, d.rttBefore, 0
	d.hold = max(scale(d.flightBefore, a.base, d.rttBefore)/2, int(c.cfg.ChunkBytes))
	d.deep = kind == drainDeep
	if d.deep {
		d.hold = int(c.cfg.ChunkBytes)
	}
	d.awaitSample(a)
}

// awaitSample waits for the sample of a chunk sent with at most hold in flight.
func (d *drain) awaitSample(a *congestion) {
	d.fromAt = never
	d.until = a.c.now + 2*max(a.c.rtt.mean, d.rttBefore) + 2*d.rttBefore
	a.onFlightChange()
}

// onFlightChange checks the bytes in flight after an arrival or a loss.
func (a *congestion) onFlightChange() {
	if d := &a.drain; a.phase == phaseDrain && d.fromAt == never && a.c.flyingBytes <= d.hold {
		d.fromAt = a.c.now
	}
}

// onDrained processes a sample of a drain.
func (a *congestion) onDrained(sentAt, sample int64) {
	d := &a.drain
	if sentAt < d.fromAt {
		return
	}
	if d.least == 0 || sample < d.least {
		d.least = sample
	}
	near := 4*sample <= 5*a.base
	if !d.deep {
		if near && 100*sample >= 97*a.base {
			a.base = min(sample, a.base+a.base/20)
			a.endDrain(phaseSteady)
			return
		}
		d.deep, d.hold = true, int(a.c.cfg.ChunkBytes)
		d.awaitSample(a)
		return
	}
	d.samples++
	falls, rises := 100*sample < 97*d.last, 100*sample > 103*d.last
	d.last = sample
	if !near && (falls || d.samples == 1 && (d.rttBeforeJump == 0 || d.rttBefore < 4*d.rttBeforeJump)) { // others drain too
		d.until = a.c.now + 2*max(a.c.rtt.mean, sample) + 2*sample
		return
	}
	a.endDeepDrain(!falls && !rises && 100*d.least >= 97*d.rttBefore)
}

// endDeepDrain ends a deep drain. moved reports that round trips stay as long although the connection has left the link:
// the cause is another route, not a queue.
func (a *congestion) endDeepDrain(moved bool) {
	d := &a.drain
	switch {
	case d.least == 0:
		a.endDrain(phaseSteady)
	case 4*d.last <= 5*a.base:
		a.base = min(d.least, a.base+a.base/20)
		a.endDrain(phaseSteady)
	case moved:
		a.base = d.least
		if d.rttBeforeJump != 0 { // half of the previous rate is a good start
			d.rttBefore = 2 * d.rttBeforeJump
		}
		a.endDrain(phaseStart)
	default:
		a.base += max(a.base/20, d.least/64) // even after a wrong sample, which makes it far too short
		a.endDrain(phaseSteady)
		d.retry = true
	}
}

// endDrain leaves the drain and starts phase p.
func (a *congestion) endDrain(p congestionPhase) {
	d := &a.drain
	a.set(scale(d.flightBefore, a.base, d.rttBefore) + a.allowance)
	d.seenAt, d.endedAt = a.c.now, a.c.now
	d.spike, d.retry, d.rttBeforeJump = false, false, 0
	a.begin(p)
}

// expire ends a drain that has timed out.
func (a *congestion) expire() {
	if a.c.now >= a.drain.until {
		a.endDeepDrain(false)
	}
}
