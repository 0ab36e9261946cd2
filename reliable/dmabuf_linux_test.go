package reliable_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// onDevice replaces the memory of s by a dma-buf. The wrapper does not know that it is also mapped in this
// process. It has the addresses of that mapping.
func (s *side) onDevice(tb testing.TB) {
	tb.Helper()
	must(tb, s.mr.Close())
	size := s.mem.Len()
	must(tb, s.mem.Free())
	fd, b := enginetest.DMABuf(tb, size)
	var err error
	s.mem, err = verbs.AdoptMemory(b)
	must(tb, err)
	s.mr, err = s.pd.RegisterDMABuf(fd, 0, uint64(size), s.mem.Addr(), verbs.AccessAll)
	must(tb, err)
}

// devicePair returns two connected sides with dma-bufs as memory.
func devicePair(tb testing.TB, link softnic.Link, cfg reliable.Config, size int) (a, b *side) {
	tb.Helper()
	a, b = newSide(tb, link, cfg, size), newSide(tb, link, cfg, size)
	a.onDevice(tb)
	b.onDevice(tb)
	connect(tb, a, b)
	return a, b
}

// TestTransferDMABuf moves every kind of message between two dma-bufs over every network. The NIC repairs
// lost fragments of WRITEs and places SENDs.
func TestTransferDMABuf(t *testing.T) {
	const size = 300_000
	for name, link := range links(t) {
		t.Run(name, func(t *testing.T) {
			a, b := devicePair(t, link(), reliable.Config{}, size)
			for _, n := range []int{0, 1, 100, 4096, 32<<10 + 1, size} {
				for op := verbs.OpRDMAWrite; op <= verbs.OpRDMARead; op++ {
					t.Run(fmt.Sprintf("%v/%d", op, n), func(t *testing.T) { transfer(t, a, b, op, n) })
				}
			}
		})
	}
}

// TestNoAllocationsDMABuf: copying through the NIC does not allocate either.
func TestNoAllocationsDMABuf(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const size = 1 << 20
	now := int64(0)
	clock := func() int64 { now += 100; return now }
	x, y := devicePair(t, softnic.NewMemoryLink(&softnic.MemoryConfig{Now: clock}), reliable.Config{Now: clock}, size)
	allocatesNothing(t, x, y, size)
}

// TestDMABufCostsNoChunks: with losses, a WRITE to a dma-buf retransmits about as many chunks as one to host
// memory. A copy takes 3 us, and the acknowledgement waits for it.
func TestDMABufCostsNoChunks(t *testing.T) {
	const size = 8 << 20
	again := map[bool]uint64{}
	for _, device := range []bool{false, true} {
		w := newWorld(t, softnic.Impairment{Delay: 10_000, Rate: 50e9, Loss: 0.005})
		cfg := w.config(reliable.Config{Paths: 4})
		a, b := newSide(t, w.link, cfg, size), newSide(t, w.link, cfg, size)
		if device {
			b.onDevice(t)
		}
		connect(t, a, b)
		must(t, w.link.Impair(b.nic, b.nic, softnic.Impairment{Delay: 3_000}))
		a.fill(1)
		for i := range 8 {
			wr := verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
			wr.SetSGE(a.sge(0, size))
			a.post(t, wr)
		}
		for done, end := 0, w.now+int64(patience); done < 8; {
			w.step(end, []*side{a, b})
			var wcs [8]verbs.WC
			k, err := a.cq.Poll(wcs[:])
			must(t, err)
			if done += k; w.now >= end {
				t.Fatalf("%d of 8 messages after a minute", done)
			}
		}
		again[device] = a.qp.(reliable.StatsReader).Stats().Retransmitted
		if dups := b.qp.(reliable.StatsReader).Stats().Duplicates; !bytes.Equal(a.mem.Bytes(), b.mem.Bytes()) {
			t.Errorf("device %v: the bytes differ, with %d duplicates", device, dups)
		}
		t.Logf("device %v: %+v in %d us", device, a.qp.(reliable.StatsReader).Stats(), w.now/1000)
	}
	if again[false] == 0 || again[true] > again[false]+again[false]/4 {
		t.Errorf("%d chunks are sent again to a dma-buf, %d to the host, want at most a quarter more", again[true], again[false])
	}
}

