package core

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"ibverbx/reliable/wire"
)

// transfer posts one WRITE of n chunks, runs until it completes, and returns the line.
func transfer(t *testing.T, n int, set func(l *line)) *line {
	t.Helper()
	l := newLine(t, modest(), modest(), 16*n, 1)
	set(l)
	l.post(0, Message{Kind: MsgWrite}, bytesOf(16*n, 1), 0)
	if !l.run(second, func() bool { return l.finished(0) }) {
		t.Fatalf("stuck at %d ns with %d of %d chunks acknowledged", l.now, l.ends[0].conn.flows[0].send.una, n)
	}
	if s := l.ends[0].done[0]; s != statusSuccess {
		t.Fatalf("ended with %d, want success", s)
	}
	return l
}

// isChunk reports whether p carries chunk csn for the first time.
func isChunk(p *packet, csn int) bool {
	return p.route >= RoutePath && p.imm.Kind != wire.KindControl && p.hdr.Xmit == 0 && int(p.imm.CSN) == csn
}

// TestEverySingleLoss loses each chunk of 40 once, and every pair of 12: each loss costs just one
// retransmission, and little time.
func TestEverySingleLoss(t *testing.T) {
	base := transfer(t, 40, func(*line) {}).now
	for k := range 40 {
		l := transfer(t, 40, func(l *line) {
			l.Lose = func(from int, p *packet) bool { return from == 0 && isChunk(p, k) }
		})
		if s := l.ends[0].conn.Stats(); s.Retransmitted != 1 {
			t.Fatalf("chunk %d lost: %d repetitions, want 1", k, s.Retransmitted)
		}
		if l.now > base+400_000 {
			t.Fatalf("chunk %d lost: took %d ns instead of %d", k, l.now, base)
		}
	}
	for a := range 12 {
		for b := range a {
			l := transfer(t, 12, func(l *line) {
				l.Lose = func(from int, p *packet) bool { return from == 0 && (isChunk(p, a) || isChunk(p, b)) }
			})
			if s := l.ends[0].conn.Stats(); s.Retransmitted != 2 {
				t.Fatalf("chunks %d and %d lost: %d repetitions, want 2", a, b, s.Retransmitted)
			}
		}
	}
}

// TestSamePathLossIsImmediate loses one chunk in the middle of a stream: the next chunk on its path reveals
// the loss, before any timer.
func TestSamePathLossIsImmediate(t *testing.T) {
	l := transfer(t, 40, func(l *line) {
		l.Lose = func(from int, p *packet) bool { return from == 0 && isChunk(p, 7) }
	})
	if s := l.ends[0].conn.Stats(); s.SamePathLoss != 1 || s.ReorderLoss != 0 || s.TimeoutLoss != 0 {
		t.Fatalf("found %d by the path, %d by others, %d by time, want 1, 0, 0", s.SamePathLoss, s.ReorderLoss, s.TimeoutLoss)
	}
}

// TestLastAckLost loses the first acknowledgements of a message. In UCCL a duplicate is dropped without a
// response, and the sender retransmits it forever.
func TestLastAckLost(t *testing.T) {
	for lost := 1; lost <= 6; lost++ {
		left := lost
		l := transfer(t, 1, func(l *line) {
			l.Lose = func(from int, p *packet) bool {
				if from != 1 || p.rec.Type != wire.Ack || left == 0 {
					return false
				}
				left--
				return true
			}
		})
		if l.now > 50_000_000 {
			t.Fatalf("%d acknowledgements lost: took %d ns, want at most 50 ms", lost, l.now)
		}
	}
}

// TestDuplicateIsAcknowledged: a duplicate chunk is acknowledged immediately and reported as a duplicate.
func TestDuplicateIsAcknowledged(t *testing.T) {
	c := newConn(t, modest())
	ev := Event{Kind: EvData, Imm: wire.Imm{CSN: 0}, Count: 16}
	c.Step(1, &ev)
	acts := c.Step(2, &ev)
	if len(acts) != 1 || acts[0].Kind != ActControl || acts[0].Record.Flags&wire.AckDup == 0 || acts[0].Record.Cum != 1 {
		t.Fatalf("a duplicate leads to %+v, want one acknowledgement of 1 that says so", acts)
	}
}

