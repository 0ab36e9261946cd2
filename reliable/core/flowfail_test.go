package core

import (
	"testing"

	"pgregory.net/rapid"

	"ibverbx/reliable/wire"
)

// TestCreditAfterFailedFlows fails flows one after the other, with most of their messages unsent and the rest
// in flight. The remaining flows must get back the credit that the failed ones requested, and their
// unreceived bytes.
func TestCreditAfterFailedFlows(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  int // the side that fails the flow
	}{{"sender", 0}, {"receiver", 1}} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := modest()
			cfg.Flows, cfg.Grants, cfg.PeerGrants, cfg.Speculative = 6, true, true, 64
			l := newLine(t, cfg, cfg, 1<<16, 1)
			l.grant = true
			for k := 1; k < cfg.Flows; k++ {
				l.ends[0].conn.flows[k].giveUp = 20_000_000
				l.postOn(0, k, Message{Kind: MsgWrite}, bytesOf(8000, 1), 8000*k)
				l.run(l.now+30_000, func() bool { return false })
				l.step(tt.end, Event{Kind: EvClose, Flow: uint16(k), Status: statusFlush})
				l.run(l.now+50_000_000, func() bool { return len(l.ends[0].flows[k].done) == 1 })
			}
			l.post(0, Message{Kind: MsgWrite}, bytesOf(4000, 1), 0)
			if !l.run(l.now+second, func() bool { return len(l.ends[0].done) == 1 }) || l.ends[0].done[0] != statusSuccess {
				c := &l.ends[0].conn.credits
				t.Fatalf("the flow that is left has %v, blocked %v with %d bytes sent of %d granted, want success",
					l.ends[0].done, c.blocked, c.sent, c.limit)
			}
		})
	}
}

// TestWaitingFlowIsPatient: flows wait for their turn longer than GiveUp. None fails, because the peer keeps
// receiving chunks.
func TestWaitingFlowIsPatient(t *testing.T) {
	cfg := modest()
	cfg.Flows, cfg.GiveUp = 100, 1_000_000
	cfg.WindowBytes = 16 // one chunk per round trip, of 20 us
	l := newLine(t, cfg, cfg, 1<<13, 1)
	for k := range cfg.Flows {
		l.postOn(0, k, Message{Kind: MsgWrite}, bytesOf(64, 1), 64*k)
	}
	l.finish(t, second)
	for k, f := range l.ends[0].flows {
		if f.done[0] != statusSuccess {
			t.Fatalf("flow %d ends with %d, want success: the peer was never silent", k, f.done[0])
		}
	}
}

// TestFailedFlowMakesRoom: the only path is full of undeliverable chunks of one flow. When that flow fails,
// the others get the path.
func TestFailedFlowMakesRoom(t *testing.T) {
	cfg := modest()
	cfg.Paths, cfg.PathDepth, cfg.Flows = 1, 8, 2
	l := newLine(t, cfg, cfg, 1<<12, 1)
	l.Lose = func(from int, p *packet) bool { return from == 0 && p.imm.Flow == 1 }
	l.ends[0].conn.flows[1].giveUp = 200_000 // before it retransmits anything
	l.postOn(0, 1, Message{Kind: MsgWrite}, bytesOf(1000, 1), 0)
	l.postOn(0, 0, Message{Kind: MsgWrite}, bytesOf(1000, 1), 2000)
	l.finish(t, second, statusSuccess)
}

// TestWaitForReceive: a sender waits for a receive much longer than GiveUp. It does not fail, because the
// peer responds.
func TestWaitForReceive(t *testing.T) {
	for _, giveUp := range []int64{1_000_000, 50_000_000, 200_000_000} {
		cfg := modest()
		cfg.GiveUp, cfg.FixedRTT = giveUp, 20_000
		l := newLine(t, cfg, cfg, 1<<12, 1)
		l.post(0, Message{Kind: MsgSend}, bytesOf(50, 1), 0)
		l.run(3*second, func() bool { return l.finished(0) })
		l.receive(1, 50)
		if !l.run(5*second, func() bool { return l.finished(0) }) || l.ends[0].done[0] != statusSuccess {
			t.Fatalf("GiveUp of %d ns: %v at %d ns, want success", giveUp, l.ends[0].done, l.now)
		}
	}
}

