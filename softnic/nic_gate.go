package softnic

import (
	"sync"
	"sync/atomic"
)

// gate guards one object, a pair of QPs, a CQ or an SRQ, while it is open. While it is shut, the
// core's lock guards the object. docs/softnic.md explains gates and their invariants.
type gate struct {
	sync.Mutex
	// open changes to true only under the core's mutex.
	open atomic.Bool
}

// enter locks the gate if it is open, and reports whether it is.
func (g *gate) enter() bool {
	if !g.open.Load() {
		return false
	}
	g.Lock()
	if g.open.Load() {
		return true
	}
	g.Unlock()
	return false
}

// guard locks what guards the object and returns it: the gate's mutex, or the core's if the gate is
// shut.
func (g *gate) guard(l *coreLock) *sync.Mutex {
	if g.enter() {
		return &g.Mutex
	}
	l.hold()
	if g.enter() { // it opened while this call waited
		l.Unlock()
		return &g.Mutex
	}
	return &l.Mutex
}

// shut closes the gate and waits until nobody is inside.
func (g *gate) shut() {
	if g.open.Swap(false) {
		g.Lock()
		g.Unlock() //nolint:staticcheck // it waits
	}
}

// coreLock is the lock of a core. The mutex alone guards whatever has no open gate. Lock also shuts all
// gates: then its holder is alone in the core and may change everything.
type coreLock struct {
	sync.Mutex
	// open are the pairs whose gates may be open. The gates of their CQs and SRQs are open as well.
	open []*pair
	// waiting are the pairs that have done plain calls under the lock since gates were shut.
	waiting []*pair
	// need is how many such calls there must be before gates open, at least least. It doubles when gates were
	// not open for long enough, and falls when they were. It is neverLoose on links whose gates stay shut.
	need, least uint32
	// calls counts those calls.
	calls uint32
}

const (
	// looseAfter is coreLock.least of a link whose gates open.
	looseAfter = 16
	neverLoose = 1<<32 - 1
	// looseMost bounds coreLock.need.
	looseMost = 1 << 14
	// worthwhile is how many requests a pair must do on average between the opening and the shutting of its
	// gate to make up for both.
	worthwhile = 64
)

// Lock locks the mutex and shuts all gates.
func (l *coreLock) Lock() {
	l.Mutex.Lock()
	l.shut()
}

// TryLock is Lock if nobody holds the mutex, and otherwise reports false.
func (l *coreLock) TryLock() bool {
	if !l.Mutex.TryLock() {
		return false
	}
	l.shut()
	return true
}

// hold locks the mutex and leaves gates open. The caller may read what changes only under Lock, and
// change what has no open gate and is not used inside of one.
func (l *coreLock) hold() { l.Mutex.Lock() }

// shut shuts all gates: first those of pairs, which enter the others. The mutex is held.
func (l *coreLock) shut() {
	if len(l.open) == 0 {
		return
	}
	for _, p := range l.open {
		p.open.Store(false)
	}
	done := uint64(0)
	for _, p := range l.open {
		p.Lock()
		p.fold()
		done += p.done
		p.done = 0
		p.Unlock()
	}
	if done < worthwhile*uint64(len(l.open)) {
		l.need = min(2*l.need, looseMost)
	} else {
		l.need = max(l.need/2, l.least)
	}
	l.calls = 0
	for _, p := range l.open {
		for _, q := range p.qps {
			q.sendCQ.shut()
			q.recvCQ.shut()
			if q.srq != nil {
				q.srq.shut()
			}
		}
	}
	clear(l.open) // a closed QP must not stay reachable
	l.open = l.open[:0]
}

// drain waits until every call that is inside a gate of a pair has left it. The mutex is held.
func (l *coreLock) drain() {
	for _, p := range l.open {
		p.Lock()
		p.Unlock() //nolint:staticcheck // it waits
	}
}
