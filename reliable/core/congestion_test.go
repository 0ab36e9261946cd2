package core

import (
	"testing"
)

// course is a link shared by connections: an unlimited queue and a delay. It loses only the chunks selected by lose.
type course struct {
	t     *testing.T
	now   int64
	delay int64   // round-trip time of the empty link
	rate  float64 // bytes per nanosecond
	free  int64   // when the link has sent everything queued
	ends  []*courseEnd
	queue []courseChunk // in flight, by the time of the echo
}

type courseEnd struct {
	c     *Conn
	idle  bool
	bytes int // arrived
}

type courseChunk struct {
	end          int
	sentAt, echo int64
}

const courseChunkBytes = 32 << 10

// newCourse returns a link of 100 Gb/s and 20 us with one connection.
func newCourse(t *testing.T) *course {
	t.Helper()
	x := &course{t: t, now: 1, delay: 20_000, rate: 12.5}
	x.join()
	return x
}

// join adds a connection.
func (x *course) join() {
	x.t.Helper()
	x.ends = append(x.ends, &courseEnd{c: newConn(x.t, Config{Adapt: true, WindowBytes: 64 << 20, PeerCredit: 1 << 12})})
}

// run advances the time to end and delivers all chunks due by then.
func (x *course) run(end int64) {
	for x.now < end {
		for i, e := range x.ends {
			a := &e.c.congestion
			e.c.now = x.now
			for !e.idle && (e.c.flyingBytes == 0 || a.allows(courseChunkBytes)) {
				e.c.flyingBytes += courseChunkBytes
				a.onSent()
				x.free = max(x.free, x.now) + int64(courseChunkBytes/x.rate)
				x.queue = append(x.queue, courseChunk{i, x.now, x.free + x.delay})
			}
		}
		if len(x.queue) == 0 {
			x.now = end
			return
		}
		k := x.queue[0]
		x.queue = x.queue[1:]
		x.now = max(x.now, k.echo)
		e := x.ends[k.end]
		e.c.now = x.now
		e.c.congestion.expire()
		e.c.flyingBytes -= courseChunkBytes
		e.bytes += courseChunkBytes
		e.c.congestion.onFlightChange()
		e.c.rtt.add(x.now-k.sentAt, x.now-k.sentAt)
		e.c.congestion.onEcho(k.sentAt, x.now-k.sentAt)
	}
}

// shares returns the share of the link that each end gets until a time.
func (x *course) shares(end int64) (all []float64) {
	from := x.now
	for _, e := range x.ends {
		e.bytes = 0
	}
	x.run(end)
	for _, e := range x.ends {
		all = append(all, float64(e.bytes)/x.rate/float64(x.now-from))
	}
	return all
}

// waiting returns the bytes queued at the link.
func (x *course) waiting() int { return int(float64(max(x.free-x.now, 0)) * x.rate) }

// TestCongestionFillsLink: a single connection finds the window that keeps the link busy with about its allowance
// queued, and keeps it while every tenth chunk is lost.
func TestCongestionFillsLink(t *testing.T) {
	x := newCourse(t)
	x.run(2_000_000)
	if got := x.shares(6_000_000)[0]; got < 0.98 {
		t.Errorf("a share of %.3f of the link, want all of it", got)
	}
	a := &x.ends[0].c.congestion
	if q := x.waiting(); q > 3*a.allowance || a.base < 20_000 || a.base > 24_000 {
		t.Errorf("%d bytes wait, with a base of %d ns: want at most three allowances of %d, and about 22600", q, a.base, a.allowance)
	}
	before := a.window
	for range 1000 {
		a.round.losses++
	}
	if x.run(8_000_000); a.window < before*9/10 {
		t.Errorf("the window fell from %d to %d bytes after losses, want no change", before, a.window)
	}
}

// TestCongestionNewcomer: connections that join others measure the round-trip time of the empty link, so that all get
// equal shares.
func TestCongestionNewcomer(t *testing.T) {
	x := newCourse(t)
	for n := 2; n <= 4; n++ {
		x.run(x.now + 3_000_000)
		x.join()
	}
	x.run(x.now + 3_000_000)
	for i, share := range x.shares(x.now + 10_000_000) {
		if base := x.ends[i].c.congestion.base; share < 0.15 || share > 0.4 || base > 30_000 {
			t.Errorf("connection %d has a share of %.3f and a base of %d ns, want about 0.25 and at most 30000", i, share, base)
		}
	}
}

