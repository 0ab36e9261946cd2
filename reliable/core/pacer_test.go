package core

import (
	"testing"

	"pgregory.net/rapid"
)

// demand is an ActDemand.
func demand(want, flying, arrived uint64) *Action {
	return &Action{Kind: ActDemand, Bytes: want, Flying: flying, Arrived: arrived}
}

// grants collects all grants at now and returns the sum per connection.
func grants(p *Pacer, now int64, conns int) []int {
	got := make([]int, conns)
	for conn, n, ok := p.Next(now); ok; conn, n, ok = p.Next(now) {
		got[conn] += n
	}
	return got
}

// TestPacerTakesTurns: three connections demand credit. They get one chunk each, round-robin, until the
// port's window is in flight. As bytes of one arrive, the next in turn is granted as many.
func TestPacerTakesTurns(t *testing.T) {
	port := NewPort()
	p := NewPacer(port, 1000, 10_000)
	port.window = 6500
	for i := range 3 {
		p.Join(i, Peer{byte(i)})
	}
	now := int64(1_000_000)
	p.Next(now) // revokes NoLimit from the first
	for i := range 3 {
		p.Want(now, i, demand(100_000, 0, 0))
	}
	if p.Deadline() == Never {
		t.Fatalf("Deadline = Never while connections wait, want a time")
	}
	if got := grants(p, now, 3); got[0] != 3000 || got[1] != 2000 || got[2] != 2000 {
		t.Fatalf("granted %v, want 3000, 2000 and 2000: the window of 6500 in chunks of 1000, in turn", got)
	}
	p.Want(now+1, 0, demand(97_000, 2000, 1000))
	if got := grants(p, now+1, 3); got[0] != 0 || got[1] != 1000 || got[2] != 0 {
		t.Fatalf("granted %v after a chunk has arrived, want one chunk for the next in turn", got)
	}
	for i := range 3 {
		p.Want(now+2, i, demand(0, 0, 0))
	}
	if _, _, ok := p.Next(now + 2); ok || p.Deadline() != Never {
		t.Fatalf("a grant, or a deadline of %d, when none asks", p.Deadline())
	}
}

// TestPacerLone: the only connection of a port is unlimited until another one joins. Of two, the only sender
// is unlimited until the other demands credit.
func TestPacerLone(t *testing.T) {
	p := NewPacer(NewPort(), 1000, 10_000)
	if !p.Join(0, Peer{0}) {
		t.Fatalf("Join of the first connection reports a limit, want none")
	}
	if _, _, ok := p.Next(1); ok {
		t.Fatalf("a grant for a connection without a limit, want none")
	}
	if p.Join(1, Peer{1}) {
		t.Fatalf("Join of the second connection reports no limit")
	}
	if conn, n, ok := p.Next(2); !ok || conn != 0 || n != 0 {
		t.Fatalf("Next = %d, %d, %v after a second has joined, want the end of NoLimit for 0", conn, n, ok)
	}
	p.Want(3, 0, demand(0, 0, 0))
	p.Want(4, 1, demand(1<<20, 0, aloneLead))
	if conn, n, ok := p.Next(4); !ok || conn != 1 || n != NoLimit {
		t.Fatalf("Next = %d, %d, %v for the one that sends, want NoLimit for 1", conn, n, ok)
	}
	p.Want(5, 1, demand(0, 0, 1000))
	p.Want(5, 0, demand(0, 500, 100)) // the other's small message has no effect
	if conn, n, ok := p.Next(5); ok {
		t.Fatalf("Next = %d, %d after a small message, want nothing", conn, n)
	}
	p.Want(6, 0, demand(1<<20, 0, 0))
	if conn, n, ok := p.Next(6); !ok || conn != 1 || n != 0 {
		t.Fatalf("Next = %d, %d, %v when the other asks, want the end of NoLimit for 1", conn, n, ok)
	}
	if conn, n, ok := p.Next(6); !ok || conn != 0 || n != 1000 {
		t.Fatalf("Next = %d, %d, %v, want a chunk for 0", conn, n, ok)
	}
}

