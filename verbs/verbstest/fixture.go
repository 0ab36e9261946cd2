package verbstest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"ibverbx/verbs"
)

// env is a test's environment: two sides with a protection domain each, and helpers that create
// objects and close them in dependency order when the test ends.
type env struct {
	*testing.T
	pair *Pair
	name string // as in Pair.Departures
	a, b *side
}

// side is one of the two contexts.
type side struct {
	name string
	ctx  verbs.Context
	attr verbs.DeviceAttr
	port uint8
	gid  verbs.GID
	pd   verbs.PD
	seen []verbs.Event // removed from ctx and not yet checked
}

func (e *env) start() {
	e.Helper()
	e.a = e.side("A", e.pair.A, e.pair.PortA, e.pair.GIDA)
	e.b = e.side("B", e.pair.B, e.pair.PortB, e.pair.GIDB)
}

func (e *env) side(name string, ctx verbs.Context, port uint8, gid verbs.GID) *side {
	e.Helper()
	attr, err := ctx.QueryDevice()
	e.must(err, "QueryDevice of %s", name)
	s := &side{name: name, ctx: ctx, attr: attr, port: max(port, 1), gid: gid}
	s.pd = e.newPD(s)
	return s
}

// sub runs a subtest.
func (e *env) sub(name string, run func(e *env)) {
	e.Helper()
	e.Run(name, func(t *testing.T) {
		s := *e
		s.T, s.name = t, e.name+"/"+name
		s.skipDeparture()
		run(&s)
	})
}

func (e *env) skipDeparture() {
	if reason, ok := e.pair.Departures[e.name]; ok {
		e.Skipf("departs from the specification: %s", reason)
	}
}

// must aborts the test unless err is nil.
func (e *env) must(err error, format string, args ...any) {
	if err != nil {
		e.Helper() // formatting takes longer than a poll
		e.Fatalf(format+": %v", append(args, err)...)
	}
}

// refused fails the test unless err is one of the given sentinels.
func (e *env) refused(what string, err error, want ...error) {
	e.Helper()
	for _, w := range want {
		if errors.Is(err, w) {
			return
		}
	}
	e.Errorf("%s = %v, want an error that wraps %q", what, err, want)
}

// errorOf returns the error of a call with two results.
func errorOf[T any](_ T, err error) error { return err }

// rejectsPost returns the check of a post that must accept n requests and fail with one of the
// errors; an empty list means any error.
func (e *env) rejectsPost(what string, n int, want ...error) func(got int, err error) {
	return func(got int, err error) {
		e.Helper()
		if got != n || err == nil {
			e.Fatalf("%s = %d, %v, want %d and an error", what, got, err, n)
		}
		if len(want) > 0 {
			e.refused(what, err, want...)
		}
	}
}

// rejectsCreate returns the check of a constructor that must fail with one of the errors. It
// closes an object created nevertheless.
func (e *env) rejectsCreate(what string, want ...error) func(made closer, err error) {
	return func(made closer, err error) {
		e.Helper()
		e.refused(what, err, want...)
		if err == nil {
			e.must(made.Close(), "Close")
		}
	}
}

type closer interface{ Close() error }

// closeLater closes c when the test ends. Close is idempotent, so a test may close objects itself.
func (e *env) closeLater(what string, c closer) {
	e.Cleanup(func() {
		if err := c.Close(); err != nil {
			e.Errorf("close %s at the end of the test: %v", what, err)
		}
	})
}

// The need methods skip the test if a device lacks something.

func (e *env) needCap(c verbs.Capabilities, name string, sides ...*side) {
	e.Helper()
	if len(sides) == 0 {
		sides = []*side{e.a, e.b}
	}
	for _, s := range sides {
		if s.attr.Capabilities&c == 0 {
			e.Skipf("device %s lacks %s", s.ctx.Device().Name(), name)
		}
	}
}

func (e *env) needUC() { e.Helper(); e.needCap(verbs.CapUC, "CapUC") }
func (e *env) needUD() { e.Helper(); e.needCap(verbs.CapUD, "CapUD") }

