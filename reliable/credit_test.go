package reliable_test

import (
	"bytes"
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// star is senders that write to one receiver, on a clock of the test.
type star struct {
	now     int64
	link    *softnic.FaultLink
	to      *side
	more    []verbs.QP // of the receiver, beside its first
	senders []*side
}

// newStar returns n senders, each with a QP to the receiver, whose port carries rate bytes per second. Each
// memory has size bytes.
func newStar(tb testing.TB, imp softnic.Impairment, cfg reliable.Config, n int, rate float64, size int) *star {
	tb.Helper()
	s := &star{now: 1}
	clock := func() int64 { return s.now }
	var err error
	s.link, err = softnic.NewFaultLink(&softnic.FaultConfig{Seed: 5, Now: clock, Impairment: imp, Queue: 1 << 16})
	must(tb, err)
	cfg.Now, cfg.MinProbe = clock, 50_000
	s.to = newSide(tb, s.link, cfg, size)
	must(tb, s.link.Bottleneck(s.to.nic, rate, 1<<30))
	qp := s.to.qp
	for i := range n {
		if i > 0 {
			qp = s.to.another(tb)
			s.more = append(s.more, qp)
		}
		from := newSide(tb, s.link, cfg, size)
		join(tb, from.qp, qp)
		s.senders = append(s.senders, from)
	}
	s.until(tb, s.now+int64(100*time.Microsecond), 0) // the handshake of new connections
	return s
}

// write posts a WRITE of n bytes from sender i to the receiver.
func (s *star) write(tb testing.TB, i, n int) {
	tb.Helper()
	wr := verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: s.to.mr.Addr(), RKey: s.to.mr.RKey()}
	wr.SetSGE(s.senders[i].sge(0, n))
	s.senders[i].post(tb, wr)
}

// until advances time to a limit, or until the senders have n completions, which it returns.
func (s *star) until(tb testing.TB, limit int64, n int) (got []verbs.WC) {
	tb.Helper()
	sides, wcs := append([]*side{s.to}, s.senders...), make([]verbs.WC, 16)
	for {
		next, pending := s.link.Step()
		for _, e := range sides {
			if at, ok := e.ctx.(reliable.Stepper).Step(); ok && (!pending || at < next) {
				next, pending = at, true
			}
			k, err := e.cq.Poll(wcs)
			if err != nil { // must is slower than a poll
				tb.Fatal(err)
			}
			got = append(got, wcs[:k]...)
		}
		if at, ok := s.link.Next(); ok && (!pending || at < next) {
			next, pending = at, true
		}
		if len(got) >= n && n > 0 {
			return got
		}
		if !pending || next > limit {
			s.now = max(s.now, limit)
			return got
		}
		s.now = max(s.now, next)
	}
}

// TestCreditsAct: four senders share the port of one receiver. Without credits they fill its queue. With
// credits the queue stays within the allowance of idle senders, and the port is just as busy.
func TestCreditsAct(t *testing.T) {
	reliable.OverUC(t, "receives for four windows")
	const senders, size, rate, idle = 4, 8 << 20, 12.5e9, 128 << 10
	run := func(cfg reliable.Config) (queue int, took int64) {
		s := newStar(t, softnic.Impairment{Delay: 5 * time.Microsecond, Rate: rate}, cfg, senders, rate, size)
		start := s.now
		for i := range senders {
			s.write(t, i, size)
		}
		for _, wc := range s.until(t, int64(time.Second), senders) {
			must(t, wc.Err())
		}
		return s.link.LongestQueue(s.to.nic), s.now - start
	}
	fixed, fixedTook := run(reliable.Config{NoCredits: true, WindowBytes: 4 << 20})
	credits, creditsTook := run(reliable.Config{})
	t.Logf("queue of %d bytes in %d us with fixed windows, of %d in %d us with credits", fixed, fixedTook/1000, credits, creditsTook/1000)
	if fixed < 3*(4<<20) {
		t.Errorf("a queue of %d bytes without credits, want most of %d windows of 4 MiB", fixed, senders)
	}
	if credits > 2*senders*idle {
		t.Errorf("a queue of %d bytes with credits, want at most twice the %d of %d idle senders", credits, idle, senders)
	}
	if float64(fixedTook) < 0.98*float64(creditsTook) {
		t.Errorf("took %d ns without credits and %d with them, want at least 0.98 of the rate", fixedTook, creditsTook)
	}
}

