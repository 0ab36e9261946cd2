package softnic_test

import (
	"math"
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

// move completes n requests of 1 MiB each, 16 at a time, and returns how many packets they need.
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

// TestCountersMatchDrops: on a link that loses packets, Retransmits is exactly the number of packets sent in
// addition to those needed. GoBacks per packet sent for the first time is the link's loss.
func TestCountersMatchDrops(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		t.Run(op.String(), func(t *testing.T) {
			l := newLossy(t, longPath(0))
			from, to := l.a, l.b
			if op == verbs.OpRDMARead {
				from, to = to, from
			}
			must(t, l.w.link.Impair(from, to, softnic.Impairment{Loss: 0.01, Delay: 500 * time.Microsecond}))
			need := l.move(op, 256)
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

// step advances the world to the next event.
func (l *lossy) step() {
	l.tb.Helper()
	next, pending := l.w.link.Step()
	if !pending {
		l.tb.Fatal("nothing is pending")
	}
	l.w.now = max(l.w.now, next)
}
