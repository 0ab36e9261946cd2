package verbstest

import (
	"fmt"

	"ibverbx/verbs"
)

var memoryTests = []test{
	{"Register", memoryRegister},
	{"RegisterView", memoryRegisterView},
	{"KeysDistinct", memoryKeysDistinct},
	{"KeysNotCounted", memoryKeysNotCounted},
	{"AccessRules", memoryAccessRules},
	{"TwoRegionsOneMemory", memoryTwoRegions},
	{"FreeRefusedWhileRegistered", memoryFreeRefused},
	{"RegisterFreed", memoryRegisterFreed},
	{"DeregisterUnderReceive", memoryDeregisterUnderReceive},
	{"DeregisterUnderTraffic", memoryDeregisterUnderTraffic},
}

// A region has the address and length of its memory (ibv_reg_mr(3)).
func memoryRegister(e *env) {
	mem := e.memory(5000)
	mr := e.register(e.a.pd, mem, verbs.AccessAll)
	if mr.Addr() != mem.Addr() || mr.Len() != 5000 {
		e.Errorf("region = %d bytes at %#x, want %d at %#x", mr.Len(), mr.Addr(), 5000, mem.Addr())
	}
	lkey, rkey := mr.LKey(), mr.RKey()
	if lkey != mr.LKey() || rkey != mr.RKey() {
		e.Errorf("the keys of a region change: %#x and %#x, then %#x and %#x", lkey, rkey, mr.LKey(), mr.RKey())
	}
}

// A view is registered separately: its key covers only its own bytes.
func memoryRegisterView(e *env) {
	c := e.rc()
	whole := e.memory(8192)
	view, err := whole.Slice(1001, 500)
	e.must(err, "Slice")
	dst := &buf{mem: whole, mr: e.register(e.b.pd, view, verbs.AccessAll)}
	if dst.mr.Addr() != whole.Addr()+1001 || dst.mr.Len() != 500 {
		e.Errorf("region of the view = %d bytes at %#x, want 500 at %#x", dst.mr.Len(), dst.mr.Addr(), whole.Addr()+1001)
	}
	dst.paint()
	src := e.filled(e.a, 3, 600)
	e.do(c.a, write(1, dst, 0, src.sge(0, 500)))
	e.holds(dst, 1001, payload(3, 600)[:500])
	// The memory extends beyond the view, the region does not.
	e.post(c.a, write(2, dst, 0, src.sge(0, 501)))
	e.fails(c.a, 2, e.orRetryExc(verbs.StatusRemAccessErr)...)
	e.holds(dst, 1001, payload(3, 600)[:500])
}

// regions registers one memory n times.
func (e *env) regions(n int) []verbs.MR {
	e.Helper()
	mem := e.memory(4096)
	mrs := make([]verbs.MR, n)
	for i := range mrs {
		mrs[i] = e.register(e.a.pd, mem, verbs.AccessAll)
	}
	return mrs
}

// No two regions share a key.
func memoryKeysDistinct(e *env) { e.distinctKeys(e.regions(64)) }

func (e *env) distinctKeys(mrs []verbs.MR) {
	e.Helper()
	var lkeys, rkeys []uint32
	for _, mr := range mrs {
		lkeys, rkeys = append(lkeys, mr.LKey()), append(rkeys, mr.RKey())
	}
	e.distinct("LKeys of regions", lkeys)
	e.distinct("RKeys of regions", rkeys)
}

// distinct fails the test if two of the numbers are the same.
func (e *env) distinct(what string, numbers []uint32) {
	e.Helper()
	seen := map[uint32]int{}
	for i, n := range numbers {
		if j, dup := seen[n]; dup {
			e.Fatalf("%s %d and %d of %d are both %#x, want them to differ", what, j, i, len(numbers), n)
		}
		seen[n] = i
	}
}

// RKeys do not increase by a fixed step: an RKey is a permission, and one key must not reveal the
// next.
func memoryKeysNotCounted(e *env) {
	mrs := e.regions(16)
	steps := map[uint32]bool{}
	for i := 1; i < len(mrs); i++ {
		steps[mrs[i].RKey()-mrs[i-1].RKey()] = true
	}
	if len(steps) < 2 {
		e.Errorf("the RKeys of %d regions rise by the same step %v, want keys that cannot be guessed by counting", len(mrs), steps)
	}
}