// TestAcksLost loses half of all control packets, and duplicates some.
func TestAcksLost(t *testing.T) {
	for seed := range uint64(20) {
		transfer(t, 200, func(l *line) {
			l.rng = rand.New(rand.NewPCG(seed, 1))
			l.CtrlDup = 0.1
			l.Lose = func(_ int, p *packet) bool { return p.route < RoutePath && l.rng.IntN(2) == 0 }
		})
	}
}

// TestControlPathsDead loses every datagram: acknowledgements use the data paths instead.
func TestControlPathsDead(t *testing.T) {
	l := transfer(t, 100, func(l *line) {
		l.Lose = func(_ int, p *packet) bool { return p.route < RoutePath }
	})
	if l.now > 100_000_000 {
		t.Fatalf("took %d ns, want at most 100 ms", l.now)
	}
}

// TestBlackHole kills paths in the middle of a transfer, in one direction or both. In UCCL a retransmission
// stays on the path of the original, forever.
func TestBlackHole(t *testing.T) {
	base := transfer(t, 400, func(*line) {}).now
	for _, dead := range []int{1, 2, 3} {
		for _, way := range []string{"both", "there", "back"} {
			t.Run(fmt.Sprintf("paths=%d/way=%s", dead, way), func(t *testing.T) {
				l := transfer(t, 400, func(l *line) {
					l.Lose = func(from int, p *packet) bool {
						return l.now > 15_000 && p.route >= RoutePath && int(p.route-RoutePath) < dead &&
							(way == "both" || (way == "there") == (from == 0))
					}
				})
				if l.now > base+1_000_000 {
					t.Fatalf("took %d ns instead of %d, want at most 1 ms more", l.now, base)
				}
				s := l.ends[0].conn.Stats()
				if want := uint64(dead); way != "back" && s.PathsDown < want {
					t.Fatalf("%d paths went down, want %d", s.PathsDown, want)
				}
			})
		}
	}
}

// TestAllPathsDead: requests fail within the timeout, and everything else is flushed in order.
func TestAllPathsDead(t *testing.T) {
	cfg := modest()
	l := newLine(t, cfg, cfg, 4096, 1)
	l.Lose = func(_ int, p *packet) bool { return p.route >= RoutePath }
	for range 3 {
		l.post(0, Message{Kind: MsgWrite}, bytesOf(64, 1), 0)
	}
	l.finish(t, 10*second, statusRetryExc, statusFlush, statusFlush)
	if l.now != 5*second {
		t.Fatalf("gave up after %d ns, want 5 s", l.now)
	}
	l.post(0, Message{Kind: MsgWrite}, bytesOf(64, 1), 0)
	if d := l.ends[0].done; len(d) != 4 || d[3] != statusFlush {
		t.Fatalf("a later message ends with %v, want a flush", d)
	}
	if at := l.ends[0].conn.Deadline(); at != Never {
		t.Fatalf("a failed connection has a timer at %d, want none", at)
	}
}

// TestPauseIsNoSilence: a process is stopped for much longer than GiveUp while its peer is silent. The pause
// does not count, because the peer may have been alive. The timeout fires 5 s after the process resumes, less
// the time waited before.
func TestPauseIsNoSilence(t *testing.T) {
	cfg := modest()
	l := newLine(t, cfg, cfg, 4096, 1)
	l.Lose = func(_ int, p *packet) bool { return p.route >= RoutePath }
	l.post(0, Message{Kind: MsgWrite}, bytesOf(64, 1), 0)
	if l.run(second, func() bool { return l.finished(0) }) {
		t.Fatalf("the message ends with %v after %d ns, want it under way", l.ends[0].done, l.now)
	}
	waited := l.now
	const pause = 100 * second
	l.now = l.ends[0].conn.Deadline() + pause
	l.finish(t, 10*second)
	if total := l.now - pause; total != 5*second || waited > 2*second {
		t.Fatalf("gave up after %d ns and a pause, want 5 s", total)
	}
	if d := l.ends[0].done; d[0] != statusRetryExc {
		t.Fatalf("the message ends with %v, want %d", d, statusRetryExc)
	}
}

