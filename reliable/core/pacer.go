package core

import (
	"slices"

	"ibverbx/internal/ring"
)

// Pacer grants credit to the connections of one owner that share a port. It has no clock. Only one
// goroutine at a time may use it.
//
//	connections of one peer     have unlimited credit, because they share the peer's link
//	of several busy peers       are served round-robin, one chunk each. As bytes arrive, more are
//	                            granted, so that the window of the Port is in flight
//
// The pacers of a port divide its window by their busy connections. Each grants when its own
// connections' bytes arrive, so pacers never wake each other.
type Pacer struct {
	port         *Port
	quantum      uint64            // the bytes granted per turn
	spare        uint64            // the bytes in flight from which a connection is busy
	conns        []creditDemand    // the demands of the connections, by number
	waitingConns ring.Ring[uint32] // the connections that wait for a grant, round-robin; entries without a want are stale
	waiting      int               // the number of demands with a want
	busy         int               // the number of busy demands
	flying       uint64            // the sum of flying of all demands
	free         int               // the number of connections without a limit
	freeOf       *peer             // the peer of all of them
	sweepAt      int64             // the next sweep for unused credit
}

// creditDemand is a connection's demand for credit. It is busy if it wants bytes, if it is unlimited, or if many
// of its bytes are in flight.
type creditDemand struct {
	peer   *peer  // nil if the connection has not joined
	want   uint64 // the bytes that it waits for
	flying uint64 // the bytes granted that have not arrived
	usedAt int64  // the last arrival, or the first grant
	queued bool   // set while it is in waitingConns
	free   bool   // set if it has no limit
	busy   bool
}

// NewPacer returns a Pacer of a port with the given quantum, the size of a chunk. spare is the credit of
// an idle connection.
func NewPacer(port *Port, quantum, spare int) *Pacer {
	return &Pacer{port: port, quantum: uint64(quantum), spare: uint64(spare)}
}

// Join adds a connection to a peer. It reports whether the peer is the port's only one. The connection
// then has unlimited credit, and the owner sends it EvGrant with NoLimit.
func (p *Pacer) Join(conn int, to Peer) bool {
	if n := len(p.conns); conn >= n {
		p.conns = append(p.conns, make([]creditDemand, max(conn+1, 2*n, 16)-n)...)
	}
	var only bool
	p.conns[conn].peer, only = p.port.join(to)
	if only {
		p.removeLimit(conn)
	}
	return only
}

// Leave removes a connection added by Join.
func (p *Pacer) Leave(conn int) {
	p.setLimit(conn, 0)
	c := &p.conns[conn]
	p.port.leave(c.peer)
	c.peer = nil
}

// removeLimit gives a connection unlimited credit.
func (p *Pacer) removeLimit(conn int) {
	c := &p.conns[conn]
	c.free, p.freeOf = true, c.peer
	p.free++
	p.set(conn, 0, 0)
}

// setLimit limits a connection, which has flying bytes in flight.
func (p *Pacer) setLimit(conn int, flying uint64) {
	if c := &p.conns[conn]; c.free {
		c.free = false
		p.free--
	}
	p.set(conn, 0, flying)
}

// Want processes an ActDemand of a joined connection.
func (p *Pacer) Want(now int64, conn int, a *Action) {
	c := &p.conns[conn]
	if a.Arrived > 0 || c.flying == 0 {
		c.usedAt = now
	}
	expected := min(a.Arrived, c.flying)
	p.set(conn, a.Bytes, a.Flying)
	if a.Arrived > 0 {
		p.port.arrived(now, c.peer, a.Arrived, expected, a.Beyond)
	}
}

// set replaces a demand.
func (p *Pacer) set(conn int, want, flying uint64) {
	c := &p.conns[conn]
	p.flying += flying - c.flying
	waiting, busy := -oneIf(c.want > 0), -oneIf(c.busy)
	c.want, c.flying = want, flying
	c.busy = want > 0 || flying >= p.spare || c.free
	waiting, busy = waiting+oneIf(want > 0), busy+oneIf(c.busy)
	if want > 0 && !c.queued {
		c.queued = true
		p.waitingConns.Push(uint32(conn))
	}
	if waiting != 0 || busy != 0 {
		p.waiting += waiting
		p.busy += busy
		p.port.change(c.peer, busy, waiting)
	}
}

// oneIf returns 1 if is, otherwise 0.
func oneIf(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Deadline returns the time of the next call of Next even without arrivals, or Never.
func (p *Pacer) Deadline() int64 {
	if p.waiting == 0 {
		return never
	}
	return p.sweepAt
}

// Next returns the next grant due at now: a connection and the Count of its EvGrant. ok is false if none is due.
func (p *Pacer) Next(now int64) (conn, count int, ok bool) {
	if p.waiting == 0 && p.free == 0 {
		return 0, 0, false
	}
	if now >= p.sweepAt {
		p.sweep(now)
	}
	if p.free > 0 && !p.port.isAlone(p.freeOf) {
		conn = slices.IndexFunc(p.conns, func(c creditDemand) bool { return c.free })
		p.setLimit(conn, p.spare) // it may send that much before the revocation arrives
		return conn, 0, true
	}
	for p.waiting > 0 {
		conn = int(*p.waitingConns.Front())
		c := &p.conns[conn]
		n := min(c.want, p.quantum)
		lone := n > 0 && p.port.isAlone(c.peer)
		if n > 0 && !lone && p.flying > 0 && float64(p.flying) >= p.port.share(p.busy) {
			break
		}
		p.waitingConns.Drop(1)
		c.queued = false
		if lone {
			p.removeLimit(conn)
			return conn, NoLimit, true
		}
		if n > 0 {
			if c.flying == 0 {
				c.usedAt = now
			}
			p.set(conn, c.want-n, c.flying+n)
			return conn, int(n), true
		}
	}
	return 0, 0, false
}

// sweep expires the credit of connections that have not used it for long: their peers are dead, or do not
// know of it. They count again when they request credit, or when bytes arrive.
func (p *Pacer) sweep(now int64) {
	patience := p.port.creditLifetime()
	for conn := range p.conns {
		if c := &p.conns[conn]; c.flying > 0 && now-c.usedAt >= patience {
			p.set(conn, 0, 0)
		}
	}
	p.sweepAt = now + patience
}
