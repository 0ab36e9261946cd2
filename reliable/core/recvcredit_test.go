package core

import (
	"slices"
	"testing"

	"ibverbx/reliable/wire"
)

// sharing is the state of an end whose flows share receives.
type sharing struct {
	shared   bool
	pool     int // ungranted receives
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

// promise grants shared receives to the flows that want some, round-robin. It reports whether it granted any.
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

// want records the number of messages that the peer of end i wants to send.
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

// TestSharedReceives sends messages on two flows that share fewer receives. None fails, both flows get
// receives, and every granted receive is used.
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

// TestSharedReceiveRoundTrips: with shared receives a single SEND costs one extra round trip, and a stream of
// SENDs costs it once.
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

// TestSharedReceivesAskedInTraffic loses the first receive requests while the peer's READs keep chunks in
// flight: the request is retransmitted.
func TestSharedReceivesAskedInTraffic(t *testing.T) {
	cfg := modest()
	cfg.SendDepth = 4096
	l := newShared(t, cfg, 1)
	l.ends[0].conn.flows[0].send.recvCredit.shared = true // as if learned from an acknowledgement
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

// TestSharedPatience: the peer is slow to respond. The sender does not time out while the peer may have
// receives; the timeout starts when it has reported none.
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

// TestFalseWant: a peer that requests more receives than it can use is not granted any.
func TestFalseWant(t *testing.T) {
	l := newShared(t, modest(), 4)
	for _, want := range []uint32{1 << 20, 1<<31 - 1} {
		l.step(1, Event{Kind: EvRecord, Record: wire.Record{Type: wire.Solicit, Want: want}})
	}
	if e := &l.ends[1]; e.pool != 4 || e.conn.Stats().BadRecords != 2 {
		t.Fatalf("%d receives are left, %d records are bad, want 4 and 2", e.pool, e.conn.Stats().BadRecords)
	}
}
