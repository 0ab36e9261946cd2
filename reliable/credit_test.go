package reliable_test

import (
	"bytes"
	"errors"
	"strings"
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

// newStar returns n senders, each with a QP to the receiver, whose port carries rate bytes per
// second. Their memories have size bytes.
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
	return s
}

// write posts a WRITE of n bytes from sender i to the receiver.
func (s *star) write(tb testing.TB, i, n int) {
	tb.Helper()
	wr := verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: s.to.mr.Addr(), RKey: s.to.mr.RKey()}
	wr.SetSGE(s.senders[i].sge(0, n))
	s.senders[i].post(tb, wr)
}

// until lets time pass to a limit, or until n completions have come to the senders, which it
// returns.
func (s *star) until(tb testing.TB, limit int64, n int) (got []verbs.WC) {
	tb.Helper()
	for {
		next, pending := s.link.Step()
		for _, e := range append([]*side{s.to}, s.senders...) {
			if at, ok := e.ctx.(reliable.Stepper).Step(); ok && (!pending || at < next) {
				next, pending = at, true
			}
			var wcs [16]verbs.WC
			k, err := e.cq.Poll(wcs[:])
			must(tb, err)
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

// TestCreditsAct lets four senders share the port of one receiver. With fixed windows they fill
// the queue in front of it; with credits it has what they had in hand, and the port is as
// busy.
func TestCreditsAct(t *testing.T) {
	const senders, size, rate = 4, 8 << 20, 12.5e9
	run := func(cfg reliable.Config) (queue int, took int64) {
		s := newStar(t, softnic.Impairment{Delay: 5 * time.Microsecond, Rate: rate}, cfg, senders, rate, size)
		for i := range senders {
			s.write(t, i, size)
		}
		for _, wc := range s.until(t, int64(time.Second), senders) {
			must(t, wc.Err())
		}
		return s.link.LongestQueue(s.to.nic), s.now
	}
	fixed, fixedTook := run(reliable.Config{})
	credits, creditsTook := run(reliable.Config{Credits: true, CreditRate: 0.95 * rate, Speculative: 64 << 10})
	t.Logf("queue of %d bytes in %d us with fixed windows, of %d in %d us with credits", fixed, fixedTook/1000, credits, creditsTook/1000)
	if fixed < 3*(4<<20) {
		t.Errorf("a queue of %d bytes with fixed windows, want most of %d windows of 4 MiB", fixed, senders)
	}
	if credits > 2*senders*(64<<10) {
		t.Errorf("a queue of %d bytes with credits, want at most twice the %d that %d senders have in hand", credits, 64<<10, senders)
	}
	if ideal := float64(senders*size) / rate * 1e9; float64(creditsTook) > ideal/0.9 {
		t.Errorf("took %d ns with credits, want at most %.0f: 0.9 of the rate of the port", creditsTook, ideal/0.9)
	}
}

// TestCreditsOverLoss loses data, requests and grants: nothing stalls.
func TestCreditsOverLoss(t *testing.T) {
	const senders, size = 3, 2 << 20
	s := newStar(t, softnic.Impairment{Delay: 5 * time.Microsecond, Loss: 0.02}, reliable.Config{Credits: true, Speculative: 32 << 10}, senders, 12.5e9, size)
	s.senders[0].fill(1)
	for i := range senders {
		copy(s.senders[i].mem.Bytes(), s.senders[0].mem.Bytes()) // whoever is last, it is the same
		s.write(t, i, size)
	}
	for _, wc := range s.until(t, int64(time.Second), senders) {
		must(t, wc.Err())
	}
	if s.now > int64(100*time.Millisecond) || !bytes.Equal(s.to.mem.Bytes(), s.senders[0].mem.Bytes()) {
		t.Fatalf("%d bytes three times took %d ns, want them whole in 100 ms", size, s.now)
	}
}

// TestCreditsInHand lets an idle sender write a small message without a round trip for credit.
func TestCreditsInHand(t *testing.T) {
	const delay, small = 10 * time.Microsecond, 32 << 10
	s := newStar(t, softnic.Impairment{Delay: delay}, reliable.Config{Credits: true, Speculative: 64 << 10}, 1, 12.5e9, small)
	for i := range 20 {
		s.now += int64(time.Millisecond)
		start := s.now
		s.write(t, 0, small)
		for _, wc := range s.until(t, start+int64(time.Second), 1) {
			must(t, wc.Err())
		}
		if took := time.Duration(s.now - start); took >= 3*delay {
			t.Fatalf("WRITE %d took %v, want less than %v: a round trip and no other", i, took, 3*delay)
		}
		s.until(t, s.now+int64(time.Millisecond), 0)
	}
}

// TestCreditsRefused wants both ends to say what differs when one has no credits, or other
// ones.
func TestCreditsRefused(t *testing.T) {
	link := softnic.NewMemoryLink(nil)
	plain := newSide(t, link, reliable.Config{}, 4096)
	credits := newSide(t, link, reliable.Config{Credits: true}, 4096)
	other := newSide(t, link, reliable.Config{Credits: true, Speculative: 1 << 20, CreditRate: 1e9}, 4096)
	for _, tt := range []struct {
		name string
		a, b *side
		want string
	}{
		{"with to without", credits, plain, "this end grants credit and waits for it, the peer does neither"},
		{"without to with", plain, credits, "the peer grants credit and waits for it, this end does neither"},
		{"with to others", credits, other, "the peer has 1048576 bytes of credit in hand, this end 131072"},
	} {
		ep, err := tt.b.qp.Endpoint()
		must(t, err)
		if err := tt.a.qp.Connect(ep); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Connect = %v, want ErrInvalid and %q", tt.name, err, tt.want)
		}
	}
	if _, err := reliable.Wrap(plain.ctx, reliable.Config{CreditRate: -1}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Wrap with a rate of -1 = %v, want ErrInvalid", err)
	}
}

// TestCreditsClose closes QPs of either end while their credit is outstanding: what they asked
// for is no longer granted, and the others get the whole link.
func TestCreditsClose(t *testing.T) {
	const size, rate = 4 << 20, 1e9 // a millisecond for a MiB
	s := newStar(t, softnic.Impairment{Delay: 5 * time.Microsecond}, reliable.Config{
		Credits: true, CreditRate: 0.95 * rate, GiveUp: int64(10 * time.Millisecond),
	}, 3, rate, size)
	for i := range 3 {
		s.write(t, i, size)
	}
	s.until(t, s.now+int64(500*time.Microsecond), 0)
	must(t, s.more[0].Close())             // of sender 1, at the receiver
	must(t, s.senders[2].qp.Close())       // of sender 2, at its own end
	must(t, s.more[0].Close())             // once more does nothing
	start, again := s.now, s.to.another(t) // takes the number of the one that is gone
	if wc := s.until(t, start+int64(time.Second), 1)[0]; wc.Err() != nil || wc.QPN != s.senders[0].qp.Num() {
		t.Fatalf("completion %+v (%v), want success of the sender that is left", wc, wc.Err())
	}
	// The receiver does not know that sender 2 has gone: it grants it a window in turn.
	if took := s.now - start; took > int64(14*time.Millisecond) {
		t.Fatalf("4 MiB took %d us, want no more than 4 MiB and what was granted to a sender that had gone", took/1000)
	}
	if wc := s.until(t, start+int64(time.Second), 1)[0]; wc.Status != verbs.StatusRetryExcErr {
		t.Fatalf("sender 1 ends with %v, want RETRY_EXC: its peer has gone", wc.Status)
	}
	from := newSide(t, s.link, reliable.Config{Now: func() int64 { return s.now }, MinProbe: 50_000, Credits: true}, size)
	s.senders = append(s.senders, from)
	join(t, from.qp, again)
	start = s.now
	s.write(t, 3, size)
	if wc := s.until(t, start+int64(time.Second), 1)[0]; wc.Err() != nil || s.now-start > int64(6*time.Millisecond) {
		t.Fatalf("a new QP ends with %v after %d us, want success within 6 ms", wc.Err(), (s.now-start)/1000)
	}
	s.until(t, s.now+int64(time.Second), 0)
	if at, ok := s.to.ctx.(reliable.Stepper).Step(); ok {
		t.Fatalf("the receiver still has something to do at %d, want nothing: all is granted or gone", at)
	}
}

// TestCreditsPassive writes, in real time, to a side that neither posts nor polls: its
// goroutine grants.
func TestCreditsPassive(t *testing.T) {
	a, b := newPair(t, softnic.NewMemoryLink(nil), reliable.Config{Credits: true}, 4<<20)
	for range 5 {
		wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		wr.SetSGE(a.sge(0, 4<<20))
		a.post(t, wr)
		if wc := a.wait(t, 1)[0]; wc.Err() != nil {
			t.Fatalf("completion %v, want success", wc.Err())
		}
	}
}
