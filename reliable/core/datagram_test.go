package core

import (
	"container/heap"
	"testing"

	"ibverbx/reliable/wire"
)

// overDatagrams returns modest with shared QPs that reorder, whose bytes software places.
func overDatagrams() Config {
	cfg := modest()
	datagrams(&cfg)
	return cfg
}

// TestDatagramHeaders: every chunk has a header with the upper bits of its number. Other chunks are dropped.
func TestDatagramHeaders(t *testing.T) {
	c := newConn(t, overDatagrams())
	acts := c.Step(0, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 16}})
	if len(acts) != 1 || acts[0].Imm.Kind != wire.KindChunk || acts[0].Header.Op != wire.OpWrite || acts[0].Header.Flags != wire.FlagLap {
		t.Fatalf("a WRITE is sent as %+v, want one chunk with FlagLap", acts)
	}
	chunk := Event{Kind: EvChunk, Imm: wire.Imm{Kind: wire.KindChunk}, Header: wire.Header{Op: wire.OpWrite, Flags: wire.FlagLap, Len: 16}}
	for name, change := range map[string]func(*Event){
		"placed by the NIC":    func(ev *Event) { ev.Kind, ev.Count = EvData, 16 },
		"without FlagLap":      func(ev *Event) { ev.Header.Flags, ev.Header.Xmit = 0, 1 },
		"65,536 chunks late":   func(ev *Event) { ev.Header.Lap = 1<<wire.LapBits - 1 },
		"65,536 chunks early":  func(ev *Event) { ev.Header.Lap = 1 },
		"of the previous lap":  func(ev *Event) { ev.Header.Lap, ev.Imm.CSN = 0, 0xffff },
		"beyond the window":    func(ev *Event) { ev.Imm.CSN = 64 },
		"of an unknown flow":   func(ev *Event) { ev.Imm.Flow = 1 },
		"without the receives": func(ev *Event) { ev.Status = StatusNoRecv },
	} {
		ev, before := chunk, c.Stats().Refused
		change(&ev)
		acts := c.Step(1, &ev)
		if count(acts, ActPlace) != 0 || c.Stats().Refused != before+1 {
			t.Errorf("a chunk %s: %d are placed and %d refused, want 0 and 1", name, count(acts, ActPlace), c.Stats().Refused-before)
		}
	}
	if acts := c.Step(2, &chunk); count(acts, ActPlace) != 1 {
		t.Errorf("a good chunk causes %+v, want ActPlace", acts)
	}
	plain := newConn(t, modest())
	if acts := plain.Step(1, &chunk); count(acts, ActPlace) != 0 || plain.Stats().Refused != 1 {
		t.Errorf("a chunk with FlagLap is placed although the NIC places bytes: %+v", acts)
	}
}

// TestDatagramOvertaken: two later transmissions on a path may overtake a chunk. The third declares it lost. However
// late the original arrives, it is dropped: a completed message's buffer is never written.
func TestDatagramOvertaken(t *testing.T) {
	for _, c := range []struct {
		name string
		by   int // transmissions
		late int64
		lost uint64
	}{{"by two", 2, 1, 0}, {"by three", 3, 1, 1}, {"by many", 20, 1, 1}, {"forever", 39, 5_000_000, 1}} {
		cfg := overDatagrams()
		cfg.Paths, cfg.Window, cfg.PathDepth, cfg.PeerCredit, cfg.MinReorder = 1, 64, 64, 64, second
		l := newLine(t, cfg, cfg, 16*40, 1)
		l.send = func(from int, p *packet) {
			if from == 0 && isChunk(p, 5) {
				l.seq++
				heap.Push(&l.queue, flight{at: l.now + l.Delay + c.late, seq: l.seq, to: 1, pack: *p})
				return
			}
			if from == 0 && p.route >= RoutePath && int(p.imm.CSN) > 5+c.by {
				l.Extra = func(int, *packet) int64 { return c.late + 1 }
			}
			l.take(from, p)
			l.Extra = nil
		}
		l.post(0, Message{Kind: MsgWrite}, bytesOf(16*40, 1), 0)
		if !l.run(second/2, func() bool { return l.finished(0) }) {
			t.Fatalf("%s: stuck at %d ns", c.name, l.now)
		}
		l.run(l.now+20_000_000, func() bool { return false }) // panics if something is written
		if s := l.ends[0].conn.Stats(); s.SamePathLoss+s.ReorderLoss+s.TimeoutLoss != c.lost || s.Retransmitted != c.lost {
			t.Errorf("a chunk overtaken %s: %+v, want %d losses", c.name, s, c.lost)
		}
	}
}

