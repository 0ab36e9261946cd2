package core

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ibverbx/reliable/wire"
)

// manyFlows returns a line with n flows, each with a posted WRITE of size bytes.
func manyFlows(t *testing.T, cfg Config, n, size int) *line {
	t.Helper()
	cfg.Flows = n
	l := newLine(t, cfg, cfg, n*size, 1)
	for k := range n {
		l.postOn(0, k, Message{Kind: MsgWrite}, bytesOf(size, uint64(k)), k*size)
	}
	return l
}

// allSucceeded fails unless every message of end 0 succeeded.
func (l *line) allSucceeded(t *testing.T) {
	t.Helper()
	for k, f := range l.ends[0].flows {
		if len(f.done) != len(f.out) || slices.ContainsFunc(f.done, func(s uint8) bool { return s != statusSuccess }) {
			t.Fatalf("flow %d: %v of %d messages at %d ns, want success", k, f.done, len(f.out), l.now)
		}
	}
}

// TestManyFlows moves messages of 64 flows in both directions over four paths that lose and duplicate packets
// and die: the rig checks every byte, and the order of completions of each flow.
func TestManyFlows(t *testing.T) {
	const flows, rounds = 64, 4
	cfg := modest()
	cfg.Flows = flows
	l := newLine(t, cfg, cfg, flows*rounds*100, 1)
	l.Loss, l.CtrlDup, l.Jitter = 0.02, 0.1, 20_000
	l.Lose = func(_ int, p *packet) bool { return p.route == RoutePath+1 && l.now < 3_000_000 }
	for r := range rounds {
		for k := range flows {
			for i := range 2 {
				l.receiveOn(1-i, k, 60)
				l.receiveOn(1-i, k, 60)
				l.postOn(i, k, Message{Kind: MsgWriteImm, Flags: wire.FlagImm, Imm: uint32(k)}, bytesOf(100, uint64(r)), (r*flows+k)*100)
				l.postOn(i, k, Message{Kind: MsgSend}, bytesOf(60, uint64(k)), 0)
			}
		}
	}
	if !l.run(4*second, func() bool { return l.finished(0) && l.finished(1) }) {
		t.Fatalf("stuck at %d ns", l.now)
	}
	l.allSucceeded(t)
	for k, f := range l.ends[1].flows {
		if len(f.got) != 2*rounds {
			t.Fatalf("flow %d: %d messages delivered, want %d", k, len(f.got), 2*rounds)
		}
	}
	c := l.ends[0].conn
	if c.flying != 0 || c.lost != 0 || c.Stats().PathsDown == 0 || c.Stats().Retransmitted == 0 {
		t.Fatalf("%d flying, %d lost, %+v: want none left, and a path that went down", c.flying, c.lost, c.Stats())
	}
}

// TestAllFlows opens the maximum number of flows.
func TestAllFlows(t *testing.T) {
	l := manyFlows(t, Config{Paths: 4, Window: 2, ChunkBytes: 16, SendDepth: 1, PeerCredit: 64, PathDepth: 32}, MaxFlows, 32)
	l.Loss = 0.01
	l.finish(t, 4*second)
	l.allSucceeded(t)
}

// TestFlowsTakeTurns: one flow has ten times as much to send as the others, posted first. It does not delay
// them.
func TestFlowsTakeTurns(t *testing.T) {
	const flows, size = 8, 800
	cfg := modest()
	cfg.Flows, cfg.PeerCredit, cfg.RecvCredit = flows, 8, 8
	l := newLine(t, cfg, cfg, 10*flows*size, 1)
	l.postOn(0, 0, Message{Kind: MsgWrite}, bytesOf(10*size, 1), 0)
	for k := 1; k < flows; k++ {
		l.postOn(0, k, Message{Kind: MsgWrite}, bytesOf(size, uint64(k)), (9+k)*size)
	}
	others := func() bool {
		for _, f := range l.ends[0].flows[1:] {
			if len(f.done) == 0 {
				return false
			}
		}
		return true
	}
	if !l.run(second, others) {
		t.Fatalf("stuck at %d ns", l.now)
	}
	sent := int(l.ends[0].conn.flows[0].send.nxt) * 16
	if sent > size+size/2 {
		t.Fatalf("flow 0 has sent %d bytes when the others had done with %d each, want about as much", sent, size)
	}
	l.finish(t, second)
	l.allSucceeded(t)
}