// TestCreditsOfReads: a host reads from four others concurrently. Their responses wait for its credit.
func TestCreditsOfReads(t *testing.T) {
	const senders, size, rate, idle = 4, 4 << 20, 12.5e9, 128 << 10
	s := newStar(t, softnic.Impairment{Delay: 5 * time.Microsecond, Rate: rate}, reliable.Config{}, senders, rate, size)
	for i, q := range append([]verbs.QP{s.to.qp}, s.more...) {
		s.senders[i].fill(7) // the same data to the same target, from each
		if n, err := q.PostSend([]verbs.SendWR{s.to.read(s.senders[i], 0, size)}); n != 1 {
			t.Fatalf("PostSend = %d, %v, want 1", n, err)
		}
	}
	for _, wc := range s.until(t, int64(time.Second), senders) {
		must(t, wc.Err())
	}
	if queue := s.link.LongestQueue(s.to.nic); queue > 2*senders*idle {
		t.Errorf("a queue of %d bytes of answers, want at most twice the %d of %d idle senders", queue, idle, senders)
	}
	if !bytes.Equal(s.to.mem.Bytes(), s.senders[0].mem.Bytes()) {
		t.Errorf("the bytes that were read are wrong")
	}
}

// TestCreditsOverLoss: data, requests and grants are lost while paths fail, with QPs that share connections.
// No transfer stalls.
func TestCreditsOverLoss(t *testing.T) {
	const senders, size = 3, 2 << 20
	for _, flows := range []int{1, 2} {
		s := newStar(t, softnic.Impairment{Delay: 5 * time.Microsecond, Loss: 0.02}, reliable.Config{Flows: flows}, senders, 12.5e9, size)
		s.senders[0].fill(1)
		for i := range senders {
			copy(s.senders[i].mem.Bytes(), s.senders[0].mem.Bytes()) // the order of the writes is irrelevant
			s.write(t, i, size)
		}
		got := len(s.until(t, s.now+int64(100*time.Microsecond), senders))
		for i := range senders {
			must(t, s.senders[i].nic.FailQP(s.senders[i].qp.(reliable.StatsReader).Paths()[i].QPN))
		}
		for _, wc := range s.until(t, int64(time.Second), senders-got) {
			must(t, wc.Err())
		}
		if s.now > int64(100*time.Millisecond) || !bytes.Equal(s.to.mem.Bytes(), s.senders[0].mem.Bytes()) {
			t.Fatalf("%d flows: %d bytes three times took %d ns, want them whole in 100 ms", flows, size, s.now)
		}
	}
}

// TestCreditsAtOneEnd connects two ends of which only one grants credit: data moves in both directions, and
// only the granting end throttles its senders.
func TestCreditsAtOneEnd(t *testing.T) {
	const size = 2 << 20
	for _, with := range []bool{false, true} {
		s := newStar(t, softnic.Impairment{Delay: 5 * time.Microsecond, Rate: 12.5e9}, reliable.Config{NoCredits: !with}, 1, 12.5e9, size)
		clock := func() int64 { return s.now }
		for range 3 {
			from := newSide(t, s.link, reliable.Config{Now: clock, MinProbe: 50_000, NoCredits: with}, size)
			q := s.to.another(t)
			join(t, from.qp, q)
			s.senders, s.more = append(s.senders, from), append(s.more, q)
		}
		s.until(t, s.now+int64(100*time.Microsecond), 0)
		for i := range s.senders {
			s.write(t, i, size)
		}
		for i, q := range s.more {
			wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: s.senders[i+1].mr.Addr() + size/2, RKey: s.senders[i+1].mr.RKey()}
			wr.SetSGE(s.to.sge(0, size/2))
			if n, err := q.PostSend([]verbs.SendWR{wr}); n != 1 {
				t.Fatalf("PostSend = %d, %v, want 1", n, err)
			}
		}
		for _, wc := range s.until(t, int64(time.Second), 7) {
			must(t, wc.Err())
		}
		if queue := s.link.LongestQueue(s.to.nic); (queue < 2<<20) != with {
			t.Errorf("credits of the receiver %v: a queue of %d bytes, want less than 2 MiB with them, and more without", with, queue)
		}
	}
}