// TestDatagramReferences: a message completes once the shared QPs no longer refer to its memory, even if its path is
// down. A failing flow makes the owner release the references before its messages complete.
func TestDatagramReferences(t *testing.T) {
	c := newConn(t, overDatagrams())
	c.Step(0, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 16}})
	path := c.flows[0].send.chunk(0).path
	c.paths[path].down()
	if acts := ackUpTo(c, 1, 1); count(acts, ActComplete) != 0 {
		t.Fatalf("a message completes although a QP refers to its memory: %+v", acts)
	}
	if acts := c.Step(2, &Event{Kind: EvSent, Path: path, Count: 1}); count(acts, ActComplete) != 1 {
		t.Fatalf("a message without references does not complete: %+v", acts)
	}
	c.Step(3, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 16}})
	reset := false
	for _, a := range c.Step(4, &Event{Kind: EvClose, Status: statusFlush}) {
		reset = reset || a.Kind == ActReset
		if a.Kind == ActComplete && !reset {
			t.Fatal("a message ends before ActReset")
		}
	}
	if !reset {
		t.Fatal("a flow fails without ActReset")
	}
	if s := c.PathState(int(c.up[0])); s != PathUp {
		t.Fatalf("a path is %v after a flow has failed, want UP: others use its QP", s)
	}
}

// TestDatagramBlackHole: a path that drops all packets goes down, is tested by another route, and recovers. The other
// paths carry its traffic meanwhile.
func TestDatagramBlackHole(t *testing.T) {
	cfg := overDatagrams()
	l := newLine(t, cfg, cfg, 16*400, 1)
	l.Lose = func(from int, p *packet) bool { return from == 0 && p.route == RoutePath+1 && l.now < 10_000_000 }
	routes := map[uint16]bool{}
	post := func(k int) {
		l.post(0, Message{Kind: MsgWrite}, bytesOf(16*40, uint64(k)), 16*40*k)
		l.finish(t, second)
	}
	for k := range 10 {
		post(k)
	}
	s := l.ends[0].conn.Stats()
	if s.PathsDown == 0 || l.ends[0].conn.PathState(1) == PathUp {
		t.Fatalf("a path that carries nothing is %v: %+v", l.ends[0].conn.PathState(1), s)
	}
	up := func() bool { return l.ends[0].conn.PathState(1) == PathUp }
	for !up() && l.now < second {
		at, i := l.deadline()
		if len(l.queue) > 0 && l.queue[0].at <= at {
			l.run(l.queue[0].at, up)
			continue
		}
		l.now = max(l.now, at)
		for _, a := range l.ends[i].conn.Step(l.now, &Event{Kind: EvTick}) {
			if a.Kind == ActConnect {
				routes[a.Epoch] = true
			}
			ev := Event{Kind: EvTick}
			l.carry(i, &ev, &a)
		}
	}
	if !up() || len(routes) == 0 {
		t.Fatalf("a path that works again is %v after %d routes, want UP and at least 1", l.ends[0].conn.PathState(1), len(routes))
	}
}

// TestSharedNeedsSoftware: shared QPs cannot keep the fence.
func TestSharedNeedsSoftware(t *testing.T) {
	if _, err := New(Config{Carrier: Carrier{Shared: true}}); err == nil {
		t.Fatal("New with Shared and without Software succeeds, want ErrConfig")
	}
}

// TestDatagramSuspect: a suspect path is tested and recovers, even if other paths have retransmitted its chunks.
func TestDatagramSuspect(t *testing.T) {
	cfg := overDatagrams()
	l := newLine(t, cfg, cfg, 16*40, 1)
	l.post(0, Message{Kind: MsgWrite}, bytesOf(16*40, 1), 0)
	l.finish(t, second)
	c := l.ends[0].conn
	c.paths[2].blame(l.now)
	if s := c.PathState(2); s != PathSuspect {
		t.Fatalf("a blamed path is %v, want SUSPECT", s)
	}
	if !l.run(l.now+second, func() bool { return c.PathState(2) == PathUp }) {
		t.Fatalf("an idle suspect path is %v after a second, want UP", c.PathState(2))
	}
}
