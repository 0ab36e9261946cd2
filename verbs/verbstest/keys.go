package verbstest

import (
	"fmt"

	"ibverbx/verbs"
)

var keyTests = []test{
	{"RemoteEveryBit", keysRemoteEveryBit},
	{"LocalEveryBit", keysLocalEveryBit},
	{"NotReusedAtOnce", keysNotReused},
}

// eachBit runs a subtest for every bit of a key with a valid WRITE, whose target must not be
// modified.
func (e *env) eachBit(run func(e *env, bit uint32, w verbs.SendWR)) {
	for bit := range 32 {
		e.sub(fmt.Sprintf("bit=%d", bit), func(e *env) {
			local, target := e.buf(e.a, 8), e.painted(e.b, 8)
			run(e, 1<<bit, write(1, target, 0, local.sge(0, 8)))
			e.untouched(target)
		})
	}
}

// All bits of a key are significant: a number that differs from a valid key in one bit grants no
// access.
func keysRemoteEveryBit(e *env) {
	e.eachBit(func(e *env, bit uint32, w verbs.SendWR) {
		w.RKey ^= bit
		e.failsRemotely(e.rc(), w, verbs.StatusRemAccessErr)
	})
}

// All bits of a local key are significant: a request with a key that differs in one bit fails and
// does not change the memory.
func keysLocalEveryBit(e *env) {
	e.eachBit(func(e *env, bit uint32, w verbs.SendWR) {
		w.SGE[0].LKey ^= bit
		e.failsLocally(e.rc(), w)
	})
}

// The key of a closed region is not assigned to the next regions and does not open them, even on
// the same memory.
func keysNotReused(e *env) {
	mem := e.memory(64)
	target := &buf{mem: mem, mr: e.register(e.b.pd, mem, verbs.AccessAll)}
	var stale uint32
	for i := range 64 {
		stale = target.mr.RKey()
		e.must(target.mr.Close(), "Close of region %d", i)
		target.mr = e.register(e.b.pd, mem, verbs.AccessAll)
		if target.mr.RKey() == stale {
			e.Fatalf("registration %d got the RKey %#x that was closed just before", i, stale)
		}
	}
	target.paint()
	c, local := e.rc(), e.buf(e.a, 64)
	bad := write(1, target, 0, local.sge(0, 64))
	bad.RKey = stale
	e.failsRemotely(c, bad, verbs.StatusRemAccessErr)
	e.untouched(target)
}
