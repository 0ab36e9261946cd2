package softnic_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// lossy is a connection over a long path in virtual time, with the windows and probes of a UDPLink.
type lossy struct {
	*rig
	w        *world
	cq       verbs.CQ
	qa, qb   verbs.QP
	src, dst verbs.MR
}

func newLossy(t *testing.T, cfg softnic.FaultConfig) *lossy {
	t.Helper()
	w := newWorld(t, cfg)
	l := &lossy{rig: newRig(t, w.link), w: w}
	_, l.src = memory(t, l.pa, mib)
	_, l.dst = memory(t, l.pb, mib)
	l.cq = newCQ(t, l.ca, 64)
	l.qa, l.qb = l.pair(verbs.RC, l.cq, newCQ(t, l.cb, 64), 64)
	return l
}

// post posts one request.
func (l *lossy) post(op verbs.Opcode, length uint32) {
	l.tb.Helper()
	wr := writeWR(l.src, l.dst, length)
	wr.Opcode = op
	if _, err := l.qa.PostSend([]verbs.SendWR{wr}); err != nil {
		l.tb.Fatalf("PostSend: %v", err)
	}
}

// finish runs the world until n requests have completed.
func (l *lossy) finish(n int) {
	l.tb.Helper()
	for done := 0; done < n; {
		wcs := poll(l.tb, l.cq)
		for i := range wcs {
			must(l.tb, wcs[i].Err())
		}
		if done += len(wcs); done < n {
			l.step()
		}
	}
}

// move completes n requests of 1 MiB each, 16 at a time, and returns the number of packets that they
// need.
func (l *lossy) move(op verbs.Opcode, n int) uint64 {
	l.tb.Helper()
	for range n / 16 {
		for range 16 {
			l.post(op, mib)
		}
		l.finish(16)
	}
	return uint64(n) * mib / 4096
}

// longPath is 500 us each way with the windows and probes of a UDPLink.
func longPath(loss float64) softnic.FaultConfig {
	return softnic.FaultConfig{
		Seed: 1, Window: 256, ReadAhead: 64, ProbeAfter: 2 * time.Millisecond,
		Impairment: softnic.Impairment{Loss: loss, Delay: 500 * time.Microsecond},
	}
}

// TestLossyLongPath: at 1 % loss on a path of 500 us each way, RC sends at most twice the packets that the
// requests need. Rare losses do not slow it down.
func TestLossyLongPath(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		for _, loss := range []float64{0, 0.0001, 0.003, 0.01, 0.02} {
			l := newLossy(t, longPath(loss))
			need := l.move(op, 64)
			from, to := l.a, l.b
			if op == verbs.OpRDMARead {
				from, to = to, from
			}
			sent := l.w.link.Stats(from, to).Sent
			if rare := loss <= 0.0001; sent > 2*need || (rare && l.w.now > int64(70*time.Millisecond)) {
				t.Errorf("%v at a loss of %g: %d packets sent where %d are needed, in %v, want at most twice as many, and 64 ms without loss",
					op, loss, sent, need, time.Duration(l.w.now))
			}
		}
	}
}

