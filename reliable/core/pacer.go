package core

// Pacer shares the rate of a link among the connections that ask for credit: a quantum each,
// in turn. It has no clock; it is for one goroutine at a time.
//
//	demand    is granted at the rate of the link: it is on its way as soon as it is granted
//	in hand   is granted when the link has nothing else to do, and takes no time: perhaps
//	          it is never used
//	used      was in hand and is on its way: it takes the link's time, and grants wait
type Pacer struct {
	rate    float64
	quantum uint64
	slack   int64
	conns   []claim
	ring    []uint32 // those that ask, in turn
	head    int
	count   int
	dueAt   int64
}

// claim is what a connection asks for.
type claim struct {
	want, spare uint64
	queued      bool // it is in the ring
}

// NewPacer returns a Pacer that grants rate bytes per second, a quantum at a time. Grants that
// come late, because nobody asked Next, are made up for if they are late by no more than
// slack nanoseconds.
func NewPacer(rate float64, quantum int, slack int64) *Pacer {
	return &Pacer{rate: rate, quantum: uint64(quantum), slack: slack}
}

// Join makes room for a connection.
func (p *Pacer) Join(conn int) {
	n := len(p.conns)
	if conn < n {
		return
	}
	n = max(conn+1, 2*n, 16)
	ring := make([]uint32, n)
	for i := range p.count {
		ring[i] = p.ring[(p.head+i)%len(p.ring)]
	}
	p.ring, p.head = ring, 0
	p.conns = append(p.conns, make([]claim, n-len(p.conns))...)
}

// Leave forgets what a connection asked for.
func (p *Pacer) Leave(conn int) {
	if conn < len(p.conns) {
		p.conns[conn].want, p.conns[conn].spare = 0, 0
	}
}

// Want notes that a connection, which has joined, asks for so many bytes, and so many to have
// in hand, in place of what it asked for before; and that it uses bytes that it had in hand.
func (p *Pacer) Want(now int64, conn int, bytes, spare, used uint64) {
	if p.count == 0 {
		p.dueAt = max(p.dueAt, now) // the time before is gone
	}
	p.dueAt += p.pause(used)
	c := &p.conns[conn]
	c.want, c.spare = bytes, spare
	if !c.queued && (bytes > 0 || spare > 0) {
		p.enqueue(conn)
	}
}

func (p *Pacer) enqueue(conn int) {
	p.ring[(p.head+p.count)%len(p.ring)] = uint32(conn)
	p.count++
	p.conns[conn].queued = true
}

// pause is the time that the link takes for n bytes.
func (p *Pacer) pause(n uint64) int64 { return int64(float64(n) * 1e9 / p.rate) }

// Deadline is when the next grant is due.
func (p *Pacer) Deadline() int64 {
	if p.count == 0 {
		return never
	}
	return p.dueAt
}

// Next returns the next grant that is due at now, if there is one.
func (p *Pacer) Next(now int64) (conn, bytes int, ok bool) {
	for p.count > 0 && now >= p.dueAt {
		conn = int(p.ring[p.head])
		p.head = (p.head + 1) % len(p.ring)
		p.count--
		c := &p.conns[conn]
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
			p.enqueue(conn)
		}
		p.dueAt = max(p.dueAt, now-p.slack) + p.pause(paid)
		return conn, bytes, true
	}
	return 0, 0, false
}
