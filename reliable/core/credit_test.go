package core

import (
	"testing"

	"ibverbx/reliable/wire"
)

// withCredits returns modest with credits on both sides. An idle sender may send spare bytes.
func withCredits(spare int) Config {
	cfg := modest()
	cfg.Grants, cfg.PeerGrants, cfg.Speculative = true, true, spare
	return cfg
}

// TestCreditsHoldSendersBack: a sender stops when it has used up an idle sender's credit, and continues by
// exactly the granted amount.
func TestCreditsHoldSendersBack(t *testing.T) {
	cfg := withCredits(64)
	l := newLine(t, cfg, cfg, 1<<12, 1)
	l.post(0, Message{Kind: MsgWrite}, bytesOf(1000, 1), 0)
	sent := func() uint64 { return l.ends[0].conn.credits.sent }
	l.run(10_000_000, func() bool { return false })
	before := sent()
	if before < 64 || before > 128 || l.ends[1].demand != 1000-before {
		t.Fatalf("%d bytes sent, %d wanted, want 64 to 128, and the rest", before, l.ends[1].demand)
	}
	l.step(1, Event{Kind: EvGrant, Count: 320})
	l.run(20_000_000, func() bool { return false })
	if sent() != before+320 {
		t.Fatalf("%d bytes sent after a grant, want %d", sent(), before+320)
	}
	l.step(1, Event{Kind: EvGrant, Count: NoLimit})
	if !l.run(30_000_000, func() bool { return l.finished(0) }) {
		t.Fatalf("stuck at %d ns with %d bytes sent", l.now, sent())
	}
}

// TestLimitReturns revokes NoLimit in the middle of a message: the sender stops, requests credit, and
// continues once more is granted, even if the revoking record is lost.
func TestLimitReturns(t *testing.T) {
	for _, lost := range []bool{false, true} {
		cfg := withCredits(64)
		l := newLine(t, cfg, cfg, 1<<14, 1)
		l.step(1, Event{Kind: EvGrant, Count: NoLimit})
		l.run(l.now+1_000_000, func() bool { return false })
		l.post(0, Message{Kind: MsgWrite}, bytesOf(1<<14, 1), 0)
		l.run(l.now+15_000, func() bool { return false }) // the first bytes have arrived
		tells := 0
		l.Lose = func(from int, p *packet) bool {
			if from == 1 && p.rec.Type == wire.Credit {
				tells++
			}
			return lost && tells == 1 && p.rec.Type == wire.Credit
		}
		l.step(1, Event{Kind: EvGrant, Count: 0})
		l.run(l.now+10_000_000, func() bool { return false })
		sender, receiver := &l.ends[0].conn.credits, &l.ends[1].conn.credits
		if sender.limit == noLimit || sender.sent >= 1<<14 || l.ends[1].demand == 0 {
			t.Fatalf("lost %v: the sender has sent %d bytes, its limit is %d and the receiver knows that it wants %d; want it to wait",
				lost, sender.sent, sender.limit, l.ends[1].demand)
		}
		if receiver.arrived != sender.sent {
			t.Fatalf("lost %v: %d bytes sent, %d arrived, want the same", lost, sender.sent, receiver.arrived)
		}
		l.grant = true
		l.step(1, Event{Kind: EvGrant, Count: 1})
		if !l.run(second, func() bool { return l.finished(0) }) || l.ends[0].done[0] != statusSuccess {
			t.Fatalf("lost %v: %v at %d ns, want success", lost, l.ends[0].done, l.now)
		}
	}
}

// TestOldCreditIsIgnored: a delayed older limit does not replace a newer one.
func TestOldCreditIsIgnored(t *testing.T) {
	c := newConn(t, withCredits(64))
	for _, r := range []wire.Record{
		{Type: wire.Credit, Nonce: 7, Bytes: 100},
		{Type: wire.Credit, Nonce: 6, Bytes: noLimit},
		{Type: wire.Credit, Nonce: 7, Bytes: 200},
		{Type: wire.CreditRequest, Nonce: 7, Bytes: 100},
		{Type: wire.CreditRequest, Nonce: 6, Bytes: 300},
	} {
		c.Step(1, &Event{Kind: EvRecord, Record: r})
	}
	if c.credits.limit != 100 || c.credits.peerDemand != 100 {
		t.Fatalf("the limit is %d and the peer wants %d, want 100 and 100: those of the latest records", c.credits.limit, c.credits.peerDemand)
	}
}