func (e *env) needAtomics() {
	e.Helper()
	e.needHost("atomics are instructions of the CPU")
	for _, s := range []*side{e.a, e.b} {
		if s.attr.Atomic == verbs.AtomicNone {
			e.Skipf("device %s has no atomics", s.ctx.Device().Name())
		}
	}
}

// needHost skips the test if the memory belongs to a device.
func (e *env) needHost(why string) {
	e.Helper()
	if e.pair.Device {
		e.Skipf("a device has the memory: %s", why)
	}
}

// needLossless skips the test on a lossy path.
func (e *env) needLossless(why string) {
	e.Helper()
	if e.pair.Lossy {
		e.Skipf("the path is lossy: %s", why)
	}
}

// rounds scales the length of a long test.
func (e *env) rounds(n int) int {
	if testing.Short() || e.pair.Lossy {
		return max(n/20, 1)
	}
	return n
}

// otherPD returns s with a separate protection domain.
func (e *env) otherPD(s *side) *side {
	e.Helper()
	other := *s
	other.pd = e.newPD(s)
	return &other
}

func (e *env) newPD(s *side) verbs.PD {
	e.Helper()
	pd, err := s.ctx.AllocPD()
	e.must(err, "AllocPD on %s", s.name)
	e.closeLater("PD", pd)
	return pd
}

func (e *env) newCQ(s *side, depth int, w *verbs.Waker) verbs.CQ {
	e.Helper()
	cq, err := s.ctx.CreateCQ(verbs.CQConfig{Depth: depth, Waker: w})
	e.must(err, "CreateCQ on %s", s.name)
	e.closeLater("CQ", cq)
	return cq
}

// newSRQ returns an SRQ on s. It skips the test if the device does not support SRQs.
func (e *env) newSRQ(s *side, cfg verbs.SRQConfig) verbs.SRQ {
	e.Helper()
	e.needCap(verbs.CapSRQ, "CapSRQ", s)
	srq, err := s.pd.CreateSRQ(cfg)
	e.must(err, "CreateSRQ on %s", s.name)
	e.closeLater("SRQ", srq)
	return srq
}

// buf is registered memory.
type buf struct {
	mem *verbs.Memory
	mr  verbs.MR
}

// buf returns size zero bytes on s, with all access rights for both sides.
func (e *env) buf(s *side, size int) *buf {
	e.Helper()
	return e.bufWith(s.pd, size, verbs.AccessAll)
}

// filled returns a buf of n bytes that holds payload(seed, n).
func (e *env) filled(s *side, seed uint64, n int) *buf {
	e.Helper()
	b := e.buf(s, n)
	b.put(0, payload(seed, n))
	return b
}

// painted returns a buf of n guard bytes.
func (e *env) painted(s *side, n int) *buf {
	e.Helper()
	b := e.buf(s, n)
	b.paint()
	return b
}

func (e *env) bufWith(pd verbs.PD, size int, access verbs.Access) *buf {
	e.Helper()
	mem := e.memory(size)
	return &buf{mem: mem, mr: e.register(pd, mem, access)}
}

func (e *env) memory(size int) *verbs.Memory {
	e.Helper()
	alloc := e.pair.Alloc
	if alloc == nil {
		alloc = func(size int) (*verbs.Memory, error) { return verbs.AllocMemory(size, nil) }
	}
	mem, err := alloc(size)
	e.must(err, "allocate %d bytes", size)
	e.Cleanup(func() {
		if err := mem.Free(); err != nil {
			e.Errorf("free memory at the end of the test: %v", err)
		}
	})
	return mem
}

func (e *env) register(pd verbs.PD, mem *verbs.Memory, access verbs.Access) verbs.MR {
	e.Helper()
	mr, err := pd.RegisterMemory(mem, access)
	e.must(err, "RegisterMemory of %d bytes with access %#x", mem.Len(), uint32(access))
	e.closeLater("MR", mr)
	return mr
}