// TestPathComesBack kills a path for a while: it goes down, recovers with new QPs, and carries data again.
func TestPathComesBack(t *testing.T) {
	l := newLine(t, modest(), modest(), 1<<16, 1)
	l.Lose = func(_ int, p *packet) bool {
		return p.route == RoutePath && l.now > 15_000 && l.now < 10_000_000
	}
	onPath := 0
	l.Extra = func(from int, p *packet) int64 {
		if from == 0 && p.route == RoutePath && p.imm.Kind != wire.KindControl && l.now > 10_000_000 {
			onPath++
		}
		return 0
	}
	next := 0
	ok := l.run(second, func() bool {
		for l.ends[0].conn.Room(0) > 250 && next < 60_000 {
			l.post(0, Message{Kind: MsgWrite}, bytesOf(160, uint64(next)), next)
			next += 160
		}
		return next >= 60_000 && l.finished(0) && l.ends[0].conn.PathState(0) == PathUp
	})
	if !ok {
		t.Fatalf("at %d ns path 0 is %v, %d messages ended", l.now, l.ends[0].conn.PathState(0), len(l.ends[0].done))
	}
	a, b := l.ends[0].conn, l.ends[1].conn
	if a.Epoch(0) == 0 || a.Epoch(0) != b.Epoch(0) {
		t.Fatalf("path 0 is in epochs %d and %d, want the same one above 0", a.Epoch(0), b.Epoch(0))
	}
	l.post(0, Message{Kind: MsgWrite}, bytesOf(64*16, 5), next)
	if !l.run(2*second, func() bool { return l.finished(0) }) || onPath == 0 {
		t.Fatalf("%d chunks on the path since it is back, want some", onPath)
	}
}

// TestLateOriginal delays a path's packets by 5 ms, until after the failover: no data is written after the
// completion. The rig panics otherwise.
func TestLateOriginal(t *testing.T) {
	for _, p := range []plant{plantNone, plantNoFence} {
		broken := attempt(func() {
			cfg := modest()
			cfg.Recovery = second // the path must not recover earlier
			l := newLine(t, cfg, cfg, 16*40, 1)
			l.plant = p
			l.Extra = func(from int, p *packet) int64 {
				if from == 0 && p.route == RoutePath {
					return 5_000_000
				}
				return 0
			}
			l.post(0, Message{Kind: MsgWrite}, bytesOf(16*40, 1), 0)
			l.finish(t, second)
			if l.now > 4_000_000 {
				t.Fatalf("took %d ns, want the failover before the packets come", l.now)
			}
			l.run(l.now+20_000_000, func() bool { return false })
		})
		if (broken != "") != (p == plantNoFence) {
			t.Fatalf("plant %d: broken promise %q, want one only without the fence", p, broken)
		}
	}
}

// TestFenceBeforeAck: when a fragment of a WRITE arrives on another path, the old path is reset, then the
// data is placed, then it is acknowledged.
func TestFenceBeforeAck(t *testing.T) {
	c := newConn(t, modest())
	acts := c.Step(1, &Event{
		Kind: EvChunk, Path: 1, Imm: wire.Imm{Kind: wire.KindChunk, AckReq: true},
		Header: wire.Header{Op: wire.OpWrite, Xmit: 2, OrigPath: 3, Len: 16},
	})
	want := []ActionKind{ActReset, ActPlace, ActControl}
	for i, k := range want {
		if len(acts) != len(want) || acts[i].Kind != k {
			t.Fatalf("actions %+v, want kinds %v", acts, want)
		}
	}
	if acts[0].Path != 3 {
		t.Fatalf("path %d is reset, want 3", acts[0].Path)
	}
}