// TestCongestionMoves: round trips that suddenly become ten times as long are due to another route, not to a queue.
func TestCongestionMoves(t *testing.T) {
	x := newCourse(t)
	x.run(5_000_000)
	x.delay *= 10
	x.run(x.now + 4_000_000)
	if got := x.shares(x.now + 10_000_000)[0]; got < 0.9 {
		t.Errorf("a share of %.3f of a link with longer round trips, want nearly all of it", got)
	}
	x.delay /= 10 // does not reorder echoes: the queue is in order
	x.run(x.now + 4_000_000)
	x.run(x.now + 10_000_000)
	if base := x.ends[0].c.congestion.base; base > 30_000 {
		t.Errorf("a base of %d ns on the short route, want at most 30000", base)
	}
}

// TestCongestionIdle: a connection that does not use its window neither enlarges it nor drains.
func TestCongestionIdle(t *testing.T) {
	x := newCourse(t)
	a := &x.ends[0].c.congestion
	first := a.window
	x.ends[0].idle = true
	for range 1000 {
		x.ends[0].idle = false
		a.c.now = x.now
		a.c.flyingBytes = courseChunkBytes
		a.onSent()
		a.c.flyingBytes = 0
		a.onEcho(x.now, 20_000)
		x.now += 20_000
		if a.window != first || a.phase == phaseDrain {
			t.Fatalf("a window of %d in phase %d with one chunk at a time, want %d and no drain", a.window, a.phase, first)
		}
	}
}

// TestCongestionDrainEnds: a drain whose chunks are lost is aborted by its timer, which Deadline reports.
func TestCongestionDrainEnds(t *testing.T) {
	x := newCourse(t)
	x.run(2_000_000)
	c := x.ends[0].c
	c.congestion.startDrain(drainDeep)
	held := c.congestion.drain.hold
	at := c.Deadline()
	if held > courseChunkBytes || at > x.now+200_000 {
		t.Fatalf("a drain holds %d bytes and has a timer at %d, want a chunk, and within some round trips of %d", held, at, x.now)
	}
	base := c.congestion.base
	if c.Step(at, &Event{Kind: EvTick}); c.congestion.phase == phaseDrain || c.congestion.base != base || c.congestion.window < 4*courseChunkBytes {
		t.Errorf("phase %d, base %d and window %d after a drain without samples, want its end and a base of %d", c.congestion.phase, c.congestion.base, c.congestion.window, base)
	}
}

// TestCongestionTimeout: a timeout restarts with a small window, unless the peer has never responded.
func TestCongestionTimeout(t *testing.T) {
	x := newCourse(t)
	a := &x.ends[0].c.congestion
	first := a.window
	if a.onTimeout(); a.window != first {
		t.Errorf("a window of %d after a timeout before any answer, want %d", a.window, first)
	}
	x.run(2_000_000)
	a.set(4 << 20)
	if a.onTimeout(); a.window != first || a.phase != phaseStart {
		t.Errorf("a window of %d in phase %d after a timeout, want %d and a start", a.window, a.phase, first)
	}
	a.startDrain(drainDeep)
	a.onTimeout()
	if a.c.Step(a.c.now+1_000_000, &Event{Kind: EvTick}); a.phase != phaseStart || a.window != first {
		t.Errorf("a window of %d in phase %d after a timeout during a drain, want %d and a start", a.window, a.phase, first)
	}
}

// TestCongestionOver: a connection that fails during a drain leaves no timer behind.
func TestCongestionOver(t *testing.T) {
	x := newCourse(t)
	x.run(2_000_000)
	c := x.ends[0].c
	c.congestion.startDrain(drainDeep)
	c.Step(x.now, &Event{Kind: EvClose, Status: statusFlush})
	if at := c.Deadline(); !c.Over() || at != Never {
		t.Errorf("a connection that is over, %v, has a timer at %d, want none", c.Over(), at)
	}
}

// TestCongestionWrongSample: a sample that is far too short, because a clock was read late, spoils the base only for
// a few round trips.
func TestCongestionWrongSample(t *testing.T) {
	for _, wrong := range []int64{1, 2, 1000} {
		x := newCourse(t)
		x.run(2_000_000)
		x.ends[0].c.congestion.onEcho(x.now, wrong)
		x.run(x.now + 30_000_000)
		if got, base := x.shares(x.now + 10_000_000)[0], x.ends[0].c.congestion.base; got < 0.95 {
			t.Errorf("a share of %.3f of the link and a base of %d ns after a sample of %d ns, want all and about 22600", got, base, wrong)
		}
	}
}