// TestOneFlowFails: the peer refuses one flow's requests. Only that flow's messages fail.
func TestOneFlowFails(t *testing.T) {
	cfg := modest()
	cfg.Flows = 4
	l := newLine(t, cfg, cfg, 1<<13, 1)
	for k := range 4 {
		l.receiveOn(1, k, 8*(1+k%2)) // too short for some
		l.receiveOn(1, k, 16)
	}
	for k := range 4 {
		l.postOn(0, k, Message{Kind: MsgSend}, bytesOf(16, uint64(k)), 0)
		l.postOn(0, k, Message{Kind: MsgSend}, bytesOf(16, uint64(k)), 0)
		l.postOn(0, k, Message{Kind: MsgWrite}, bytesOf(500, uint64(k)), k*500)
	}
	l.finish(t, second)
	for k, f := range l.ends[0].flows {
		want := []uint8{0, 0, 0}
		if k%2 == 0 {
			want = []uint8{statusInvalid, statusFlush, statusFlush}
		}
		if !slices.Equal(f.done, want) || l.ends[0].conn.Failed(k) != (k%2 == 0) {
			t.Fatalf("flow %d ended with %v, want %v", k, f.done, want)
		}
	}
	if c := l.ends[0].conn; c.flying != 0 || c.flyingBytes != 0 || c.lost != 0 || c.Over() {
		t.Fatalf("%d flying, %d bytes, %d lost, over %v: want none", c.flying, c.flyingBytes, c.lost, c.Over())
	}
	l.postOn(0, 0, Message{Kind: MsgWrite}, bytesOf(16, 1), 4000)
	l.postOn(0, 1, Message{Kind: MsgWrite}, bytesOf(16, 1), 4100)
	if !l.run(l.now+second, func() bool { return l.finished(0) }) || l.ends[0].flows[0].done[3] != statusFlush || l.ends[0].flows[1].done[3] != 0 {
		t.Fatalf("flows 0 and 1 ended with %v and %v, want a flush and a success", l.ends[0].flows[0].done, l.ends[0].flows[1].done)
	}
}

// TestCloseInFlight closes a flow with transmissions still in memory: no path refers to it when its messages
// complete, and the other flow continues.
func TestCloseInFlight(t *testing.T) {
	cfg := modest()
	cfg.Flows = 2
	c := newConn(t, cfg)
	for k := range 2 {
		if err := c.Open(k, FlowConfig{}); err != nil {
			t.Fatalf("Open(%d) = %v, want none", k, err)
		}
	}
	used := map[uint16]bool{}
	for _, a := range c.Step(1, &Event{Kind: EvPost, Flow: 1, Message: Message{Kind: MsgWrite, Length: 20}}) {
		if a.Kind == ActSend {
			used[a.Path] = true
		}
	}
	c.Step(2, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 300}})
	acts := c.Step(3, &Event{Kind: EvClose, Flow: 1, Status: statusFlush})
	ended := false
	for _, a := range acts {
		switch a.Kind {
		case ActReset:
			if ended || !used[a.Path] {
				t.Fatalf("path %d is reset, ended %v: want those of %v, before the completion", a.Path, ended, used)
			}
			delete(used, a.Path)
		case ActComplete:
			if ended = true; a.Flow != 1 || a.Status != statusFlush {
				t.Fatalf("%+v, want flow 1 flushed", a)
			}
		default:
		}
	}
	if !ended || len(used) != 0 || c.Over() || c.Failed(0) {
		t.Fatalf("ended %v, paths %v not reset: want all of them, and flow 0 alive", ended, used)
	}
	acts = c.Step(4, &Event{Kind: EvClose, Flow: 0, Status: statusFlush})
	resets := 0
	for _, a := range acts {
		if a.Kind == ActReset {
			resets++
		}
	}
	if !c.Over() || resets+int(c.Stats().PathsDown) < cfg.Paths || c.Deadline() != Never {
		t.Fatalf("over %v, %d resets, deadline %d: want every path reset and no timer with the last flow", c.Over(), resets, c.Deadline())
	}
}