// TestLossySharedLink: four QPs on one link with 1 % loss reach a third of its rate together. When each
// loss wasted a whole window, they reached a sixth.
func TestLossySharedLink(t *testing.T) {
	const qps, rounds, rate = 4, 16, 1e9
	cfg := longPath(0.01)
	cfg.Impairment.Rate = rate
	l := newLossy(t, cfg)
	qs := []verbs.QP{l.qa}
	for len(qs) < qps {
		q, _ := l.pair(verbs.RC, l.cq, newCQ(t, l.cb, 64), 64)
		qs = append(qs, q)
	}
	wrs := []verbs.SendWR{writeWR(l.src, l.dst, mib)}
	for _, q := range qs {
		for range rounds {
			if _, err := q.PostSend(wrs); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.finish(qps * rounds)
	if got := float64(qps*rounds*mib) / time.Duration(l.w.now).Seconds() / rate; got < 1./3 {
		t.Errorf("%d QPs have %.3f of the link, want a third", qps, got)
	}
}

// TestCountersMatchDrops: on a lossy link, Retransmits is exactly the number of packets sent in
// addition to the required ones. GoBacks per first transmission equals the link's loss.
func TestCountersMatchDrops(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		t.Run(op.String(), func(t *testing.T) {
			l := newLossy(t, longPath(0))
			from, to := l.a, l.b
			if op == verbs.OpRDMARead {
				from, to = to, from
			}
			must(t, l.w.link.Impair(from, to, softnic.Impairment{Loss: 0.01, Delay: 500 * time.Microsecond}))
			need := l.move(op, 128)
			link, s := l.w.link.Stats(from, to), l.a.Stats()
			if sender := from.Stats(); link.Sent != need+sender.Retransmits {
				t.Errorf("%d packets sent, want the %d needed and %d retransmits", link.Sent, need, sender.Retransmits)
			}
			dropped, counted := float64(link.Lost)/float64(link.Sent), float64(s.GoBacks)/float64(need)
			if math.Abs(counted-dropped) > 0.1*dropped {
				t.Errorf("%d go-backs for %d packets are a loss of %.4f, the link dropped %.4f", s.GoBacks, need, counted, dropped)
			}
			qs, _ := l.a.QPStats(l.qa.Num())
			if qs.GoBacks != s.GoBacks || qs.Retransmits != s.Retransmits {
				t.Errorf("the QP has %+v, want the %d go-backs and %d retransmits of its NIC", qs, s.GoBacks, s.Retransmits)
			}
		})
	}
}

// TestOneGoBackPerLoss: reports that stem from packets sent before a go-back do not cause another one. If the
// first retransmitted packet is lost too, a second one follows long before the QP's timeout.
func TestOneGoBackPerLoss(t *testing.T) {
	const packets = 64
	delay := softnic.Impairment{Delay: 500 * time.Microsecond, Rate: 1e9}
	with := func(change func(*softnic.Impairment)) softnic.Impairment {
		imp := delay
		change(&imp)
		return imp
	}
	tests := []struct {
		name        string
		first, back softnic.Impairment // of the first packet, and of the responses
		again       bool               // the first retransmission is also lost
		want        uint64
	}{
		{"lost", with(func(i *softnic.Impairment) { i.Loss = 1 }), delay, false, 1},
		{"lost, NAK twice", with(func(i *softnic.Impairment) { i.Loss = 1 }), with(func(i *softnic.Impairment) { i.Duplicate = 1 }), false, 1},
		{"overtaken", with(func(i *softnic.Impairment) { i.Reorder = 1 }), delay, false, 1},
		{"lost twice", with(func(i *softnic.Impairment) { i.Loss = 1 }), delay, true, 2},
	}
	for _, tt := range tests {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
			t.Run(tt.name+" "+op.String(), func(t *testing.T) {
				l := newLossy(t, longPath(0))
				for _, nics := range [][2]*softnic.NIC{{l.a, l.b}, {l.b, l.a}} {
					must(t, l.w.link.Impair(nics[0], nics[1], delay))
				}
				for range 4 { // they measure the round trip
					l.post(op, 4096)
					l.finish(1)
				}
				before := l.w.now
				data, answers := [2]*softnic.NIC{l.a, l.b}, [2]*softnic.NIC{l.b, l.a}
				if op == verbs.OpRDMARead {
					data = answers
				}
				must(t, l.w.link.Impair(data[0], data[1], tt.first))
				l.post(op, 4096)
				l.until(data, 5)
				must(t, l.w.link.Impair(data[0], data[1], delay))
				if op == verbs.OpRDMAWrite {
					must(t, l.w.link.Impair(answers[0], answers[1], tt.back))
				}
				l.post(op, (packets-1)*4096)
				if tt.again {
					l.until(data, 4+packets)
					must(t, l.w.link.Impair(data[0], data[1], tt.first))
					l.until(data, 5+packets)
					must(t, l.w.link.Impair(data[0], data[1], delay))
				}
				l.finish(2)
				s := l.a.Stats()
				if took := time.Duration(l.w.now - before); s.GoBacks > tt.want || took > 10*time.Millisecond {
					t.Errorf("%d go-backs in %v, want at most %d in at most 10 ms: %+v", s.GoBacks, took, tt.want, s)
				}
			})
		}
	}
}

