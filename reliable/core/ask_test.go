package core

import (
	"slices"
	"testing"

	"ibverbx/reliable/wire"
)

// sharing is what an end has whose flows share receives.
type sharing struct {
	shared   bool
	pool     int // how many receives are not promised
	poolSize int // their length
	turn     int // the flow that gets the next one
}

// share makes the flows of end i share receives.
func (r *rig) share(i int) {
	e := &r.ends[i]
	e.shared = true
	for n := range e.flows {
		e.conn.Share(n)
	}
}

// promise promises shared receives to the flows that want some, one to each in turn. It reports whether
// there were any.
func (e *end) promise() (some bool) {
	for idle := 0; e.pool > 0 && idle < len(e.flows); idle++ {
		n := e.turn
		e.turn = (e.turn + 1) % len(e.flows)
		if f := e.flows[n]; int(f.wanted) > len(f.receives) {
			e.pool--
			f.receives = append(f.receives, make([]byte, e.poolSize))
			e.events = append(e.events, Event{Kind: EvReceives, Flow: uint16(n), Count: 1})
			some, idle = true, -1
		}
	}
	return some
}

// want takes the number of messages that the peer of end i has.
func (e *end) want(i int, a *Action) {
	f := e.flows[a.Flow]
	if !e.shared || int(a.Len) <= len(f.receives) {
		violatef("end %d: the peer wants %d receives of flow %d, which has %d", i, a.Len, a.Flow, len(f.receives))
	}
	f.wanted = max(f.wanted, a.Len)
	if !e.promise() {
		e.events = append(e.events, Event{Kind: EvReceives, Flow: a.Flow})
	}
}

// newShared returns a line whose end 1 has shared receives.
func newShared(tb testing.TB, cfg Config, receives int) *line {
	tb.Helper()
	l := newLine(tb, cfg, cfg, 64, 1)
	l.share(1)
	for range receives {
		l.receive(1, 16)
	}
	return l
}

// TestSharedReceives sends messages of two flows that share receives, more than there are. None fails, the
// receives go to both flows, and none is promised that no message takes.
func TestSharedReceives(t *testing.T) {
	const messages = 100
	cfg := modest()
	cfg.Flows, cfg.SendDepth = 2, messages
	l := newShared(t, cfg, 3)
	for n := range messages {
		l.postOn(0, n%2, Message{Kind: MsgSend}, bytesOf(8, uint64(n)), 0)
	}
	e := &l.ends[1]
	for n := range messages - 3 {
		if !l.run(l.now+second, func() bool { return len(e.flows[0].got)+len(e.flows[1].got) > n }) {
			t.Fatalf("stuck: %d and %d messages have arrived, %d receives are left", len(e.flows[0].got), len(e.flows[1].got), e.pool)
		}
		if a, b := len(e.flows[0].got), len(e.flows[1].got); max(a, b) > min(a, b)+4 {
			t.Fatalf("%d and %d messages have arrived: want the flows to take turns", a, b)
		}
		l.receive(1, 16)
	}
	if !l.run(l.now+second, func() bool { return l.finished(0) }) || e.pool != 0 {
		t.Fatalf("%v and %v, %d receives left, want all taken", l.ends[0].flows[0].done, l.ends[0].flows[1].done, e.pool)
	}
}

// TestSharedReceiveRoundTrips wants a SEND to cost one round trip more than with receives of its own, and a
// stream of them to cost it once.
func TestSharedReceiveRoundTrips(t *testing.T) {
	const messages = 400
	cfg := modest()
	cfg.SendDepth, cfg.Window = messages, 64
	took := func(shared bool, n int) int64 {
		l := newLine(t, cfg, cfg, 64, 1)
		if shared {
			l.share(1)
		}
		for range n {
			l.receive(1, 16)
		}
		l.run(second, func() bool { return len(l.queue) == 0 })
		start := l.now
		for i := range n {
			l.post(0, Message{Kind: MsgSend}, bytesOf(8, uint64(i)), 0)
		}
		if !l.run(l.now+second, func() bool { return l.finished(0) }) {
			t.Fatalf("%d of %d messages have ended", len(l.ends[0].done), n)
		}
		return l.now - start
	}
	for _, n := range []int{1, messages} {
		own, shared := took(false, n), took(true, n)
		if shared > own+3*2*10_000/2 {
			t.Errorf("%d messages take %d ns with shared receives, %d with own ones: want a round trip of 20 us more", n, shared, own)
		}
	}
}

// TestSharedReceivesAskedInTraffic loses the first questions for a receive while READs of the peer keep chunks in
// flight: the question is asked again.
func TestSharedReceivesAskedInTraffic(t *testing.T) {
	cfg := modest()
	cfg.SendDepth = 4096
	l := newShared(t, cfg, 1)
	l.ends[0].conn.flows[0].send.ask.shared = true // as an acknowledgement has told
	lost := 0
	l.Lose = func(from int, p *packet) bool {
		if from == 0 && p.rec.Type == wire.Solicit && lost < 3 {
			lost++
			return true
		}
		return false
	}
	reads := 0
	l.post(0, Message{Kind: MsgSend}, bytesOf(8, 1), 0)
	if !l.run(second, func() bool {
		for ; reads < len(l.ends[1].done)+8; reads++ {
			l.read(1, 0, 0, 64, false)
		}
		return l.finished(0)
	}) || lost != 3 {
		t.Fatalf("the SEND has not ended after %d READs, %d questions were lost", reads, lost)
	}
}

// TestSharedPatience has a peer that is slow to answer. While it may have receives nobody gives up. Patience
// begins when it has answered that it has none.
func TestSharedPatience(t *testing.T) {
	const delay, patience = 5_000_000, 1_000_000
	for _, tt := range []struct {
		receives int
		want     uint8
	}{{1, statusSuccess}, {0, statusRNRExc}} {
		cfg := modest()
		cfg.RecvPatience = patience
		l := newShared(t, cfg, 1+tt.receives)
		l.post(0, Message{Kind: MsgSend}, bytesOf(8, 1), 0)
		l.run(second, func() bool { return l.finished(0) && len(l.queue) == 0 })
		start := l.now
		l.Extra = func(int, *packet) int64 { return delay }
		l.post(0, Message{Kind: MsgSend}, bytesOf(8, 2), 0)
		if !l.run(second, func() bool { return l.finished(0) }) || !slices.Equal(l.ends[0].done, []uint8{statusSuccess, tt.want}) {
			t.Fatalf("%d receives: ends with %v after %d ns, want %d", tt.receives, l.ends[0].done, l.now-start, tt.want)
		}
		if early := l.now-start < 2*delay+patience; tt.receives == 0 && early {
			t.Errorf("gave up after %d ns, want an answer and then patience of %d", l.now-start, patience)
		}
	}
}

// TestFalseWant asks for more receives than a peer can use: nothing is promised.
func TestFalseWant(t *testing.T) {
	l := newShared(t, modest(), 4)
	for _, want := range []uint32{1 << 20, 1<<31 - 1} {
		l.step(1, Event{Kind: EvRecord, Record: wire.Record{Type: wire.Solicit, Want: want}})
	}
	if e := &l.ends[1]; e.pool != 4 || e.conn.Stats().BadRecords != 2 {
		t.Fatalf("%d receives are left, %d records are bad, want 4 and 2", e.pool, e.conn.Stats().BadRecords)
	}
}
