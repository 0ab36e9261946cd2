package core

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"testing"
)

// line is a network in virtual time for a rig: every path and every control QP is a separate line, with
// faults. Paths preserve order; control packets may be reordered.
type line struct {
	*rig
	rng     *rand.Rand
	queue   flights
	seq     uint64
	last    map[lineKey]int64
	Delay   int64
	Jitter  int64
	Loss    float64 // of everything
	CtrlDup float64
	// Lose, if not nil, decides about a packet, too.
	Lose func(from int, p *packet) bool
	// Extra is added to the delay of a packet.
	Extra func(from int, p *packet) int64
	sent  int
	// CopyTime is the duration of placing a chunk, with rig.slow. One copy in CopyLoss is refused, unless
	// that is 0.
	CopyTime int64
	CopyLoss int
	copied   int
}

type lineKey struct {
	from  int
	route Route
}

type flight struct {
	at   int64
	seq  uint64
	to   int
	pack packet
	copy bool // the end of a copy, not a packet
}

type flights []flight

func (f flights) Len() int { return len(f) }
func (f flights) Less(i, j int) bool {
	return f[i].at < f[j].at || (f[i].at == f[j].at && f[i].seq < f[j].seq)
}
func (f flights) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flights) Push(x any)   { *f = append(*f, x.(flight)) }
func (f *flights) Pop() any {
	old := *f
	x := old[len(old)-1]
	*f = old[:len(old)-1]
	return x
}

func newLine(tb testing.TB, a, b Config, inbox int, seed uint64) *line {
	tb.Helper()
	r, err := newRig(a, b, inbox)
	if err != nil {
		tb.Fatalf("newRig = %v, want none", err)
	}
	l := &line{rig: r, rng: rand.New(rand.NewPCG(seed, 7)), last: map[lineKey]int64{}, Delay: 10_000}
	r.send = l.take
	r.later = func(i int) {
		l.seq++
		l.copied++
		heap.Push(&l.queue, flight{at: l.now + l.CopyTime, seq: l.seq, to: i, copy: true})
	}
	return l
}

// endCopy completes the oldest copy of an end, or refuses all of them.
func (l *line) endCopy(i int) {
	if l.CopyLoss > 0 && l.rng.IntN(l.CopyLoss) == 0 {
		l.dropCopies(i)
		return
	}
	l.placed(i)
}

func (l *line) take(from int, p *packet) {
	l.sent++
	if l.rng.Float64() < l.Loss || (l.Lose != nil && l.Lose(from, p)) {
		return
	}
	l.launch(from, p)
	if p.route < RoutePath && l.rng.Float64() < l.CtrlDup {
		l.launch(from, p)
	}
}

func (l *line) launch(from int, p *packet) {
	at := l.now + l.Delay
	if l.Jitter > 0 {
		at += l.rng.Int64N(l.Jitter)
	}
	if l.Extra != nil {
		at += l.Extra(from, p)
	}
	if p.route >= RoutePath && !l.ends[from].conn.cfg.Carrier.Unordered {
		key := lineKey{from, p.route}
		at = max(at, l.last[key])
		l.last[key] = at
	}
	l.seq++
	heap.Push(&l.queue, flight{at: at, seq: l.seq, to: 1 - from, pack: *p})
}

// run runs until stop returns true, no event is left, or the limit is reached. It reports whether it stopped.
func (l *line) run(limit int64, stop func() bool) bool {
	for !stop() {
		at, i := l.deadline()
		if len(l.queue) > 0 && l.queue[0].at <= at {
			if l.queue[0].at > limit {
				return false
			}
			f := heap.Pop(&l.queue).(flight)
			l.now = max(l.now, f.at)
			if f.copy {
				l.endCopy(f.to)
			} else {
				l.arrive(f.to, &f.pack)
			}
			l.step(f.to, Event{Kind: EvFlush})
			continue
		}
		if at == Never || at > limit {
			return false
		}
		l.now = max(l.now, at)
		l.step(i, Event{Kind: EvTick})
	}
	return true
}

// finish runs until all messages of end 0 have completed, for at most limit, and checks their statuses, if given.
func (l *line) finish(t *testing.T, limit int64, want ...uint8) {
	t.Helper()
	if !l.run(l.now+limit, func() bool { return l.finished(0) }) {
		t.Fatalf("stuck at %d ns with %v", l.now, l.ends[0].done)
	}
	if want != nil && !slices.Equal(l.ends[0].done, want) {
		t.Fatalf("messages end with %v, want %v", l.ends[0].done, want)
	}
}

// bytesOf returns n bytes unique to the seed.
func bytesOf(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 99))
	for i := range b {
		b[i] = byte(r.Uint32()) | 1
	}
	return b
}

// deadline returns the next deadline and its end.
func (r *rig) deadline() (at int64, i int) {
	a, b := r.ends[0].conn.Deadline(), r.ends[1].conn.Deadline()
	if b < a {
		return b, 1
	}
	return a, 0
}