// TestWrap sends 200,000 chunks: the sequence numbers wrap three times.
func TestWrap(t *testing.T) {
	l := newLine(t, modest(), modest(), 1<<12, 1)
	l.Loss = 0.002
	n := 0
	ok := l.run(60*second, func() bool {
		for l.ends[0].conn.Room(0) > 0 && n < 1000 {
			l.post(0, Message{Kind: MsgWrite}, make([]byte, 16*200), 0)
			n++
		}
		clear(l.ends[1].settled) // the range is reused
		return n == 1000 && l.finished(0)
	})
	if !ok || l.ends[0].conn.flows[0].send.nxt != 200_000 {
		t.Fatalf("%d chunks sent at %d ns, %d messages of 1000 ended", l.ends[0].conn.flows[0].send.nxt, l.now, len(l.ends[0].done))
	}
}

// TestSlowPath adds 100 us and 10 ms to one path: everything arrives, and new chunks avoid it.
func TestSlowPath(t *testing.T) {
	for _, extra := range []int64{100_000, 10_000_000} {
		l := transfer(t, 2000, func(l *line) {
			l.Extra = func(_ int, p *packet) int64 {
				if p.route == RoutePath {
					return extra
				}
				return 0
			}
		})
		s := l.ends[0].conn.Stats()
		if s.Retransmitted > s.Chunks/50 {
			t.Fatalf("%d ns more: %d of %d chunks were repeated, want at most 2%%", extra, s.Retransmitted, s.Chunks)
		}
	}
}

// TestNoStormWhenTimeStretches multiplies the round trip time by ten in the middle.
func TestNoStormWhenTimeStretches(t *testing.T) {
	l := transfer(t, 2000, func(l *line) {
		l.Extra = func(int, *packet) int64 {
			if l.now > 100_000 {
				return 90_000
			}
			return 0
		}
	})
	s := l.ends[0].conn.Stats()
	if s.Retransmitted > s.Chunks/50 || s.PathsDown > 0 {
		t.Fatalf("%d of %d chunks repeated, %d paths down, want at most 2%% and none", s.Retransmitted, s.Chunks, s.PathsDown)
	}
}

// TestSuspectReturns loses the last chunk of a message: its path becomes suspect, retransmits the chunk, and
// is up again.
func TestSuspectReturns(t *testing.T) {
	suspects := 0
	l := transfer(t, 12, func(l *line) {
		l.Lose = func(from int, p *packet) bool { return from == 0 && isChunk(p, 11) }
		l.Extra = func(from int, p *packet) int64 {
			if from == 0 && p.imm.Kind == wire.KindChunk && l.ends[0].conn.PathState(int(p.route-RoutePath)) == PathSuspect {
				suspects++
			}
			return 0
		}
	})
	if suspects != 1 {
		t.Fatalf("%d repetitions on a suspect path, want 1", suspects)
	}
	c := l.ends[0].conn
	for i := range c.paths {
		if s := c.PathState(i); s != PathUp {
			t.Fatalf("path %d is %v in the end, want UP", i, s)
		}
	}
	if c.Stats().PathsDown != 0 || len(c.up) != len(c.paths) {
		t.Fatalf("%d paths went down, %d are up, want 0 and %d", c.Stats().PathsDown, len(c.up), len(c.paths))
	}
}

// TestDeadPathAndDatagrams kills a path and all of the sender's datagrams, with little space on each path.
// Transmissions ended by silence count against the path once a response arrives. Without that, the chunk was
// retransmitted on the dead path until its limit was reached.
func TestDeadPathAndDatagrams(t *testing.T) {
	cfg := Config{Paths: 4, Window: 2, ChunkBytes: 16, PathDepth: 2, Seed: 2, PeerCredit: 1}
	l := newLine(t, cfg, cfg, 100, 2)
	l.Lose = func(from int, p *packet) bool { return from == 0 && p.route <= RoutePath }
	l.post(0, Message{Kind: MsgWrite}, bytesOf(100, 1), 0)
	l.finish(t, second, statusSuccess)
	if l.now > 20_000_000 {
		t.Fatalf("took %d ns, want at most 20 ms", l.now)
	}
}
