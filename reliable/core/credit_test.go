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
	sent := func() uint64 { return l.ends[0].conn.credits.sent }
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

// TestLateCredit grants long after GiveUp, to a sender that has asked all the time and was answered:
// what it sends then has its time like everything else.
func TestLateCredit(t *testing.T) {
	cfg := modest()
	cfg.Credits, cfg.Speculative, cfg.GiveUp = true, 16, 5_000_000
	l := newLine(t, cfg, cfg, 1<<12, 1)
	l.post(0, Message{Kind: MsgWrite}, bytesOf(1000, 1), 0)
	l.run(100_000_000, func() bool { return false })
	if len(l.ends[0].done) != 0 {
		t.Fatalf("ended with %v although the peer answers, want it to wait", l.ends[0].done)
	}
	l.now = 100_000_000
	l.step(1, Event{Kind: EvGrant, Count: 1 << 20})
	if !l.run(second, func() bool { return l.finished(0) }) || l.ends[0].done[0] != statusSuccess {
		t.Fatalf("%v at %d ns, want success", l.ends[0].done, l.now)
	}
}

// TestCreditInHand lets a sender that is idle send at once what it has in hand, again and
// again: a grant fills its hand up before the next message, not after it.
func TestCreditInHand(t *testing.T) {
	cfg := modest()
	cfg.Credits, cfg.Speculative = true, 64
	l := newLine(t, cfg, cfg, 1<<12, 1)
	l.grant = true
	for i := range 20 {
		l.post(0, Message{Kind: MsgWrite}, bytesOf(60, 1), 60*i)
		if c := &l.ends[0].conn.credits; c.sent != c.demand || c.blocked {
			t.Fatalf("message %d: %d of %d bytes left at once, want all", i, c.sent, c.demand)
		}
		l.run(l.now+10_000_000, func() bool { return l.finished(0) && l.ends[0].conn.credits.askAt == never })
	}
	if c := &l.ends[0].conn.credits; c.limit != c.demand+64 {
		t.Fatalf("%d bytes may be sent, %d were: want 64 in hand", c.limit, c.demand)
	}
}

// TestCreditReach wants a peer that asks for more than it sends to be granted a window, and no
// more: whatever it says.
func TestCreditReach(t *testing.T) {
	cfg := modest()
	cfg.Credits, cfg.Speculative = true, 64
	c, err := New(cfg)
	if err != nil {
		t.Fatalf("New = %v, want a connection", err)
	}
	for _, bytes := range []uint64{1 << 20, 1<<64 - 1, 5} {
		c.Step(1, &Event{Kind: EvRecord, Record: wire.Record{Type: wire.CreditRequest, Bytes: bytes}})
		c.Step(1, &Event{Kind: EvGrant, Count: 1 << 40})
		if want := uint64(cfg.Window)*uint64(cfg.ChunkBytes) + 64; c.credits.granted != want {
			t.Fatalf("%d bytes granted to a peer that asks for %d, want %d", c.credits.granted, bytes, want)
		}
	}
}

// TestIncast lets 15 senders share one receiver's link. Without credits each one keeps its
// whole window in the queue; with them the sum stays near what was speculated.
func TestIncast(t *testing.T) {
	const senders, chunk = 15, 1 << 10
	queue := func(credits bool) int {
		cfg := Config{Paths: 4, Window: 64, ChunkBytes: chunk, PeerCredit: 64, Credits: credits, Speculative: 2 * chunk}
		p := NewPacer(0.9e9, 4*chunk, 0) // the rest is for headers
		p.Join(senders - 1)
		lines := make([]*line, senders)
		now, busy, most := int64(0), int64(0), 0
		for i := range lines {
			l := newLine(t, cfg, cfg, 1<<18, uint64(i))
			l.demandTo = func(a *Action) { p.Want(l.now, i, a.Bytes, a.Spare, a.Used) }
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