// TestDMABufMixed receives a SEND into a dma-buf and host memory with one receive.
func TestDMABufMixed(t *testing.T) {
	a, b := newPair(t, softnic.NewMemoryLink(nil), reliable.Config{}, 100_000)
	host, hostMR := b.mem, b.mr
	fd, device := enginetest.DMABuf(t, 100_000)
	dev, err := b.pd.RegisterDMABuf(fd, 0, 100_000, 0, verbs.AccessLocalWrite)
	must(t, err)
	a.fill(1)
	recv := verbs.RecvWR{WRID: 3}
	recv.SetSGE(verbs.SGE{Addr: hostMR.Addr(), Length: 50_000, LKey: hostMR.LKey()}, verbs.SGE{Addr: 10, Length: 50_000, LKey: dev.LKey()})
	if n, err := b.qp.PostRecv([]verbs.RecvWR{recv}); n != 1 {
		t.Fatalf("PostRecv = %d, %v, want 1", n, err)
	}
	a.post(t, a.send(0, 100_000))
	if wc := b.wait(t, 1)[0]; wc.Err() != nil || wc.ByteLen != 100_000 {
		t.Fatalf("receive %+v (%v), want 100000 bytes", wc, wc.Err())
	}
	if !bytes.Equal(host.Bytes()[:50_000], a.mem.Bytes()[:50_000]) || !bytes.Equal(device[10:50_010], a.mem.Bytes()[50_000:]) {
		t.Error("the bytes differ")
	}
	must(t, dev.Close())
}

// TestDMABufRefused: a registration refused by the NIC is refused without side effects. A device without
// dma-buf support returns a descriptive error.
func TestDMABufRefused(t *testing.T) {
	link := softnic.NewMemoryLink(nil)
	s := newSide(t, link, reliable.Config{Paths: 2}, 4096)
	fd, _ := enginetest.DMABuf(t, 4096)
	for _, bad := range []struct {
		fd             int
		offset, length uint64
	}{{-1, 0, 4096}, {fd, 0, 0}, {fd, 0, 4097}, {fd, 4097, 1}} {
		if mr, err := s.pd.RegisterDMABuf(bad.fd, bad.offset, bad.length, 0, verbs.AccessAll); mr != nil || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("RegisterDMABuf(%d, %d, %d) = %v, %v, want %v", bad.fd, bad.offset, bad.length, mr, err, verbs.ErrInvalid)
		}
	}
	attr, err := s.ctx.QueryDevice()
	must(t, err)
	if attr.Capabilities&verbs.CapDMABuf == 0 {
		t.Error("the wrapped device does not announce dma-bufs, the NIC below does")
	}
}

// fragile is a context that tracks the RC QPs connected to themselves.
type fragile struct {
	interposer
	mu  sync.Mutex
	own []verbs.QP
}

type fragileQP struct {
	verbs.QP
	ctx *fragile
}

func (q *fragileQP) Connect(to verbs.Endpoint) error {
	if own, err := q.Endpoint(); err == nil && own.QPN == to.QPN && own.GID == to.GID {
		q.ctx.mu.Lock()
		q.ctx.own = append(q.ctx.own, q.QP)
		q.ctx.mu.Unlock()
	}
	return q.QP.Connect(to)
}

// TestCopierFails: the QP that copies into a dma-buf fails repeatedly. It is replaced each time, and all data
// arrives.
func TestCopierFails(t *testing.T) {
	reliable.OverUC(t, "QPs to find the copier among")
	link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 1})
	must(t, err)
	const size, messages = 100_000, 30
	f := &fragile{}
	f.qp = func(typ verbs.QPType, q verbs.QP) verbs.QP {
		if typ != verbs.RC {
			return q
		}
		return &fragileQP{q, f}
	}
	a := newSide(t, link, reliable.Config{Paths: 4}, size)
	b := newSideOver(t, link, reliable.Config{Paths: 4}, size, f.over)
	b.onDevice(t)
	connect(t, a, b)
	for i := range messages {
		a.fill(byte(i))
		b.recv(t, uint64(i), 0, size)
		a.post(t, a.send(0, size))
		f.mu.Lock()
		last := f.own[len(f.own)-1]
		f.mu.Unlock()
		_ = last.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState) // it may be closed
		if wc := b.wait(t, 1)[0]; wc.Err() != nil || wc.WRID != uint64(i) {
			t.Fatalf("receive %d ends as %+v: %v", i, wc, wc.Err())
		}
		if wc := a.wait(t, 1)[0]; wc.Err() != nil || !bytes.Equal(a.mem.Bytes(), b.mem.Bytes()) {
			t.Fatalf("message %d: %v, and the bytes differ at %d", i, wc.Err(), enginetest.FirstDifference(a.mem.Bytes(), b.mem.Bytes()))
		}
	}
	if len(f.own) < 2 {
		t.Errorf("%d QPs for copies, want another after each failure", len(f.own))
	}
}