// TestIdleSendersWriteAtOnce: idle senders write a small message each without a round trip for credit.
func TestIdleSendersWriteAtOnce(t *testing.T) {
	const delay, small = 10 * time.Microsecond, 32 << 10
	s := newStar(t, softnic.Impairment{Delay: delay}, reliable.Config{}, 2, 12.5e9, small)
	for i := range 40 {
		s.now += int64(time.Millisecond)
		start := s.now
		s.write(t, i%2, small)
		for _, wc := range s.until(t, start+int64(time.Second), 1) {
			must(t, wc.Err())
		}
		if took := time.Duration(s.now - start); took >= 3*delay {
			t.Fatalf("WRITE %d took %v, want less than %v: a round trip and no other", i, took, 3*delay)
		}
		s.until(t, s.now+int64(time.Millisecond), 0)
	}
}

// TestCreditsClose closes QPs at either end while their credit is outstanding, and resets a sender's NIC.
// Their demand is dropped, and the others get the whole link.
func TestCreditsClose(t *testing.T) {
	const size, rate = 4 << 20, 1e9 // a millisecond for a MiB
	s := newStar(t, softnic.Impairment{Delay: 5 * time.Microsecond}, reliable.Config{GiveUp: int64(10 * time.Millisecond)}, 4, rate, size)
	for i := range 4 {
		s.write(t, i, size)
	}
	s.until(t, s.now+int64(500*time.Microsecond), 0)
	must(t, s.more[0].Close())             // of sender 1, at the receiver
	must(t, s.senders[2].qp.Close())       // of sender 2, at its own end
	s.senders[3].nic.Reset()               // fails the QP of sender 3
	must(t, s.more[0].Close())             // closing twice is harmless
	start, again := s.now, s.to.another(t) // reuses the closed QP's number
	for ended := false; !ended; {
		wc := s.until(t, start+int64(time.Second), 1)[0]
		switch ended = wc.WRID == 0; {
		case ended && wc.Err() != nil:
			t.Fatalf("completion %+v (%v), want success of the sender that is left", wc, wc.Err())
		case !ended && wc.Err() == nil:
			t.Fatalf("completion %+v, want only sender 0 to succeed", wc)
		}
	}
	// Credit granted to closed QPs is unused and granted again after a while.
	if took := s.now - start; took > int64(9*time.Millisecond) {
		t.Fatalf("4 MiB took %d us, want no more than twice the time of the link", took/1000)
	}
	from := newSide(t, s.link, reliable.Config{Now: func() int64 { return s.now }, MinProbe: 50_000}, size)
	s.until(t, s.now+int64(50*time.Millisecond), 0) // sender 1 times out
	s.senders = append(s.senders, from)
	join(t, from.qp, again)
	start = s.now
	s.write(t, 4, size)
	if wc := s.until(t, start+int64(time.Second), 1)[0]; wc.Err() != nil || s.now-start > int64(6*time.Millisecond) {
		t.Fatalf("a new QP ends with %v after %d us, want success within 6 ms", wc.Err(), (s.now-start)/1000)
	}
	s.until(t, s.now+int64(time.Second), 0)
	if at, ok := s.to.ctx.(reliable.Stepper).Step(); ok {
		t.Fatalf("the receiver still has something to do at %d, want nothing: all is granted or gone", at)
	}
}

// TestCreditsPassive writes, in real time, from three sides to one that neither posts nor polls: its
// goroutine grants.
func TestCreditsPassive(t *testing.T) {
	const senders, size = 3, 4 << 20
	link := softnic.NewMemoryLink(nil)
	to := newSide(t, link, reliable.Config{}, senders*size)
	var from []*side
	for i := range senders {
		f, q := newSide(t, link, reliable.Config{}, size), to.qp
		if i > 0 {
			q = to.another(t)
		}
		join(t, f.qp, q)
		from = append(from, f)
	}
	for range 3 {
		for i, f := range from { // they write concurrently, each to its own range
			wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: to.mr.Addr() + uint64(i*size), RKey: to.mr.RKey()}
			wr.SetSGE(f.sge(0, size))
			f.post(t, wr)
		}
		for _, f := range from {
			must(t, f.wait(t, 1)[0].Err())
		}
	}
}
