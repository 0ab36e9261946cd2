package core

import (
	"testing"

	"ibverbx/reliable/wire"
)

// TestCreditsHoldSendersBack wants a sender to stop at the speculative bytes, and to go on by
// just what it is granted.
func TestCreditsHoldSendersBack(t *testing.T) {
	cfg := modest()
	cfg.Credits, cfg.Speculative = true, 64
	l := newLine(t, cfg, cfg, 1<<12, 1)
	l.post(0, Message{Kind: MsgWrite}, bytesOf(1000, 1), 0)
	sent := func() uint64 { return l.ends[0].conn.sent }
	l.run(10_000_000, func() bool { return false })
	if sent() != 64 || l.ends[1].demand != 1000-64 {
		t.Fatalf("%d bytes sent, %d wanted, want 64 and %d", sent(), l.ends[1].demand, 1000-64)
	}
	l.step(1, Event{Kind: EvGrant, Count: 320})
	l.run(20_000_000, func() bool { return false })
	if sent() != 64+320 {
		t.Fatalf("%d bytes sent after a grant, want %d", sent(), 64+320)
	}
	l.step(1, Event{Kind: EvGrant, Count: 1 << 20})
	if !l.run(30_000_000, func() bool { return l.finished(0) }) {
		t.Fatalf("stuck at %d ns with %d bytes sent", l.now, sent())
	}
}

// TestCreditRecordsLost loses the request and the grant: neither stalls the sender.
func TestCreditRecordsLost(t *testing.T) {
	for _, kind := range []wire.Type{wire.CreditRequest, wire.Credit} {
		cfg := modest()
		cfg.Credits, cfg.Speculative = true, 16
		l := newLine(t, cfg, cfg, 1<<12, 1)
		left := 3
		l.Lose = func(_ int, p *packet) bool {
			if p.rec.Type != kind || left == 0 {
				return false
			}
			left--
			return true
		}
		l.grant = true
		l.post(0, Message{Kind: MsgWrite}, bytesOf(1000, 1), 0)
		if !l.run(second, func() bool { return l.finished(0) }) || l.ends[0].done[0] != statusSuccess {
			t.Fatalf("records of type %d lost: %v at %d ns, want success", kind, l.ends[0].done, l.now)
		}
	}
}

// TestPacer shares a rate among three who ask, in turn, and saves up no burst.
func TestPacer(t *testing.T) {
	p := NewPacer(3, 1e9, 1000) // a byte per nanosecond
	if p.Deadline() != Never {
		t.Fatalf("Deadline = %d without demand, want never", p.Deadline())
	}
	p.Want(0, 2500)
	p.Want(2, 1000)
	p.Want(1, 5000)
	p.Want(1, 1500)
	var order []int
	got := [3]int{}
	now := int64(1_000_000)
	for p.Deadline() != Never {
		now = max(now, p.Deadline())
		c, n, ok := p.Next(now)
		if !ok {
			t.Fatalf("no grant at %d, want one: it was due", now)
		}
		order = append(order, c)
		got[c] += n
	}
	if got != [3]int{2500, 1500, 1000} {
		t.Fatalf("granted %v, want [2500 1500 1000]", got)
	}
	for i, want := range []int{0, 2, 1, 0, 1, 0} {
		if order[i] != want {
			t.Fatalf("granted in the order %v, want 0 2 1 0 1 0", order)
		}
	}
	if took := now - 1_000_000; took < 3500 || took > 5000 {
		t.Fatalf("5000 bytes took %d ns, want the time of 3.5 to 5 quanta at a byte per ns", took)
	}
}

// TestIncast lets 15 senders share one receiver's link. Without credits each one keeps its
// whole window in the queue; with them the sum stays near what was speculated.
func TestIncast(t *testing.T) {
	const senders, chunk = 15, 1 << 10
	queue := func(credits bool) int {
		cfg := Config{Paths: 4, Window: 64, ChunkBytes: chunk, PeerCredit: 64, Credits: credits, Speculative: 2 * chunk}
		p := NewPacer(senders, 0.9e9, 4*chunk) // the rest is for headers
		lines := make([]*line, senders)
		now, busy, most := int64(0), int64(0), 0
		for i := range lines {
			l := newLine(t, cfg, cfg, 1<<18, uint64(i))
			l.demandTo = func(bytes uint64) { p.Want(i, bytes) }
			l.Extra = func(from int, q *packet) int64 { // the one link to the receiver
				if from != 0 {
					return 0
				}
				busy = max(busy, l.now) + int64(len(q.data)) + 64
				most = max(most, int(busy-l.now))
				return busy - l.now
			}
			l.post(0, Message{Kind: MsgWrite}, make([]byte, 1<<18), 0)
			lines[i] = l
		}
		for done := 0; done < senders; {
			if now += 500; now > second {
				t.Fatalf("credits %v: %d of %d are done after a second, want all", credits, done, senders)
			}
			for c, n, ok := p.Next(now); ok; c, n, ok = p.Next(now) {
				lines[c].now = now
				lines[c].step(1, Event{Kind: EvGrant, Count: n})
			}
			done = 0
			for _, l := range lines {
				if l.run(now, func() bool { return l.finished(0) }); l.finished(0) {
					done++
				}
				l.now = max(l.now, now)
			}
		}
		repeated := uint64(0)
		for _, l := range lines {
			repeated += l.ends[0].conn.Stats().Retransmitted
		}
		t.Logf("credits %v: queue of %d bytes, %d of %d chunks repeated", credits, most, repeated, senders<<18/chunk)
		return most
	}
	without, with := queue(false), queue(true)
	if with*4 > without {
		t.Fatalf("longest queue %d bytes with credits, %d without, want a quarter", with, without)
	}
}
