package core

import "ibverbx/internal/ring"

// Pacer shares the rate of a link among the connections that ask for credit: a quantum each, in turn.
// It has no clock. One goroutine at a time may use it.
//
//	demand    is granted at the rate of the link, because it is sent as soon as it is granted
//	spare     is granted when a connection has no other demand, and takes no time of the link,
//	          because it may never be used
//	used      was spare and is being sent: it takes time of the link, and grants wait
type Pacer struct {
	rate    float64           // bytes per second
	quantum uint64            // the limit of one grant, in bytes
	slack   int64             // how late a grant may be and still be made up for, in nanoseconds
	conns   []claim           // what connections ask for, by number
	asking  ring.Ring[uint32] // the connections that ask, in turn
	dueAt   int64             // when the next grant is due
}

// claim is what a connection asks for.
type claim struct {
	want   uint64 // demand, in bytes
	spare  uint64 // credit for when it is idle, in bytes
	queued bool   // reports that it is in asking
}

// NewPacer returns a Pacer that grants rate bytes per second, a quantum at a time. Grants that are late
// because Next was not called are made up for if they are late by at most slack nanoseconds.
func NewPacer(rate float64, quantum int, slack int64) *Pacer {
	return &Pacer{rate: rate, quantum: uint64(quantum), slack: slack}
}

// Join makes room for a connection.
func (p *Pacer) Join(conn int) {
	if n := len(p.conns); conn >= n {
		p.conns = append(p.conns, make([]claim, max(conn+1, 2*n, 16)-n)...)
	}
}

// Leave forgets what a connection asked for.
func (p *Pacer) Leave(conn int) {
	if conn < len(p.conns) {
		p.conns[conn].want, p.conns[conn].spare = 0, 0
	}
}

// Want replaces what a connection asks for: bytes to send, and spare to keep for when it is idle. It
// uses used bytes of its earlier spare. The connection must have joined.
func (p *Pacer) Want(now int64, conn int, bytes, spare, used uint64) {
	if p.asking.Len() == 0 {
		p.dueAt = max(p.dueAt, now) // the idle time before is lost
	}
	p.dueAt += p.pause(used)
	c := &p.conns[conn]
	c.want, c.spare = bytes, spare
	if !c.queued && (bytes > 0 || spare > 0) {
		c.queued = true
		p.asking.Push(uint32(conn))
	}
}

// pause is the time that the link takes for n bytes.
func (p *Pacer) pause(n uint64) int64 { return int64(float64(n) * 1e9 / p.rate) }

// Deadline is when the next grant is due, or Never.
func (p *Pacer) Deadline() int64 {
	if p.asking.Len() == 0 {
		return never
	}
	return p.dueAt
}

// Next returns the next grant that is due at now, if there is one.
func (p *Pacer) Next(now int64) (conn, bytes int, ok bool) {
	for p.asking.Len() > 0 && now >= p.dueAt {
		number := p.asking.Pop()
		c := &p.conns[number]
		c.queued = false
		if c.want == 0 && c.spare == 0 {
			continue // it has left
		}
		paid := min(c.want, p.quantum)
		c.want -= paid
		bytes = int(paid)
		if c.want == 0 {
			bytes += int(c.spare)
			c.spare = 0
		} else {
			c.queued = true
			p.asking.Push(number)
		}
		p.dueAt = max(p.dueAt, now-p.slack) + p.pause(paid)
		return int(number), bytes, true
	}
	return 0, 0, false
}
