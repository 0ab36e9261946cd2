package softnic

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"testing"

	"ibverbx/internal/testslice"
	"ibverbx/verbs"
)

// TestGatesOpen: on a memory link in real time the gate of a pair opens after a number of plain calls.
// Queries and registrations leave it open; calls that modify objects shut it. The gate of a pair with
// too little work between two shuts opens later.
func TestGatesOpen(t *testing.T) {
	a, b := pairOn(t, NewMemoryLink(nil), 256)
	qa, qb := a.qp(verbs.RC, 16), b.qp(verbs.RC, 16)
	join(t, qa, qb)
	write := func(n int) {
		t.Helper()
		for range n {
			post(t, qa, a.to(b, verbs.OpRDMAWrite))
			a.poll()
		}
	}
	isOpen := func(want bool, when string) {
		t.Helper()
		p := qa.pair.Load()
		if got := p != nil && p.open.Load(); got != want {
			t.Fatalf("open = %v %s, want %v", got, when, want)
		}
	}
	write(openAfter)
	isOpen(false, "before enough calls")
	write(1)
	isOpen(true, "after enough calls")
	if got := a.nic.Stats().PacketsSent; got != openAfter+1 {
		t.Errorf("%d packets sent, want %d", got, openAfter+1)
	}
	mr, err := b.pd.RegisterMemory(b.mem, verbs.AccessAll)
	check(t, err)
	check(t, mr.Close())
	_, err = qb.Query()
	check(t, err)
	if _, err = b.ctx.CreateCQ(verbs.CQConfig{Depth: 1}); err != nil || qa.State() != verbs.StateRTS {
		t.Fatal(err)
	}
	post(t, qa, a.to(b, verbs.OpAtomicFetchAndAdd))
	a.poll()
	isOpen(true, "after calls that change nothing in it")
	for _, change := range []func(){
		func() { b.nic.SetPort(true) },
		func() { b.nic.Observe(nil) },
		func() { check(t, b.qp(verbs.RC, 1).Close()) },
	} {
		change()
		isOpen(false, "after a call that may change everything")
		write(minRequestsPerOpen + openAfter + 1)
		isOpen(true, "again")
	}
	b.nic.SetPort(true)
	write(openAfter + 1)
	b.nic.SetPort(true)
	write(2 * openAfter)
	isOpen(false, "although it did little the last time")
	write(1)
	isOpen(true, "after twice as many calls")
}

// TestGatesOpenTogether: two pairs alternate, and the second starts while the first is about to open, or is
// open. Both soon open and stay open: neither shuts the other's gate while it waits for its own.
func TestGatesOpenTogether(t *testing.T) {
	for head := range 2 * openAfter {
		a, b := pairOn(t, NewMemoryLink(nil), 256)
		var qps [2]*qp
		for i := range qps {
			qps[i] = a.qp(verbs.RC, 16)
			join(t, qps[i], b.qp(verbs.RC, 16))
		}
		write := func(q *qp) {
			t.Helper()
			post(t, q, a.to(b, verbs.OpRDMAWrite))
			a.poll()
		}
		for range head {
			write(qps[0])
		}
		for range 2 * openAfter {
			write(qps[0])
			write(qps[1])
		}
		for i, q := range qps {
			if p := q.pair.Load(); p == nil || !p.open.Load() {
				t.Fatalf("the gate of pair %d is shut after %d and %d calls, want it open", i, head, 2*openAfter)
			}
		}
		if got := qps[0].core.mu.openAfter; got > 2*openAfter {
			t.Fatalf("the next opening needs %d calls, want at most %d", got, 2*openAfter)
		}
	}
}

// TestGatesStayShut: gates never open in virtual time, nor on links with delayed delivery.
func TestGatesStayShut(t *testing.T) {
	fault, err := NewFaultLink(nil)
	check(t, err)
	for name, link := range map[string]Link{"virtual time": NewMemoryLink(&MemoryConfig{Now: func() int64 { return 0 }}), "fault": fault} {
		a, b := pairOn(t, link, 256)
		qa, qb := a.qp(verbs.RC, 64), b.qp(verbs.RC, 64)
		join(t, qa, qb)
		for range 4 * openAfter {
			post(t, qa, a.to(b, verbs.OpRDMAWrite))
			if len(qa.core.mu.open) > 0 {
				t.Fatalf("%s: a gate is open", name)
			}
			for len(a.poll()) == 0 {
				link.Step()
			}
		}
	}
}

