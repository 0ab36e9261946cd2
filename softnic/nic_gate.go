package softnic

import (
	"sync"
	"sync/atomic"
)

// gate guards one object, a pair of QPs, a CQ or an SRQ, while it is open. While it is shut, the core's lock guards
// the object. docs/softnic.md explains gates and their invariants.
type gate struct {
	sync.Mutex
	// open changes to true only under the core's mutex.
	open atomic.Bool
}

// enter locks the gate if it is open, and reports whether it did.
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

// guard locks the mutex that guards the object and returns it: the gate's, or the core's if the gate is shut.
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

// shut closes the gate and waits for its holder to leave.
func (g *gate) shut() {
	if g.open.Swap(false) {
		g.Lock()
		g.Unlock() //nolint:staticcheck // it waits
	}
}

// coreLock is the lock of a core. The mutex alone guards everything without an open gate. Lock also shuts all gates:
// its holder is then alone in the core and may change everything.
type coreLock struct {
	sync.Mutex
	// open holds the pairs whose gates may be open. The gates of their CQs and SRQs are then open as
	// well.
	open []*pair
	// waiting holds the pairs with plain calls under the lock since gates were shut.
	waiting []*pair
	// openAfter is the number of such calls before gates open, at least minOpenAfter. It doubles if gates were open
	// too briefly, and halves otherwise. It is neverOpen on links whose gates stay shut.
	openAfter, minOpenAfter uint32
	// plainCalls counts those calls.
	plainCalls uint32
}

const (
	// openAfter is coreLock.minOpenAfter on a link whose gates open.
	openAfter = 16
	neverOpen = 1<<32 - 1
	// maxOpenAfter limits coreLock.openAfter.
	maxOpenAfter = 1 << 14
	// minRequestsPerOpen is the average number of requests that a pair must execute between the opening and the
	// shutting of its gate to make up for both.
	minRequestsPerOpen = 64
)

// Lock locks the mutex and shuts all gates.
func (l *coreLock) Lock() {
	l.Mutex.Lock()
	l.shut()
}

// TryLock is Lock if the mutex is free, and otherwise returns false.
func (l *coreLock) TryLock() bool {
	if !l.Mutex.TryLock() {
		return false
	}
	l.shut()
	return true
}

// hold locks the mutex and leaves gates open. The caller may read state that changes only under Lock, and change state
// that has no open gate and is not used inside one.
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
	if done < minRequestsPerOpen*uint64(len(l.open)) {
		l.openAfter = min(2*l.openAfter, maxOpenAfter)
	} else {
		l.openAfter = max(l.openAfter/2, l.minOpenAfter)
	}
	l.plainCalls = 0
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

// drain waits until every call inside the gate of a pair has left it. The mutex is held.
func (l *coreLock) drain() {
	for _, p := range l.open {
		p.Lock()
		p.Unlock() //nolint:staticcheck // it waits
	}
}