// TestWaitForFailedPeer: a failed peer does not respond to a sender that waits for a receive, as on RC, and
// the sender times out.
func TestWaitForFailedPeer(t *testing.T) {
	for _, flows := range []int{1, 2} {
		cfg := modest()
		cfg.Flows, cfg.GiveUp = flows, 200_000_000
		l := newLine(t, cfg, cfg, 1<<12, 1)
		l.post(0, Message{Kind: MsgSend}, bytesOf(50, 1), 0)
		l.run(1_000_000, func() bool { return false })
		l.step(1, Event{Kind: EvClose, Status: statusFlush})
		if !l.run(second, func() bool { return l.finished(0) }) || l.ends[0].done[0] != statusRetryExc {
			t.Fatalf("%d flows: %v after %d ns, want RETRY_EXC", flows, l.ends[0].done, l.now)
		}
	}
}

// TestFlowsFailAlone closes some flows at random times, on either side, over random networks. All messages of
// the other flows must arrive, and all messages of the closed flows must complete.
func TestFlowsFailAlone(t *testing.T) {
	for range 5 {
		rapid.Check(t, func(rt *rapid.T) { playFailures(rt, t) })
	}
}

func playFailures(rt *rapid.T, t *testing.T) {
	tr := drawTrial(rt, t)
	defer func() {
		if v := recover(); v != nil {
			rt.Fatalf("at %d ns: %v", tr.now, v)
		}
	}()
	flows := len(tr.ends[0].flows)
	for i := range tr.ends {
		for k, f := range tr.ends[i].conn.flows {
			if k > 0 {
				f.giveUp = 500_000_000 + tr.heal // flows closed only at the other end
			}
		}
	}
	for n := range rapid.IntRange(1, 20).Draw(rt, "messages") {
		i, k := n%2, rapid.IntRange(0, flows-1).Draw(rt, "flow")
		tr.receiveOn(1-i, k, 1600)
		kind := rapid.SampledFrom([]MessageKind{MsgWrite, MsgWriteImm, MsgSend}).Draw(rt, "kind")
		tr.postOn(i, k, Message{Kind: kind, Flags: wire.FlagImm}, bytesOf(rapid.IntRange(0, 1600).Draw(rt, "size"), uint64(n)), 1600*n)
		tr.run(tr.now+rapid.Int64Range(0, 300_000).Draw(rt, "pause"), func() bool { return false })
		if k := rapid.IntRange(1, 10).Draw(rt, "closed"); k < flows {
			tr.step(rapid.IntRange(0, 1).Draw(rt, "end"), Event{Kind: EvClose, Flow: uint16(k), Status: statusFlush})
		}
	}
	tr.Loss = min(tr.Loss, 0.05)
	if !tr.run(max(tr.heal, tr.now)+4*second, func() bool { return tr.finished(0) && tr.finished(1) }) {
		rt.Fatalf("stuck at %d ns: %v and %v of %d and %d have ended", tr.now,
			tr.ends[0].done, tr.ends[1].done, len(tr.ends[0].out), len(tr.ends[1].out))
	}
	for i := range tr.ends {
		for n, s := range tr.ends[i].done {
			if s != statusSuccess {
				rt.Fatalf("message %d of flow 0, end %d ends with %d, want success", n, i, s)
			}
		}
		checkBounds(rt, tr.ends[i].conn)
	}
}