// TestPacerNotYetLone: the first of many to demand credit gets only its turn if data from the others arrives
// as well: they are about to demand some.
func TestPacerNotYetLone(t *testing.T) {
	p := NewPacer(NewPort(), 1000, 100_000)
	for i := range 4 {
		p.Join(i, Peer{byte(i)})
	}
	p.Next(1)
	for i := range 4 {
		p.Want(2, i, demand(0, 0, 50_000))
	}
	p.Want(3, 3, demand(1<<20, 0, 0))
	if conn, n, ok := p.Next(3); !ok || conn != 3 || n != 1000 {
		t.Fatalf("Next = %d, %d, %v, want a chunk for 3", conn, n, ok)
	}
}

// TestPacerForgetsTheDead grants the whole window to a connection that does not use it. The other one waits
// for the port's timeout at most, and then is unlimited.
func TestPacerForgetsTheDead(t *testing.T) {
	port := NewPort()
	p := NewPacer(port, 1000, 100_000)
	p.Join(0, Peer{0})
	p.Join(1, Peer{1})
	now := int64(1)
	p.Next(now)
	p.Want(now, 0, demand(1<<30, 0, 0))
	grants(p, now, 2)
	now += 1000
	p.Want(now, 1, demand(1<<20, 0, aloneLead))
	if conn, n, ok := p.Next(now); ok {
		t.Fatalf("Next = %d, %d while the window is in flight, want nothing", conn, n)
	}
	now = max(now, p.Deadline())
	if now > 3*minCreditLifetime {
		t.Fatalf("Deadline = %d, want at most %d", now, 3*minCreditLifetime)
	}
	for range 2 { // the first check may precede the grants
		if conn, n, ok := p.Next(now); ok && conn == 1 && n == NoLimit {
			return
		}
		now = p.Deadline()
	}
	t.Fatalf("connection 1 still has a limit at %d", now)
}

// TestPacersShare: two pacers share a port's window by their numbers of busy connections, whatever the other
// has in flight.
func TestPacersShare(t *testing.T) {
	port := NewPort()
	port.window = 40_000
	a, b := NewPacer(port, 1000, 10_000), NewPacer(port, 1000, 10_000)
	a.Join(0, Peer{0})
	for i := range 3 {
		b.Join(i, Peer{1, byte(i)})
	}
	a.Next(1)
	a.Want(1, 0, demand(1<<20, 0, 0))
	if got := grants(a, 1, 1); got[0] != 40_000 {
		t.Fatalf("granted %v, want the whole window of 40000", got)
	}
	for i := range 3 {
		b.Want(2, i, demand(1<<20, 0, 0))
	}
	if got := grants(b, 2, 3); got[0]+got[1]+got[2] != 30_000 {
		t.Fatalf("granted %v to three of four busy connections, want three quarters of 40000", got)
	}
	a.Want(3, 0, demand(1<<20, 10_000, 30_000))
	if got := grants(a, 3, 1); got[0] != 0 {
		t.Fatalf("granted %v to one of four, which has 10000 in flight, want nothing", got)
	}
	a.Leave(0)
	for i := range 3 {
		b.Leave(i)
	}
	if len(port.peers) != 0 || port.busy != 0 || port.waiting != 0 {
		t.Fatalf("%d joined, %d busy, %d waiting when all have left, want 0", len(port.peers), port.busy, port.waiting)
	}
}

// TestPacer: connections join, demand, send, die and leave at random. The sums are right, each connection is
// in the ring at most once, and every demand is granted.
func TestPacer(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const conns = 8
		w := &pacerWorld{rt: rt, p: NewPacer(NewPort(), 1000, 5000)}
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			w.now += rapid.Int64Range(0, minCreditLifetime).Draw(rt, "wait")
			i := rapid.IntRange(0, conns-1).Draw(rt, "conn")
			c := &w.conns[i]
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0:
				if c.joined {
					w.p.Leave(i)
				}
				*c = pacerConn{}
			case 1:
				if !c.joined {
					c.joined, c.free = true, w.p.Join(i, Peer{byte(i % 3)})
				}
			case 2:
				c.want += rapid.Uint64Range(0, 20_000).Draw(rt, "bytes")
				w.report(i, 0)
			default:
				n := rapid.Uint64Range(0, c.flying).Draw(rt, "arrived")
				c.flying -= n
				w.report(i, n)
			}
			w.take()
		}
		for range 100 { // everything granted arrives
			for i := range w.conns {
				n := w.conns[i].flying
				w.conns[i].flying = 0
				w.report(i, n)
			}
			w.take()
		}
		for i, c := range w.conns {
			if c.joined && !c.free && c.want > 0 {
				rt.Fatalf("connection %d still waits for %d bytes", i, c.want)
			}
		}
	})
}