// bytes returns the memory, or a copy of device memory.
func (b *buf) bytes() []byte {
	if b.mem.Device() == nil {
		return b.mem.Bytes()
	}
	p := make([]byte, b.mem.Len())
	if _, err := b.mem.ReadAt(p, 0); err != nil {
		panic(err) // tests that make copies fail do not read their bytes
	}
	return p
}

// at is the address of the byte at off.
func (b *buf) at(off int) uint64 { return b.mr.Addr() + uint64(off) }

func (b *buf) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: b.at(off), Length: uint32(n), LKey: b.mr.LKey()}
}

// part returns n bytes at off as elements of a work request. Without bytes it is empty, because
// some hardware interprets an element of length 0 as 2 GiB.
func (b *buf) part(off, n int) []verbs.SGE {
	if n == 0 {
		return nil
	}
	return []verbs.SGE{b.sge(off, n)}
}

// guard is the content of memory that must not be written.
const guard = 0xa5

// paint fills the memory with guard bytes.
func (b *buf) paint() { b.paintAt(0, b.mem.Len()) }

// paintAt fills n bytes at off with guard bytes.
func (b *buf) paintAt(off, n int) { b.put(off, bytes.Repeat([]byte{guard}, n)) }

// put stores p at off.
func (b *buf) put(off int, p []byte) {
	if _, err := b.mem.WriteAt(p, int64(off)); err != nil {
		panic(err)
	}
}

// holds fails the test unless the memory holds want at off and guard bytes everywhere else.
func (e *env) holds(b *buf, off int, want []byte) {
	e.Helper()
	e.same(b.bytes()[off:off+len(want)], want)
	e.guarded(b, 0, off)
	e.guarded(b, off+len(want), b.mem.Len())
}

// guarded fails the test unless the bytes in [from,to) are guard bytes.
func (e *env) guarded(b *buf, from, to int) {
	e.Helper()
	for i, c := range b.bytes()[from:to] {
		if c != guard {
			e.Fatalf("byte %d of [%d,%d) = %#02x, want it untouched (%#02x)", from+i, from, to, c, guard)
		}
	}
}

// untouched fails the test unless all bytes are guard bytes.
func (e *env) untouched(b *buf) {
	e.Helper()
	e.holds(b, 0, nil)
}

func (e *env) same(got, want []byte) {
	e.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			e.Fatalf("content differs at byte %d of %d: got % x, want % x", i, len(want),
				got[min(i, len(got)):min(i+8, len(got))], want[i:min(i+8, len(want))])
		}
	}
	e.Fatalf("content has %d bytes, want %d", len(got), len(want))
}

// payload returns n bytes that depend on seed and position, without long runs of guard bytes (a
// xorshift sequence).
func payload(seed uint64, n int) []byte {
	p := make([]byte, 0, n+7)
	for x := seed*0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d; len(p) < n; {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		p = binary.LittleEndian.AppendUint64(p, x)
	}
	return p[:n]
}

// eachSize runs a subtest for message sizes that cross every boundary: packets, pages,
// words. UC lacks flow control, so sizes that a slow receiver may drop are omitted.
// The message is at offset 3 of src, on c.a's side; dst, on c.b's side, is painted.
func (e *env) eachSize(c *conn, run func(e *env, n int, src, dst *buf)) {
	e.Helper()
	limit := min(e.a.attr.MaxMsgSize, e.b.attr.MaxMsgSize)
	if c.a.Type() == verbs.UC {
		limit = min(limit, 1<<16+1)
	}
	for _, n := range []int{0, 1, 7, 8, 4095, 4096, 4097, 1<<16 + 1, 1<<20 + 3} {
		if uint64(n) <= limit {
			e.sub(fmt.Sprintf("size=%d", n), func(e *env) {
				src, dst := e.buf(c.a.side, n+5), e.painted(c.b.side, n+32)
				src.put(3, payload(uint64(n), n))
				run(e, n, src, dst)
			})
		}
	}
}
