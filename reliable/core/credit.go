package core

import "ibverbx/reliable/wire"

// Receiver credits: with Config.Credits a sender may have sent no more bytes, in all, than the
// receiver has granted, in all. It tells how many it would like to have sent; the receiver's
// owner grants them at the pace of its link, in turn to all who ask (see Pacer). Both numbers
// only grow, so that a record that is lost, late or repeated does no harm: the next one says
// it all. Chunks that are sent again need no credit.

// creditor is the credit state of both halves.
type creditor struct {
	demand  uint64 // bytes that the user has posted
	asked   uint64 // of which the peer was told
	sent    uint64 // bytes sent for the first time
	limit   uint64 // bytes that may be sent
	blocked bool   // a chunk waits for credit
	tries   uint8
	askAt   int64

	wanted  uint64 // by the peer
	granted uint64 // to the peer
}

func (c *Conn) initCredit() {
	c.askAt = never
	c.limit, c.granted = uint64(c.cfg.Speculative), uint64(c.cfg.Speculative)
}

// hasCredit reports whether n more bytes may be sent.
func (c *Conn) hasCredit(n uint32) bool {
	c.blocked = c.cfg.Credits && c.sent+uint64(n) > c.limit
	return !c.blocked
}

// ask tells the peer of new demand beyond what it has granted, and again if it does not
// answer.
func (c *Conn) ask() {
	if !c.cfg.Credits || c.demand <= c.limit {
		c.askAt, c.tries = never, 0
		return
	}
	if c.asked == c.demand && (c.askAt == never || c.now < c.askAt) {
		return
	}
	route := c.route
	if c.asked == c.demand {
		c.tries = min(c.tries+1, 30)
		route = c.nextRoute()
	}
	c.asked = c.demand
	c.askAt = c.now + c.probeWait(c.tries)
	a := c.act(ActControl)
	a.Route = route
	a.Record = wire.Record{Type: wire.CreditRequest, Bytes: c.demand}
}

// onCredit takes a grant.
func (c *Conn) onCredit(r *wire.Record) {
	if !c.cfg.Credits || c.failed {
		c.stats.BadRecords++
		return
	}
	if c.blocked && c.una == c.nxt {
		c.progressAt = c.now // the peer lives, and is busy with others
	}
	if r.Bytes > c.limit {
		c.limit = r.Bytes
		c.tries = 0
	}
	c.askAt = c.now + c.probeWait(c.tries)
}

// onCreditRequest takes the peer's demand, and repeats what was granted.
func (c *Conn) onCreditRequest(r *wire.Record) {
	if !c.cfg.Credits || c.failed {
		c.stats.BadRecords++
		return
	}
	if r.Bytes > c.wanted {
		c.wanted = r.Bytes
		if c.wanted > c.granted {
			a := c.act(ActDemand)
			a.Bytes = c.wanted - c.granted
		}
	}
	c.sendCredit()
}

// onGrant takes what the owner grants to the peer.
func (c *Conn) onGrant(n int) {
	if !c.cfg.Credits || c.failed {
		return
	}
	c.granted += uint64(n)
	c.sendCredit()
}

func (c *Conn) sendCredit() {
	a := c.act(ActControl)
	a.Route = c.ackRoute
	a.Record = wire.Record{Type: wire.Credit, Bytes: c.granted}
}

// Pacer shares the rate of a link among the connections that ask for credit: a quantum each,
// in turn. It has no clock; it is for one goroutine at a time.
type Pacer struct {
	rate    float64
	quantum int
	want    []uint64
	ring    []uint32
	head    int
	count   int
	dueAt   int64
}

// NewPacer returns a Pacer for connections 0 to n-1, which grants rate bytes per second, a
// quantum at a time.
func NewPacer(n int, rate float64, quantum int) *Pacer {
	return &Pacer{rate: rate, quantum: quantum, want: make([]uint64, n), ring: make([]uint32, n)}
}

// Want notes that a connection wants so many bytes, in place of what it wanted before.
func (p *Pacer) Want(conn int, bytes uint64) {
	if p.want[conn] == 0 && bytes > 0 {
		p.ring[(p.head+p.count)%len(p.ring)] = uint32(conn)
		p.count++
	}
	p.want[conn] = bytes
}

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
		want := p.want[conn]
		if want == 0 {
			continue // it was withdrawn
		}
		bytes = int(min(want, uint64(p.quantum)))
		p.want[conn] = 0
		p.Want(conn, want-uint64(bytes))
		// Time that went by unused does not become a burst, but for one quantum.
		pause := int64(float64(bytes) * 1e9 / p.rate)
		p.dueAt = max(p.dueAt, now-pause) + pause
		return conn, bytes, true
	}
	return 0, 0, false
}