// TestFaultOfLongMessage: the peer refuses the beginning of a message that is longer than the window. It fails at once with the
// peer's status, although it cannot be sent completely.
func TestFaultOfLongMessage(t *testing.T) {
	for _, tt := range []struct {
		kind   MessageKind
		status uint8
	}{{MsgSend, statusInvalid}, {MsgWrite, statusAccess}} {
		cfg := modest()
		l := newLine(t, cfg, cfg, 1<<14, 1)
		l.receive(1, 16)
		l.ends[1].refuse = tt.status
		lost := false // the first chunk of a WRITE; only its retransmission is checked
		l.Lose = func(from int, p *packet) bool {
			first := !lost && from == 0 && p.imm.Kind == wire.KindData && p.route >= RoutePath
			lost = lost || first
			return first
		}
		l.post(0, Message{Kind: tt.kind}, bytesOf(8000, 1), 0)
		l.run(l.now+second, func() bool { return l.finished(0) })
		if done := l.ends[0].done; len(done) != 1 || done[0] != tt.status {
			t.Errorf("a refused message of kind %d ends with %v after a second, want %d", tt.kind, done, tt.status)
		}
	}
}

// TestPongAfterEnd: the response to a ping arrives after the last flow has failed. It arms no timer, because none would fire.
func TestPongAfterEnd(t *testing.T) {
	cfg := modest()
	cfg.Carrier = Carrier{Software: true, Unordered: true, Shared: true}
	c := newConn(t, cfg)
	p := &c.paths[0]
	p.down()
	c.Step(c.Deadline(), &Event{Kind: EvTick})
	if p.state != PathProbing {
		t.Fatalf("the path is %v, want PROBING", p.state)
	}
	c.Step(c.now, &Event{Kind: EvClose, Status: statusFlush})
	c.Step(c.now+1, &Event{Kind: EvRecord, Route: p.route(), Record: wire.Record{Type: wire.Pong, Nonce: p.pingNonce}})
	if at := c.Deadline(); !c.Over() || at != Never {
		t.Errorf("a connection that is over, %v, has a timer at %d, want none", c.Over(), at)
	}
}

// TestLongSilence: the peer is silent for most of a long GiveUp. The message succeeds, although a chunk can be transmitted only 255 times
// and every probe retransmits one.
func TestLongSilence(t *testing.T) {
	for _, carrier := range []Carrier{{}, {Software: true, Unordered: true, Shared: true}} {
		cfg := modest()
		cfg.Carrier, cfg.GiveUp, cfg.PeerCredit, cfg.RecvCredit = carrier, 60*second, 1000, 1000
		l := newLine(t, cfg, cfg, 4096, 1)
		l.Lose = func(int, *packet) bool { return l.now < 50*second }
		l.post(0, Message{Kind: MsgWrite}, bytesOf(64, 1), 0)
		l.finish(t, 60*second, statusSuccess)
	}
}

// TestLostFaultOfResponder: the responder of a READ fails, and the only notice of it is lost. The READ fails after GiveUp even while
// another flow makes progress.
func TestLostFaultOfResponder(t *testing.T) {
	cfg := modest()
	cfg.Flows, cfg.GiveUp = 2, 100_000_000
	l := newLine(t, cfg, cfg, 1<<12, 1)
	faults := 0
	l.Lose = func(_ int, p *packet) bool {
		if p.rec.Type == wire.Fault {
			faults++
		}
		return isAnswer(p) || (p.rec.Type == wire.Fault && faults == 1)
	}
	l.read(0, 0, 0, 100, false)
	l.run(50_000, func() bool { return false })
	l.step(1, Event{Kind: EvClose, Status: statusFlush})
	for n := 0; len(l.ends[0].done) == 0 && l.now < second; n++ {
		l.postOn(0, 1, Message{Kind: MsgWrite}, bytesOf(16, 1), 16*n)
		until := l.now + 10_000_000
		l.run(until, func() bool { return false })
		l.now = until
	}
	if done := l.ends[0].done; len(done) != 1 || done[0] != statusRetryExc || l.now > 3*cfg.GiveUp {
		t.Fatalf("the READ ends with %v at %d ns, want RETRY_EXC after about %d", done, l.now, cfg.GiveUp)
	}
}