// TestNoSuchFlow: packets for a flow that is not open are counted and dropped.
func TestNoSuchFlow(t *testing.T) {
	cfg := modest()
	cfg.Flows = 3
	c := newConn(t, cfg)
	if err := c.Open(1, FlowConfig{}); err != nil {
		t.Fatalf("Open = %v, want none", err)
	}
	for _, n := range []uint16{0, 2, 3, wire.MaxFlow} {
		before := c.Stats()
		for _, ev := range []Event{
			{Kind: EvData, Imm: wire.Imm{Flow: n, AckReq: true}},
			{Kind: EvChunk, Imm: wire.Imm{Kind: wire.KindChunk, Flow: n}, Header: wire.Header{Op: wire.OpNotify}},
			{Kind: EvRecord, Record: wire.Record{Type: wire.Ack, Flow: n}},
			{Kind: EvRecord, Record: wire.Record{Type: wire.Solicit, Flow: n}},
			{Kind: EvRecord, Record: wire.Record{Type: wire.Fault, Flow: n}},
		} {
			if acts := c.Step(1, &ev); len(acts) != 0 {
				t.Fatalf("%+v of flow %d leads to %+v, want nothing", ev, n, acts)
			}
		}
		if after := c.Stats(); after.Refused != before.Refused+2 || after.BadRecords != before.BadRecords+3 {
			t.Fatalf("flow %d: %+v after %+v, want 2 refused and 3 bad records more", n, after, before)
		}
	}
	for _, n := range []int{-1, 1, 3} {
		if err := c.Open(n, FlowConfig{}); err == nil {
			t.Fatalf("Open(%d) = nil, want an error", n)
		}
	}
}

// TestAckOfOneFlow: an acknowledgement for one flow does not imply the loss of an earlier chunk of another
// flow on the same path, whose own acknowledgement may be in flight.
func TestAckOfOneFlow(t *testing.T) {
	cfg := modest()
	cfg.Flows, cfg.Paths = 2, 1
	c := newConn(t, cfg)
	for k := range 2 {
		if err := c.Open(k, FlowConfig{}); err != nil {
			t.Fatalf("Open(%d) = %v, want none", k, err)
		}
		c.Step(1+100_000*int64(k), &Event{Kind: EvPost, Flow: uint16(k), Message: Message{Kind: MsgWrite, Length: 16}})
	}
	c.Step(500_000, &Event{Kind: EvRecord, Record: wire.Record{Type: wire.Ack, Flow: 1, Cum: 1, Window: 64}})
	if s := c.Stats(); s.SamePathLoss+s.ReorderLoss != 0 || c.flying != 1 {
		t.Fatalf("%+v, %d flying: want nothing lost", s, c.flying)
	}
}

// TestIdleThenNoReceive: a SEND after a long idle period finds the peer without a receive. Its timeout starts
// then, not at the previous event.
func TestIdleThenNoReceive(t *testing.T) {
	cfg := modest()
	cfg.RecvPatience = 1_000_000
	c := newConn(t, cfg)
	c.Step(1, &Event{Kind: EvRecord, Record: wire.Record{Type: wire.Ack, Window: 64}})
	c.Step(second, &Event{Kind: EvPost, Message: Message{Kind: MsgSend, Length: 1}})
	c.Step(second+900_000, &Event{Kind: EvTick})
	if c.Failed(0) {
		t.Fatalf("the SEND has failed after 0.9 ms, want 1 ms of patience")
	}
	c.Step(second+1_100_000, &Event{Kind: EvTick})
	if !c.Failed(0) {
		t.Fatalf("the SEND has not failed after 1.1 ms, want 1 ms of patience")
	}
}

