package softnic_test

import (
	"errors"
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestBottleneck: two senders that share a port lose the packets that exceed its queue, retransmit them
// and finish. A single sender at the port's rate loses no packets and takes the port's transmission
// time.
func TestBottleneck(t *testing.T) {
	const size = 64 << 10
	run := func(queue, senders int) (lost uint64, took time.Duration) {
		w := newWorld(t, softnic.FaultConfig{Impairment: softnic.Impairment{Delay: time.Microsecond, Rate: 10e9}})
		r := newRig(t, w.link)
		third, ctx, pd := plug(t, w.link)
		must(t, w.link.Bottleneck(r.b, 1e9, queue))
		_, dst := memory(t, r.pb, size)
		cqB := newCQ(t, r.cb, 16)
		for i, s := range []struct {
			ctx verbs.Context
			pd  verbs.PD
		}{{r.ca, r.pa}, {ctx, pd}}[:senders] {
			_, src := memory(t, s.pd, size)
			cq := newCQ(t, s.ctx, 16)
			cfg := verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4}
			qa, err := s.pd.CreateQP(cfg)
			must(t, err)
			cfg.SendCQ, cfg.RecvCQ = cqB, cqB
			qb, err := r.pb.CreateQP(cfg)
			must(t, err)
			connect(t, qa, qb)
			if _, err := qa.PostSend([]verbs.SendWR{writeWR(src, dst, size)}); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if wcs := poll(t, cq); len(wcs) != 1 || wcs[0].Err() != nil {
					t.Errorf("sender %d: completions = %+v, want one success", i, wcs)
				}
			}()
		}
		w.settle(t)
		if longest := w.link.LongestQueue(r.b); longest <= 0 || longest > max(queue, 4096+62) || w.link.LongestQueue(r.a) != 0 {
			t.Errorf("the longest queue had %d bytes, and where there is no port %d, want at most %d, and 0",
				longest, w.link.LongestQueue(r.a), queue)
		}
		return w.link.Stats(r.a, r.b).Overflow + w.link.Stats(third, r.b).Overflow, time.Duration(w.now)
	}
	if lost, took := run(1<<20, 1); lost != 0 || took < 64*time.Microsecond {
		t.Errorf("one sender and a long queue: %d lost in %v, want none in at least 64µs", lost, took)
	}
	if lost, _ := run(1<<20, 2); lost != 0 {
		t.Errorf("two senders and a long queue: %d lost, want none", lost)
	}
	if lost, _ := run(16<<10, 2); lost == 0 {
		t.Error("two senders and a short queue: nothing was lost")
	}
}

// TestBottleneckRefuses: invalid arguments are rejected.
func TestBottleneckRefuses(t *testing.T) {
	w := newWorld(t, softnic.FaultConfig{})
	r := newRig(t, w.link)
	for _, err := range []error{w.link.Bottleneck(nil, 1, 1), w.link.Bottleneck(r.a, -1, 1), w.link.Bottleneck(r.a, 1, -1)} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("Bottleneck = %v, want %v", err, verbs.ErrInvalid)
		}
	}
}

// TestInTurn has two NICs send to one port concurrently, one of them more than its wire carries in that
// time. With InTurn the port serves both equally; without it, it serves all packets of the first sender
// first.
func TestInTurn(t *testing.T) {
	const size = 256 << 10
	run := func(inTurn bool) (first, second int64) {
		w := newWorld(t, softnic.FaultConfig{InTurn: inTurn, Window: 256, Impairment: softnic.Impairment{Delay: time.Microsecond, Rate: 1e9}})
		r := newRig(t, w.link)
		third, ctx, pd := plug(t, w.link)
		must(t, w.link.SharePaths([]*softnic.NIC{r.a, third}, []*softnic.NIC{r.b}, softnic.Path{Rate: 1e9, Queue: 1 << 20}))
		_, dst := memory(t, r.pb, size)
		var cqs []verbs.CQ
		for _, s := range []struct {
			ctx  verbs.Context
			pd   verbs.PD
			size int
		}{{r.ca, r.pa, size}, {ctx, pd, size / 4}} {
			_, src := memory(t, s.pd, size)
			cq := newCQ(t, s.ctx, 16)
			qa, err := s.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4})
			must(t, err)
			cqB := newCQ(t, r.cb, 16)
			qb, err := r.pb.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cqB, RecvCQ: cqB, MaxSendWR: 4})
			must(t, err)
			connect(t, qa, qb)
			if _, err := qa.PostSend([]verbs.SendWR{writeWR(src, dst, uint32(s.size))}); err != nil {
				t.Fatal(err)
			}
			cqs = append(cqs, cq)
		}
		var ends [2]int64
		for ends[0] == 0 || ends[1] == 0 {
			w.link.Step()
			for i, cq := range cqs {
				for _, wc := range poll(t, cq) {
					must(t, wc.Err())
					ends[i] = w.now
				}
			}
			at, pending := w.link.Next()
			if !pending && (ends[0] == 0 || ends[1] == 0) {
				t.Fatalf("nothing is due at %d and the WRITEs ended at %v, want both to end", w.now, ends)
			}
			w.now = max(w.now, at)
		}
		return ends[0], ends[1]
	}
	// Served equally, a quarter of the bytes takes the time of half, and everything the time of 1.25.
	if first, second := run(true); second > first/2 {
		t.Errorf("in turn, a quarter of the bytes took %d ns and the whole %d, want 2/5 of it", second, first)
	}
	if first, second := run(false); second < first {
		t.Errorf("not in turn, who sent second ended at %d, before the first at %d", second, first)
	}
}

// TestInTurnLateClock steps the link only every few microseconds. The fabric's queues are faster than
// the sender's wire, so packets never wait there, even if the link delivers them late.
func TestInTurnLateClock(t *testing.T) {
	const size = 64 << 10
	w := newWorld(t, softnic.FaultConfig{InTurn: true, Impairment: softnic.Impairment{Delay: 9 * time.Microsecond, Rate: 4e9}})
	r := newRig(t, w.link)
	must(t, w.link.SetPaths(r.a, r.b, softnic.Path{Rate: 1e10, Queue: 8 << 10, Delay: 2700 * time.Nanosecond}))
	must(t, w.link.Bottleneck(r.b, 1e10, 8<<10))
	_, src := memory(t, r.pa, size)
	_, dst := memory(t, r.pb, size)
	cq := newCQ(t, r.ca, 16)
	qa, _ := r.pair(verbs.RC, cq, newCQ(t, r.cb, 16), 4)
	if _, err := qa.PostSend([]verbs.SendWR{writeWR(src, dst, size)}); err != nil {
		t.Fatal(err)
	}
	for next, pending := w.link.Step(); pending; next, pending = w.link.Step() {
		w.now = max(w.now+int64(4*time.Microsecond), next)
	}
	if wcs := poll(t, cq); len(wcs) != 1 || wcs[0].Err() != nil {
		t.Errorf("completions = %+v, want one success", wcs)
	}
	if s, longest := w.link.Stats(r.a, r.b), w.link.LongestQueue(r.b); s.Overflow != 0 || longest > 4096+softnic.PacketOverhead {
		t.Errorf("%d packets lost of %d, longest queue %d bytes, want none lost and one packet", s.Overflow, s.Sent, longest)
	}
}