// TestLooseIsTight runs the same random calls with gates that open as often as possible and with gates that
// stay shut. All observable results must be equal: return values, completions, memory, Stats and Query.
func TestLooseIsTight(t *testing.T) {
	const full = 60
	first, seeds := uint64(testslice.Of(t).First(full)), uint64(testslice.Of(t).Count(full))
	opened := 0
	for seed := first; seed < first+seeds; seed++ {
		mode := chaosMode{loose: true, depth: []int{512, 32}[seed%2]} // a small CQ overruns
		loose, n := lookBack(t, mode, seed, 0)
		tight, none := lookBack(t, mode, seed, neverOpen)
		if !slices.Equal(loose, tight) {
			t.Fatalf("seed %d: %s", seed, firstDifference(loose, tight))
		}
		if none != 0 {
			t.Fatalf("seed %d: gates were open at %d steps on a link where they stay shut", seed, none)
		}
		opened += n
	}
	if opened < int(seeds)*30 {
		t.Errorf("gates were open at %d of %d steps: the test compares too little", opened, seeds*600)
	}
}

// lookBack executes a chaos run and returns everything observable by a program, and the number of steps
// with open gates.
func lookBack(t *testing.T, mode chaosMode, seed uint64, need uint32) (seen []string, opened int) {
	c := newChaos(t, mode, seed)
	c.whole = true
	SetLoose(c.link.(*MemoryLink), need)
	c.watch = func() { opened += index(len(c.core.mu.open) > 0) }
	c.run(600)
	for i, s := range c.rigs {
		c.note("rig %d: %+v", i, s.nic.Stats())
		c.note("memory %x", sha256.Sum256(s.mem.Bytes()))
	}
	for _, a := range c.actors {
		attr, err := a.q.Query()
		c.note("QP %#x: %+v, %v; snd %d, epsn %d, msn %d, asked %d", a.q.num, attr, err, a.q.snd, a.q.epsn, a.q.msn, a.q.unackedPSNs)
	}
	return c.log, opened
}

func firstDifference(a, b []string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d is\n%.500s\nwith open gates, and\n%.500s\nwithout. Before it:\n%s", i, a[i], b[i], a[max(0, i-1)])
		}
	}
	return fmt.Sprintf("%d lines with open gates, %d without", len(a), len(b))
}

// TestDeregisterBesideGates: once a region is closed, copies from it have finished and new ones do not start.
func TestDeregisterBesideGates(t *testing.T) {
	for range 20 {
		link := NewMemoryLink(nil)
		SetLoose(link, 0)
		a, b := pairOn(t, link, 64)
		qa, qb := a.qp(verbs.RC, 16), b.qp(verbs.RC, 16)
		join(t, qa, qb)
		wr := a.to(b, verbs.OpRDMAWrite)
		wr.SetSGE(a.sge(0, 32<<10))
		mem := a.mem.Bytes()
		begun, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			var wc [1]verbs.WC
			for i := 0; wc[0].Status == verbs.StatusSuccess; i++ {
				if n, err := qa.PostSend([]verbs.SendWR{wr}); n != 1 {
					t.Error(err)
					return
				}
				if n, err := a.cq.Poll(wc[:]); n != 1 {
					t.Error(err)
					return
				}
				if i == 10 {
					close(begun)
				}
			}
			if wc[0].Status != verbs.StatusLocProtErr {
				t.Errorf("status %v, want %v", wc[0].Status, verbs.StatusLocProtErr)
			}
		}()
		<-begun
		check(t, a.mr.Close())
		for i := range mem {
			mem[i] = 0xff // with heapmem the race detector sees it
		}
		<-ended
	}
}

// TestGatesShareSlots: concurrent polls of several CQs release slots of one SRQ.
func TestGatesShareSlots(t *testing.T) {
	const n = 300_000
	s := &slotCount{taken: 2 * n}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range n {
				s.free(1)
			}
		})
	}
	wg.Wait()
	if got := s.room(2*n, 2*n); got != 2*n {
		t.Errorf("%d of %d slots came back", got, 2*n)
	}
}
