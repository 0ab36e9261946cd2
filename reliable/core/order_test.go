package core

import (
	"testing"

	"ibverbx/reliable/wire"
)

// count returns the number of actions of a kind.
func count(acts []Action, k ActionKind) (n int) {
	for i := range acts {
		if acts[i].Kind == k {
			n++
		}
	}
	return n
}

// ackUpTo steps c with an acknowledgement of everything before cum.
func ackUpTo(c *Conn, now int64, cum uint32) []Action {
	return c.Step(now, &Event{Kind: EvRecord, Record: wire.Record{Type: wire.Ack, Cum: cum, Window: 64, RecvLimit: 64}})
}

// TestCompletionWaitsForMemory: a message completes only when it is acknowledged and the NIC no longer needs
// its memory, because of a completion or a path reset.
func TestCompletionWaitsForMemory(t *testing.T) {
	for _, end := range []Event{{Kind: EvSent, Count: 1}, {Kind: EvPathFailed}} {
		c := newConn(t, modest())
		acts := c.Step(1, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 16}})
		end.Path = acts[0].Path
		if n := count(ackUpTo(c, 2, 1), ActComplete); n != 0 {
			t.Fatalf("%d completions while the NIC has the memory, want 0", n)
		}
		if n := count(c.Step(3, &end), ActComplete); n != 1 {
			t.Fatalf("%d completions after event %d, want 1", n, end.Kind)
		}
	}
	c := newConn(t, modest())
	path := c.Step(1, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 16}})[0].Path
	if n := count(c.Step(2, &Event{Kind: EvSent, Path: path, Count: 1}), ActComplete); n != 0 {
		t.Fatalf("%d completions before the acknowledgement, want 0", n)
	}
	if n := count(ackUpTo(c, 3, 1), ActComplete); n != 1 {
		t.Fatalf("%d completions after the acknowledgement, want 1", n)
	}
}

// TestUserFence: a fenced message is sent only when the previous one has completed, not when it is merely
// acknowledged.
func TestUserFence(t *testing.T) {
	c := newConn(t, modest())
	path := c.Step(1, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 16}})[0].Path
	if n := count(c.Step(1, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 16, Fence: true}}), ActSend); n != 0 {
		t.Fatalf("%d transmissions of a fenced message, want 0", n)
	}
	if n := count(ackUpTo(c, 2, 1), ActSend); n != 0 {
		t.Fatalf("%d transmissions before the completion, want 0", n)
	}
	if n := count(c.Step(3, &Event{Kind: EvSent, Path: path, Count: 1}), ActSend); n != 1 {
		t.Fatalf("%d transmissions after the completion, want 1", n)
	}
}

// TestPeerWindow never has more transmissions in flight than the peer has receives.
func TestPeerWindow(t *testing.T) {
	cfg := modest()
	cfg.PeerCredit = 3
	c := newConn(t, cfg)
	if n := count(c.Step(1, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 320}}), ActSend); n != 3 {
		t.Fatalf("%d transmissions for 3 receives, want 3", n)
	}
	r := wire.Record{Type: wire.Ack, Cum: 1, Window: 5}
	if n := count(c.Step(2, &Event{Kind: EvRecord, Record: r}), ActSend); n != 3 {
		t.Fatalf("%d more for 5 receives with 2 in flight, want 3", n)
	}
}

// TestFasterPath: of two measured paths the one with the shorter delay is preferred.
func TestFasterPath(t *testing.T) {
	cfg := modest()
	cfg.Paths = 2
	l := newLine(t, cfg, cfg, 1<<16, 1)
	onSlow := 0
	l.Extra = func(from int, p *packet) int64 {
		if p.route != RoutePath+1 {
			return 0
		}
		if from == 0 && p.imm.Kind == wire.KindData {
			onSlow++
		}
		return 300_000
	}
	l.post(0, Message{Kind: MsgWrite}, bytesOf(1<<16, 1), 0)
	l.finish(t, second)
	if onSlow > 1<<16/16/4 {
		t.Fatalf("%d of %d chunks on the slow path, want at most a quarter", onSlow, 1<<16/16)
	}
}

// TestProbesChangeRoute: a sender waits for a receive while the peer's notification and its own datagrams are
// lost. A probe over a data path gets the response.
func TestProbesChangeRoute(t *testing.T) {
	l := newLine(t, modest(), modest(), 64, 1)
	l.Lose = func(from int, p *packet) bool { return p.route < RoutePath && (from == 0 || l.now < 1_000_000) }
	l.post(0, Message{Kind: MsgSend}, bytesOf(8, 1), 0)
	l.receive(1, 8)
	l.finish(t, second)
}