// Remote write and atomic access require AccessLocalWrite (ibv_reg_mr(3)), and unknown flags are
// refused.
func memoryAccessRules(e *env) {
	mem := e.memory(4096)
	for _, tt := range []struct {
		access verbs.Access
		legal  bool
	}{
		{0, true},
		{verbs.AccessLocalWrite, true},
		{verbs.AccessRemoteRead, true},
		{verbs.AccessLocalWrite | verbs.AccessRemoteWrite, true},
		{verbs.AccessLocalWrite | verbs.AccessRemoteAtomic, true},
		{verbs.AccessAll, true},
		{verbs.AccessAll | verbs.AccessRelaxedOrdering, true},
		{verbs.AccessRemoteWrite, false},
		{verbs.AccessRemoteAtomic, false},
		{verbs.AccessRemoteRead | verbs.AccessRemoteWrite, false},
		{verbs.AccessLocalWrite | 1<<15, false},
	} {
		if tt.legal {
			e.must(e.register(e.a.pd, mem, tt.access).Close(), "Close")
			continue
		}
		what := fmt.Sprintf("RegisterMemory with access %#x", uint32(tt.access))
		e.rejectsCreate(what, verbs.ErrInvalid, verbs.ErrNotSupported)(e.a.pd.RegisterMemory(mem, tt.access))
	}
}

// Two regions on the same memory have separate permissions and close independently.
func memoryTwoRegions(e *env) {
	c := e.rc()
	readable := e.bufWith(e.b.pd, 64, verbs.AccessRemoteRead)
	readable.put(0, payload(5, 64))
	writable := &buf{mem: readable.mem, mr: e.register(e.b.pd, readable.mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)}
	local := e.buf(e.a, 64)
	e.do(c.a, read(1, readable, 0, local.sge(0, 64)))
	e.same(local.bytes(), payload(5, 64))
	e.must(readable.mr.Close(), "Close of the first region")
	local.put(0, payload(6, 64))
	e.do(c.a, write(2, writable, 0, local.sge(0, 64)))
	e.same(writable.bytes(), payload(6, 64))
	e.post(c.a, read(3, writable, 0, local.sge(0, 64)))
	e.fails(c.a, 3, e.orRetryExc(verbs.StatusRemAccessErr)...)
}

// Memory cannot be freed while it is registered.
func memoryFreeRefused(e *env) {
	mem := e.memory(4096)
	first := e.register(e.a.pd, mem, verbs.AccessAll)
	second := e.register(e.a.pd, mem, verbs.AccessAll)
	e.refused("Free of memory with two regions", mem.Free(), verbs.ErrBusy)
	e.must(first.Close(), "Close")
	e.refused("Free of memory with one region", mem.Free(), verbs.ErrBusy)
	e.must(errorOf(mem.WriteAt([]byte{7}, 4095)), "WriteAt") // still mapped
	e.must(second.Close(), "Close")
	e.must(second.Close(), "Close a second time")
	e.must(mem.Free(), "Free")
}

// Freed memory cannot be registered.
func memoryRegisterFreed(e *env) {
	mem := e.memory(4096)
	e.must(mem.Free(), "Free")
	e.refused("RegisterMemory of freed memory", errorOf(e.a.pd.RegisterMemory(mem, verbs.AccessAll)), verbs.ErrClosed)
}

// A receive whose memory is deregistered before a message arrives fails, and the memory is not
// touched.
func memoryDeregisterUnderReceive(e *env) {
	c := e.rc()
	dst, src := e.painted(e.b, 64), e.filled(e.a, 1, 64)
	e.postRecv(c.b, recv(1, dst.sge(0, 64)))
	e.must(dst.mr.Close(), "Close of a region in use")
	e.post(c.a, send(2, src.sge(0, 64)))
	e.fails(c.b, 1, verbs.StatusLocProtErr)
	e.fails(c.a, 2, e.orRetryExc(verbs.StatusRemOpErr)...)
	e.untouched(dst)
}

// The target of outstanding WRITEs may be deregistered: after Close returns, it is no longer
// written.
func memoryDeregisterUnderTraffic(e *env) {
	const size = 1 << 16
	c := e.rc()
	dst, src := e.buf(e.b, size), e.filled(e.a, 1, size)
	for id := range uint64(32) {
		e.post(c.a, write(id, dst, 0, src.sge(0, size)))
	}
	e.must(dst.mr.Close(), "Close of a region in use")
	dst.paint()
	failed := false
	for id, wc := range e.wait(c.a.cq, 32) {
		switch {
		case wc.WRID != uint64(id):
			e.Fatalf("completion %d has wr_id %d", id, wc.WRID)
		case failed:
			e.failed(wc, c.a, uint64(id), verbs.StatusWRFlushErr)
		case wc.Status != verbs.StatusSuccess:
			failed = true
			e.failed(wc, c.a, uint64(id), e.orRetryExc(verbs.StatusRemAccessErr)...)
		}
	}
	e.untouched(dst)
}
