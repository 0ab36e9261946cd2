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

// A key counts in all its bits: a number that differs from a good one in a single bit
// opens nothing.
func keysRemoteEveryBit(e *env) {
	for bit := range 32 {
		e.sub(fmt.Sprintf("bit=%d", bit), func(e *env) {
			c, local, target := e.rc(), e.buf(e.a, 8), e.painted(e.b, 8)
			bad := write(1, target, 0, local.sge(0, 8))
			bad.RKey ^= 1 << bit
			e.failsRemotely(c, bad, verbs.StatusRemAccessErr)
			e.untouched(target)
		})
	}
}

// So does a local key: a request with one that differs in a single bit fails, and nothing
// is written.
func keysLocalEveryBit(e *env) {
	for bit := range 32 {
		e.sub(fmt.Sprintf("bit=%d", bit), func(e *env) {
			c, local, target := e.rc(), e.buf(e.a, 8), e.painted(e.b, 8)
			bad := write(1, target, 0, local.sge(0, 8))
			bad.SGE[0].LKey ^= 1 << bit
			e.post(c.a, bad)
			e.fails(c.a, 1, verbs.StatusLocProtErr)
			e.inState(c.a, verbs.StateErr)
			e.untouched(target)
		})
	}
}

// The key of a region that was closed does not open the next one, although both are
// over the same memory.
func keysNotReused(e *env) {
	mem := e.memory(64)
	old := e.register(e.b.pd, mem, verbs.AccessAll)
	stale := old.RKey()
	e.must(old.Close(), "Close")
	target := &buf{mem: mem, mr: e.register(e.b.pd, mem, verbs.AccessAll)}
	if target.mr.RKey() == stale {
		e.Fatalf("the key %#x of a closed region was given to the next one", stale)
	}
	target.paint()
	c, local := e.rc(), e.buf(e.a, 64)
	bad := write(1, target, 0, local.sge(0, 64))
	bad.RKey = stale
	e.failsRemotely(c, bad, verbs.StatusRemAccessErr)
	e.untouched(target)
}
