package core

import (
	"testing"

	"pgregory.net/rapid"
)

// modest is a configuration with tiny chunks, so that tests have many.
func modest() Config {
	return Config{Paths: 4, Window: 64, ChunkBytes: 16, PathDepth: 32, PeerCredit: 64}
}

const second = 1_000_000_000

// newConn returns a connection.
func newConn(tb rapid.TB, cfg Config) *Conn {
	tb.Helper()
	c, err := New(cfg)
	if err != nil {
		tb.Fatalf("New = %v, want none", err)
	}
	return c
}

func TestMovesMessages(t *testing.T) {
	l := newLine(t, modest(), modest(), 4096, 1)
	for range 4 {
		l.receive(1, 200)
	}
	l.post(0, Message{Kind: MsgWrite}, bytesOf(1000, 1), 0)
	l.post(0, Message{Kind: MsgWriteImm, Flags: 2, Imm: 0xfedcba98}, bytesOf(500, 2), 1000)
	l.post(0, Message{Kind: MsgSend}, bytesOf(200, 3), 0)
	l.read(0, 0, 100, 700, false)
	l.add(0, 0, false)
	l.read(0, 0, 2048, 0, true)
	l.post(0, Message{Kind: MsgSend, Flags: 2, Imm: 7}, nil, 0)
	l.post(0, Message{Kind: MsgWriteImm}, nil, 0)
	l.post(0, Message{Kind: MsgWrite}, nil, 0)
	l.Extra = func(from int, p *packet) int64 {
		if from == 0 && p.at < 3007 && p.at+len(p.data) > 3007 {
			t.Errorf("a chunk of %d bytes at %d goes over the break at 3007", len(p.data), p.at)
		}
		return 0
	}
	l.post(0, Message{Kind: MsgWrite, Breaks: [MaxBreaks]uint32{7}}, bytesOf(20, 4), 3000)
	if !l.run(second, func() bool { return l.finished(0) }) {
		t.Fatalf("10 messages end in %v after %d ns, want all", l.ends[0].done, l.now)
	}
	if l.now > 1_000_000 {
		t.Fatalf("took %d ns, want at most 1 ms", l.now)
	}
	if n := l.ends[0].conn.Stats().Retransmitted; n != 0 {
		t.Fatalf("%d chunks were repeated without a loss", n)
	}
}

// TestLatestDelayCounts: one measurement of a grown queue is enough to leave a path, however good it was
// before, and one measurement of an empty queue is enough to use it again.
func TestLatestDelayCounts(t *testing.T) {
	c := newConn(t, Config{Paths: 2})
	p, q := &c.paths[0], &c.paths[1]
	p.measured, q.measured = true, true
	c.measure(&q.rtt, 50_000, 50_000)
	for range 20 {
		c.measure(&p.rtt, 10_000, 10_000)
	}
	if q.beats(p) {
		t.Errorf("a path of 50 us is preferred to one of 10 us")
	}
	c.measure(&p.rtt, 200_000, 200_000)
	if !q.beats(p) {
		t.Errorf("a path that took 200 us is preferred to one of 50 us: it is expected to take %d and %d ns", p.expectedDelay(), q.expectedDelay())
	}
	c.measure(&p.rtt, 10_000, 10_000)
	if q.beats(p) {
		t.Errorf("a path that takes 10 us again is not taken: it is expected to take %d and %d ns", p.expectedDelay(), q.expectedDelay())
	}
}

// TestTablesGrow: the ledger of a path starts small and grows only with the transmissions in flight. Its entries can
// still be looked up, even after their numbers wrap.
func TestTablesGrow(t *testing.T) {
	const depth = 16
	for flying := uint32(1); flying <= depth; flying++ {
		c := newConn(t, Config{Paths: 1, PathDepth: depth})
		p := &c.paths[0]
		p.low, p.done, p.next = ^uint32(4), ^uint32(4), ^uint32(4)
		for range 40 {
			if p.next-p.low == flying {
				p.low++
				p.done++
			}
			if !p.hasRoom() {
				t.Fatalf("a path with %d of %d transmissions in flight has no room", p.next-p.low, depth)
			}
			p.append(entry{csn: uint64(p.next)})
			for k := p.low; k != p.next; k++ {
				if got := p.entry(k).csn; got != uint64(k) {
					t.Fatalf("entry %d of a ledger of %d is that of %d", k, len(p.ledger), got)
				}
			}
		}
		if n := uint32(len(p.ledger)); n < flying || n >= 2*max(flying, firstTableLen) {
			t.Errorf("the ledger has %d entries after at most %d were in flight, want at most twice as many", n, flying)
		}
	}
}