// TestCreditRecordsLost loses the request and the grant: neither stalls the sender.
func TestCreditRecordsLost(t *testing.T) {
	for _, kind := range []wire.Type{wire.CreditRequest, wire.Credit} {
		cfg := withCredits(16)
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

// TestCreditTakesAnotherRoute kills one control QP while the connection is otherwise idle: the response to a
// retransmitted request takes another route.
func TestCreditTakesAnotherRoute(t *testing.T) {
	for dead := range RoutePath {
		cfg := withCredits(64)
		l := newLine(t, cfg, cfg, 1<<12, 1)
		l.post(0, Message{Kind: MsgWrite}, bytesOf(1000, 1), 0)
		l.run(10_000_000, func() bool { return false })
		l.Lose = func(from int, p *packet) bool { return from == 1 && p.route == dead }
		l.grant = true
		l.step(1, Event{Kind: EvGrant, Count: 320})
		if !l.run(second, func() bool { return l.finished(0) }) || l.ends[0].done[0] != statusSuccess {
			t.Fatalf("control QP %d is dead: %v at %d ns, want success", dead, l.ends[0].done, l.now)
		}
	}
}

// TestLateCredit grants credit long after GiveUp, to a sender that kept requesting it and got responses: the
// data sent then gets the full timeout.
func TestLateCredit(t *testing.T) {
	cfg := withCredits(16)
	cfg.GiveUp = 5_000_000
	l := newLine(t, cfg, cfg, 1<<12, 1)
	l.post(0, Message{Kind: MsgWrite}, bytesOf(1000, 1), 0)
	l.run(100_000_000, func() bool { return false })
	if len(l.ends[0].done) != 0 {
		t.Fatalf("ended with %v although the peer answers, want it to wait", l.ends[0].done)
	}
	l.now = 100_000_000
	l.step(1, Event{Kind: EvGrant, Count: 1 << 20})
	l.finish(t, second, statusSuccess)
}

// TestIdleCredit: an idle sender repeatedly sends half of its credit at once. It never requests credit,
// because arriving data replenishes it.
func TestIdleCredit(t *testing.T) {
	cfg := withCredits(64)
	l := newLine(t, cfg, cfg, 1<<12, 1)
	for i := range 20 {
		l.post(0, Message{Kind: MsgWrite}, bytesOf(32, 1), 32*i)
		if c := &l.ends[0].conn.credits; c.sent != c.demand || c.blocked {
			t.Fatalf("message %d: %d of %d bytes left at once, want all", i, c.sent, c.demand)
		}
		l.run(l.now+10_000_000, func() bool { return false })
	}
	if c := &l.ends[0].conn.credits; c.requestSeq != 0 {
		t.Fatalf("the sender has asked %d times, want it never to ask", c.requestSeq)
	}
}

// TestCreditOfPart: a grant of less than a chunk can be used.
func TestCreditOfPart(t *testing.T) {
	cfg := withCredits(16)
	l := newLine(t, cfg, cfg, 1<<12, 1)
	l.post(0, Message{Kind: MsgWrite}, bytesOf(64, 1), 0)
	for range 3 {
		l.run(l.now+10_000_000, func() bool { return false })
		l.step(1, Event{Kind: EvGrant, Count: 1})
	}
	if !l.run(second, func() bool { return l.finished(0) }) {
		t.Fatalf("%d bytes sent after three grants of a byte, want 64 in chunks of 16", l.ends[0].conn.credits.sent)
	}
}

// TestDemandIsNotTrusted: whatever a peer demands, the owner never counts more in flight than it granted, and
// a demand below the received bytes does not block the peer.
func TestDemandIsNotTrusted(t *testing.T) {
	c := newConn(t, withCredits(64))
	for i, bytes := range []uint64{1 << 20, noLimit, 5, 1 << 63} {
		acts := c.Step(1, &Event{Kind: EvRecord, Record: wire.Record{Type: wire.CreditRequest, Nonce: uint32(i + 1), Bytes: bytes}})
		flying := uint64(0)
		for _, a := range acts {
			if a.Kind == ActDemand {
				flying = a.Flying
			}
		}
		if flying > 64 {
			t.Fatalf("%d bytes count as in flight after a demand of %d, want at most the 64 of an idle peer", flying, bytes)
		}
	}
	c.credits.arrived, c.credits.granted = 200, 190
	c.Step(2, &Event{Kind: EvRecord, Record: wire.Record{Type: wire.CreditRequest, Nonce: 10, Bytes: 195}})
	if c.credits.granted < 200+64 {
		t.Fatalf("the limit is %d after a demand of 195 when 200 have arrived, want %d: flows of the peer have failed", c.credits.granted, 200+64)
	}
}

// TestIncast: 15 senders share one receiver's link. Without credits each keeps its whole window in the queue.
// With credits the sum stays near the allowance of idle senders.
func TestIncast(t *testing.T) {
	const senders, chunk = 15, 1 << 10
	queue := func(credits bool) int {
		cfg := Config{Paths: 4, Window: 64, ChunkBytes: chunk, PeerCredit: 64, Grants: credits, PeerGrants: credits, Speculative: 2 * chunk}
		port := NewPort()
		port.window = 16 * chunk // a fitting window: these senders send too little to find it
		p := NewPacer(port, chunk, 2*chunk)
		lines := make([]*line, senders)
		now, busy, most := int64(0), int64(0), 0
		for i := range lines {
			p.Join(i, Peer{byte(i)})
			l := newLine(t, cfg, cfg, 1<<18, uint64(i))
			l.demandTo = func(a *Action) { p.Want(l.now, i, a) }
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
			for c, n, ok := p.Next(now); ok && credits; c, n, ok = p.Next(now) {
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
