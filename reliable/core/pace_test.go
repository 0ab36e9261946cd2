package core

import (
	"testing"

	"ibverbx/reliable/wire"
)

// steady is a Congestion that never changes.
type steady struct {
	window int
	gap    int64
}

func (*steady) OnAck(int64, int, int64, int64) {}
func (*steady) OnLoss(int64, int, bool)        {}
func (s *steady) Window() int                  { return s.window }
func (s *steady) Gap(int) int64                { return s.gap }

// controlled returns a connection with one Congestion per path, and a function that steps it and returns
// the number of new transmissions by path.
func controlled(t *testing.T, controls ...*steady) (*Conn, func(now int64, ev *Event) []int) {
	t.Helper()
	next := 0
	c, err := New(Config{
		Paths: len(controls), ChunkBytes: 16, PeerCredit: 64, InitialRTT: 1_000_000,
		Congestion: func() Congestion { next++; return controls[next-1] },
	})
	if err != nil {
		t.Fatalf("New = %v, want none", err)
	}
	return c, func(now int64, ev *Event) []int {
		sent := make([]int, len(controls))
		for _, a := range c.Step(now, ev) {
			if a.Kind == ActSend {
				sent[a.Path]++
			}
		}
		return sent
	}
}

// TestPathsRest: a path sends one chunk at a time and the next after its gap, which Deadline reports. Without
// pending chunks Deadline ignores the gap.
func TestPathsRest(t *testing.T) {
	c, step := controlled(t, &steady{4, 10_000}, &steady{4, 25_000})
	sent := step(0, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 16 * 6}})
	// Each chunk is acknowledged immediately, so only the gaps delay the paths.
	for _, want := range []struct {
		at   int64
		sent int
	}{{0, 2}, {10_000, 1}, {20_000, 1}, {25_000, 1}, {30_000, 1}} {
		total := 0
		for csn := c.flows[0].send.nxt; ; csn = c.flows[0].send.nxt {
			n := sent[0] + sent[1]
			if total += n; n == 0 {
				break
			}
			sent = step(c.now, &Event{Kind: EvRecord, Record: wire.Record{Type: wire.Ack, Cum: uint32(csn), Window: 64}})
		}
		if c.now != want.at || total != want.sent {
			t.Errorf("at %d %d chunks were sent, want %d at %d", c.now, total, want.sent, want.at)
		}
		sent = step(min(c.Deadline(), 1_000_000), &Event{Kind: EvTick})
	}
	if c.now != 1_000_000 {
		t.Errorf("a timer at %d after the last chunk, want none: nothing waits for the paths that rest", c.now)
	}
}

// TestNothingToPace: no gaps occur while the paths' windows add up to at least one chunk.
func TestNothingToPace(t *testing.T) {
	c, step := controlled(t, &steady{12, 10_000}, &steady{12, 10_000})
	for k, sent := 0, step(0, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 16 * 6}}); k < 6; k++ {
		if sent[0]+sent[1] != 1 || c.nextPaced() != never {
			t.Fatalf("the paths have sent %v and rest until %d, want one chunk and no rest", sent, c.nextPaced())
		}
		sent = step(0, &Event{Kind: EvRecord, Record: wire.Record{Type: wire.Ack, Cum: uint32(k + 1), Window: 64}})
	}
}

// TestWindowOfEachPath: each path keeps to its own window, and all paths to the total.
func TestWindowOfEachPath(t *testing.T) {
	_, step := controlled(t, &steady{16, 0}, &steady{64, 0}, &steady{32, 0})
	if got := step(0, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 16 * 100}}); got[0] != 1 || got[1] != 4 || got[2] != 2 {
		t.Errorf("the paths have sent %v chunks, want 1, 4 and 2: what their windows hold", got)
	}
	// Windows of a quarter of a chunk: one chunk in flight of the connection, not one of each path.
	_, step = controlled(t, &steady{4, 1000}, &steady{4, 1000}, &steady{4, 1000})
	if got := step(0, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 16 * 100}}); got[0]+got[1]+got[2] != 1 {
		t.Errorf("the paths have sent %v chunks, want one of the connection", got)
	}
}

// TestWindowOfPathDown: the window of a path that goes down is removed from the total, and returns with the
// path.
func TestWindowOfPathDown(t *testing.T) {
	c, step := controlled(t, &steady{32, 0}, &steady{48, 0})
	for _, want := range []struct {
		state PathState
		limit int
	}{{PathSuspect, 48}, {PathUp, 80}, {PathDown, 48}, {PathProbing, 48}, {PathUp, 80}} {
		if c.paths[0].setState(want.state); c.limit != want.limit {
			t.Errorf("the paths allow %d bytes together while one is %v, want %d", c.limit, want.state, want.limit)
		}
	}
	if got := step(0, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 16 * 100}}); got[0] != 2 || got[1] != 3 {
		t.Errorf("the paths have sent %v chunks, want 2 and 3", got)
	}
}