// pacerWorld is a Pacer and the state of its connections.
type pacerWorld struct {
	rt    *rapid.T
	p     *Pacer
	now   int64
	conns [8]pacerConn
}

type pacerConn struct {
	joined, free bool
	want, flying uint64
}

// report passes a connection's demand to the pacer.
func (w *pacerWorld) report(i int, arrived uint64) {
	c := &w.conns[i]
	switch {
	case !c.joined:
		*c = pacerConn{}
	case c.free:
		w.p.Want(w.now, i, demand(0, 0, c.want))
		c.want = 0
	default:
		w.p.Want(w.now, i, demand(c.want, c.flying, arrived))
	}
}

// take collects all grants and checks the pacer.
func (w *pacerWorld) take() {
	for conn, n, ok := w.p.Next(w.now); ok; conn, n, ok = w.p.Next(w.now) {
		c := &w.conns[conn]
		switch {
		case !c.joined || (n == 0) != c.free:
			w.rt.Fatalf("a grant of %d for connection %d, which is %+v", n, conn, *c)
		case n == NoLimit:
			c.free, c.want, c.flying = true, 0, 0
		case n == 0:
			c.free, c.flying = false, w.p.spare
		case uint64(n) > c.want:
			w.rt.Fatalf("%d bytes for connection %d, which asks for %d", n, conn, c.want)
		default:
			c.want -= uint64(n)
			c.flying += uint64(n)
		}
	}
	var waiting, busy, queued, joined int
	var flying uint64
	for i := range w.p.conns {
		c := &w.p.conns[i]
		waiting, busy, queued = waiting+oneIf(c.want > 0), busy+oneIf(c.busy), queued+oneIf(c.queued)
		flying += c.flying
		if i < len(w.conns) {
			joined += oneIf(w.conns[i].joined)
		}
	}
	p, port := w.p, w.p.port
	members, rivals := 0, 0
	for _, of := range port.peers {
		members, rivals = members+of.connections, rivals+oneIf(of.busy > 0)
	}
	if rivals != port.busyPeers {
		w.rt.Fatalf("%d peers have busy connections, the port has %d", rivals, port.busyPeers)
	}
	if waiting != p.waiting || waiting != port.waiting || busy != p.busy || busy != port.busy || flying != p.flying || queued != p.waitingConns.Len() || joined != members {
		w.rt.Fatalf("%d waiting, %d busy, %d in flight, %d in the ring, %d joined: the pacer has %d, %d, %d, %d and the port %d, %d, %d",
			waiting, busy, flying, queued, joined, p.waiting, p.busy, p.flying, p.waitingConns.Len(), port.waiting, port.busy, members)
	}
}

// TestPacerOnePeer: connections from one peer are unlimited, in one pacer or in several, until another peer
// joins: they only compete for the peer's own link.
func TestPacerOnePeer(t *testing.T) {
	port := NewPort()
	a, b := NewPacer(port, 1000, 10_000), NewPacer(port, 1000, 10_000)
	for i := range 4 {
		if !a.Join(i, Peer{1}) || !b.Join(i, Peer{1}) {
			t.Fatalf("Join of connection %d of the only peer reports a limit, want none", i)
		}
		a.Want(1, i, demand(0, 0, 50_000))
		b.Want(1, i, demand(0, 0, 50_000))
	}
	for _, p := range []*Pacer{a, b} {
		if conn, n, ok := p.Next(2); ok {
			t.Fatalf("Next = %d, %d while one peer sends, want nothing", conn, n)
		}
	}
	if b.Join(7, Peer{2}) {
		t.Fatalf("Join of another peer reports no limit")
	}
	b.Want(3, 7, demand(1<<20, 0, 0))
	for _, p := range []*Pacer{a, b} {
		for i := range 4 {
			if conn, n, ok := p.Next(3); !ok || conn != i || n != 0 {
				t.Fatalf("Next = %d, %d, %v when another peer asks, want the end of NoLimit for %d", conn, n, ok, i)
			}
		}
	}
	if conn, n, ok := b.Next(3); !ok || conn != 7 || n != 1000 {
		t.Fatalf("Next = %d, %d, %v, want a chunk for 7", conn, n, ok)
	}
}