// TestFlowTimers compares the heap of timers with a plain search.
func TestFlowTimers(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 20).Draw(rt, "flows")
		c := newConn(rt, Config{Paths: 1, Window: 2, SendDepth: 1, Flows: n})
		for k := range n {
			if err := c.Open(k, FlowConfig{}); err != nil {
				rt.Fatalf("Open(%d) = %v, want none", k, err)
			}
		}
		for range 100 {
			at := rapid.Int64Range(0, 50).Draw(rt, "at")
			if at == 0 {
				at = never
			}
			c.flows[rapid.IntRange(0, n-1).Draw(rt, "flow")].setDue(at)
			want := int64(never)
			for k, f := range c.flows {
				want = min(want, f.due)
				if int(c.heap[f.heapIndex]) != k {
					rt.Fatalf("flow %d is at %d of the heap, where flow %d is", k, f.heapIndex, c.heap[f.heapIndex])
				}
			}
			if got := c.nextFlowTimer(); got != want {
				rt.Fatalf("the next timer is at %d, want %d", got, want)
			}
		}
	})
}

// TestFailedFlowAnswers: sending on a flow that the peer has failed returns RETRY_EXC immediately, even while
// waiting for a receive, and does not count against any path.
func TestFailedFlowAnswers(t *testing.T) {
	for _, kind := range []MessageKind{MsgWrite, MsgSend} {
		cfg := modest()
		cfg.Flows = 2
		l := newLine(t, cfg, cfg, 1<<12, 1)
		l.step(1, Event{Kind: EvClose, Flow: 1, Status: statusFlush})
		l.postOn(0, 1, Message{Kind: kind}, bytesOf(500, 1), 0)
		l.postOn(0, 1, Message{Kind: MsgWrite}, bytesOf(5, 1), 600)
		l.postOn(0, 0, Message{Kind: MsgWrite}, bytesOf(500, 1), 1000)
		if !l.run(200_000, func() bool { return l.finished(0) }) {
			t.Fatalf("kind %d: %v has ended after 200 us, want RETRY_EXC", kind, l.ends[0].flows[1].done)
		}
		if got := l.ends[0].flows[1].done; !slices.Equal(got, []uint8{statusRetryExc, statusFlush}) || l.ends[0].done[0] != statusSuccess {
			t.Fatalf("kind %d: ended with %v and %v, want RETRY_EXC, a flush, and a success of flow 0", kind, got, l.ends[0].done)
		}
		for i := range l.ends {
			if s := l.ends[i].conn.Stats(); s.PathsDown != 0 {
				t.Fatalf("kind %d: %d paths of end %d went down, want none", kind, s.PathsDown, i)
			}
		}
	}
}

// TestSilentFlow: one flow does not get responses, as if the peer had not opened it, while another is busy.
// The paths are not blamed.
func TestSilentFlow(t *testing.T) {
	cfg := modest()
	cfg.Flows = 2
	l := newLine(t, cfg, cfg, 1<<16, 1)
	l.Lose = func(from int, p *packet) bool {
		if p.rec.Type != 0 {
			return from == 0 && p.rec.Type == wire.Solicit && p.rec.Flow == 1
		}
		return from == 0 && p.imm.Flow == 1
	}
	l.postOn(0, 1, Message{Kind: MsgWrite}, bytesOf(100, 1), 0)
	for i := range 100 {
		l.postOn(0, 0, Message{Kind: MsgWrite}, bytesOf(600, uint64(i)), 1000+600*i)
		limit := int64(i+1) * 5_000_000
		l.run(limit, func() bool { return false })
		l.now = max(l.now, limit)
	}
	if n := len(l.ends[0].done); n != 100 {
		t.Fatalf("%d messages of flow 0 have ended after %d ns, want 100", n, l.now)
	}
	if s := l.ends[0].conn.Stats(); s.PathsDown != 0 {
		t.Fatalf("%d paths went down for a flow that gets no answer, want none", s.PathsDown)
	}
}