// slowWorld is a pair in virtual time in which copying a chunk into b's dma-buf takes a millisecond. The
// first fragment of a WRITE is lost, and the following ones wait in the copier.
func slowWorld(t *testing.T, size int) (w *world, a, b *side) {
	t.Helper()
	w = newWorld(t, softnic.Impairment{})
	a, b = devicePair(t, w.link, w.config(reliable.Config{Paths: 2}), size)
	must(t, w.link.Impair(b.nic, b.nic, softnic.Impairment{Delay: 1_000_000}))
	return w, a, b
}

// toCopier posts a SEND of n bytes and runs until b copies it.
func toCopier(t *testing.T, w *world, a, b *side, n int) {
	t.Helper()
	wr := verbs.SendWR{WRID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	wr.SetSGE(a.sge(0, n))
	a.post(t, wr)
	for w.link.Stats(b.nic, b.nic).Sent == 0 {
		w.step(w.now+10_000, []*side{a, b})
	}
}

// TestDMABufCopyEndsWithQP: once the QP is in the error state, no copy writes to its receive buffers.
func TestDMABufCopyEndsWithQP(t *testing.T) {
	const size = 8192
	w, a, b := slowWorld(t, size)
	a.fill(1)
	clear(b.mem.Bytes())
	b.recv(t, 7, 0, size)
	toCopier(t, w, a, b, size)
	must(t, b.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState))
	if wc := b.wait(t, 1)[0]; wc.WRID != 7 || wc.Status != verbs.StatusWRFlushErr {
		t.Fatalf("receive %+v, want a flush", wc)
	}
	for end := w.now + 20_000_000; w.now < end; {
		w.step(end, []*side{a, b})
	}
	if !bytes.Equal(b.mem.Bytes(), make([]byte, size)) {
		t.Error("the memory of a flushed receive was written")
	}
}

// TestDMABufRegionClosed: the region is closed during a copy into it. The receive and the request fail as on
// a single NIC, and another QP of the PD continues.
func TestDMABufRegionClosed(t *testing.T) {
	const size = 8192
	w, a, b := slowWorld(t, size)
	qa, qb := a.another(t), b.another(t)
	join(t, qa, qb)
	b.recv(t, 7, 0, size)
	toCopier(t, w, a, b, size)
	must(t, b.mr.Close())
	var got [2][]verbs.WC
	run := func(n [2]int) {
		for end := w.now + int64(patience); len(got[0]) < n[0] || len(got[1]) < n[1]; {
			if w.now >= end {
				t.Fatalf("completions %+v after a minute", got)
			}
			w.step(end, []*side{a, b})
			for i, s := range []*side{a, b} {
				var wcs [4]verbs.WC
				k, err := s.cq.Poll(wcs[:])
				must(t, err)
				got[i] = append(got[i], wcs[:k]...)
			}
		}
	}
	run([2]int{1, 1})
	if s, r := got[0][0], got[1][0]; s.Status != verbs.StatusRemOpErr || r.Status != verbs.StatusLocProtErr || r.WRID != 7 {
		t.Fatalf("the request ends with %v, the receive with %v, want %v and %v", s.Status, r.Status, verbs.StatusRemOpErr, verbs.StatusLocProtErr)
	}
	fd, device := enginetest.DMABuf(t, size)
	mr, err := b.pd.RegisterDMABuf(fd, 0, size, 0, verbs.AccessAll)
	must(t, err)
	defer func() { must(t, mr.Close()) }()
	recv := verbs.RecvWR{WRID: 8}
	recv.SetSGE(verbs.SGE{Length: size, LKey: mr.LKey()})
	if n, err := qb.PostRecv([]verbs.RecvWR{recv}); n != 1 {
		t.Fatalf("PostRecv = %d, %v, want 1", n, err)
	}
	wr := a.send(0, size)
	if n, err := qa.PostSend([]verbs.SendWR{wr}); n != 1 {
		t.Fatalf("PostSend = %d, %v, want 1", n, err)
	}
	run([2]int{2, 2})
	if s, r := got[0][1], got[1][1]; s.Err() != nil || r.Err() != nil || !bytes.Equal(device, a.mem.Bytes()) {
		t.Errorf("the next message ends with %v and %v, and differs at %d", s.Err(), r.Err(), enginetest.FirstDifference(device, a.mem.Bytes()))
	}
}