// until runs the world until n packets have been handed to the link in a direction.
func (l *lossy) until(dir [2]*softnic.NIC, n uint64) {
	l.tb.Helper()
	for l.w.link.Stats(dir[0], dir[1]).Sent < n {
		l.step()
	}
}

// step advances the world to the next event.
func (l *lossy) step() {
	l.tb.Helper()
	next, pending := l.w.link.Step()
	if !pending {
		l.tb.Fatal("nothing is pending")
	}
	l.w.now = max(l.w.now, next)
}

// TestTimeoutFollowsRoundTrip: on a path longer than the timeout of 67 ms, no packet is retransmitted once the
// round trip has been measured, even after it has grown.
func TestTimeoutFollowsRoundTrip(t *testing.T) {
	for _, probe := range []time.Duration{0, 2 * time.Millisecond} {
		l := newLossy(t, softnic.FaultConfig{ProbeAfter: probe})
		for _, delay := range []time.Duration{50 * time.Microsecond, 50 * time.Millisecond, 150 * time.Millisecond} {
			for _, nics := range [][2]*softnic.NIC{{l.a, l.b}, {l.b, l.a}} {
				must(t, l.w.link.Impair(nics[0], nics[1], softnic.Impairment{Delay: delay}))
			}
			var sent []uint64
			for range 50 {
				was := l.a.Stats().PacketsSent
				l.post(verbs.OpRDMAWrite, 4096)
				l.finish(1)
				l.w.settle(t)
				sent = append(sent, l.a.Stats().PacketsSent-was)
			}
			if tail := sent[16:]; slices.Max(tail) > 1 {
				t.Errorf("probes after %v, %v each way: requests of one packet sent %v", probe, delay, sent)
			}
		}
	}
}

// TestTimeoutNotBelowConfigured: a dead peer is detected after the configured timeouts, even if the
// round trip was short.
func TestTimeoutNotBelowConfigured(t *testing.T) {
	l := newLossy(t, softnic.FaultConfig{Impairment: softnic.Impairment{Delay: 10 * time.Microsecond}})
	l.move(verbs.OpRDMAWrite, 16)
	l.w.settle(t)
	l.w.link.Cut(l.a, l.b)
	start := l.w.now
	l.post(verbs.OpRDMAWrite, 4096)
	l.w.settle(t)
	wcs := poll(t, l.cq)
	want := (verbs.DefaultRetryCount + 1) * verbs.AckTimeout(verbs.DefaultTimeout)
	if took := time.Duration(l.w.now - start); len(wcs) != 1 || wcs[0].Status != verbs.StatusRetryExcErr || took != want {
		t.Errorf("%+v after %v, want %v after %v", wcs, took, verbs.StatusRetryExcErr, want)
	}
}

// TestTimeoutIgnoresLosses: the timeout does not grow on a path where each request needs it because its
// first packet is lost. A response after a timeout may belong to the retransmission, so it is not a
// measurement.
func TestTimeoutIgnoresLosses(t *testing.T) {
	for _, measured := range []bool{false, true} {
		delay := softnic.Impairment{Delay: 20 * time.Microsecond}
		l := newLossy(t, softnic.FaultConfig{Impairment: delay})
		if measured {
			l.move(verbs.OpRDMAWrite, 16)
		}
		most := verbs.AckTimeout(verbs.DefaultTimeout) + time.Millisecond
		for i := range 20 {
			start, sent := l.w.now, l.w.link.Stats(l.a, l.b).Sent
			must(t, l.w.link.Impair(l.a, l.b, softnic.Impairment{Loss: 1}))
			l.post(verbs.OpRDMAWrite, 4096)
			l.until([2]*softnic.NIC{l.a, l.b}, sent+1)
			must(t, l.w.link.Impair(l.a, l.b, delay))
			l.finish(1)
			if took := time.Duration(l.w.now - start); took > most {
				t.Fatalf("round trip measured: %v: request %d took %v, want at most %v", measured, i, took, most)
			}
		}
	}
}
