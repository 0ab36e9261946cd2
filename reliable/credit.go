package reliable

import (
	"cmp"
	"slices"
	"sync"

	"ibverbx/reliable/core"
)

const (
	// maxCreditRate bounds Config.CreditRate, in bytes per second. It is far beyond any link.
	maxCreditRate = 1e15
	// creditQuantum is what a connection is granted in its turn, in bytes.
	creditQuantum = 64 << 10
	// creditSlack is how late a grant may be and still be made up for, in nanoseconds.
	creditSlack = 100_000
	// keeperSlack replaces creditSlack where a keeper grants while the program does not poll. The
	// keeper wakes a millisecond late, in which the link could have carried a hundred quanta.
	keeperSlack = 2_000_000
	// unknownSpeed is the assumed speed of a port that reports none, in Mb/s.
	unknownSpeed = 100_000
)

// link grants credit to the peers of all connections through a port, in turn, whatever engines they are in.
// The engine that finds a grant due hands it to the engine of the connection. That one has a timer for the
// same time, because one of its connections asks.
type link struct {
	mu      sync.Mutex    // guards the fields below; it is taken under the lock of an engine, never before it
	pacer   *core.Pacer   // decides which connection gets how much, and when
	members []*connection // the connections, by their number in pacer; a nil entry is free
}

// seat is the place of a connection in the link of its port.
type seat struct {
	link    *link  // grants credit to the peer, nil without Config.Credits
	number  int    // the number of the connection in link
	asked   uint64 // what the peer asks for and has not been granted, in bytes; guarded by link.mu
	granted int    // what another engine has found due, in bytes; guarded by link.mu
}

// ports has the links of a context.
type ports struct {
	mu    sync.Mutex
	links []*link // by port, with nil for unused ports
}

// link returns the link of a port.
func (s *ports) link(ctx *pathContext, port uint8) (*link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.links) <= int(port) {
		s.links = append(s.links, nil)
	}
	if s.links[port] != nil {
		return s.links[port], nil
	}
	rate := ctx.cfg.CreditRate
	if rate == 0 {
		attr, err := ctx.inner.QueryPort(int(port))
		if err != nil {
			return nil, err
		}
		rate = 0.95 * float64(cmp.Or(attr.SpeedMbps, unknownSpeed)) * 1e6 / 8
	}
	slack := int64(creditSlack)
	if ctx.cfg.Now == nil {
		slack = keeperSlack
	}
	s.links[port] = &link{pacer: core.NewPacer(rate, creditQuantum, slack)}
	return s.links[port], nil
}

// joinLink lets the link of a port grant credit to the peer.
func (c *connection) joinLink(port uint8) error {
	if !c.ctx.cfg.Credits {
		return nil
	}
	l, err := c.ctx.ports.link(c.ctx, max(port, 1))
	if err != nil {
		return err
	}
	l.join(c)
	if e := c.engine; !slices.Contains(e.links, l) {
		e.links = append(e.links, l)
	}
	return nil
}

// leaveLink undoes joinLink.
func (c *connection) leaveLink() {
	if l := c.seat.link; l != nil {
		l.leave(c)
	}
}

// join gives a connection a number.
func (l *link) join(c *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.members, nil)
	if i < 0 {
		i = len(l.members)
		l.members = append(l.members, nil)
	}
	l.members[i], c.seat = c, seat{link: l, number: i}
	l.pacer.Join(i)
}

// leave forgets a connection.
func (l *link) leave(c *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pacer.Leave(c.seat.number)
	l.members[c.seat.number] = nil
	c.seat = seat{}
}

// want notes what a connection asks for.
func (l *link) want(c *connection, a *core.Action) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.seat.asked = a.Bytes + a.Spare
	l.pacer.Want(c.engine.now, c.seat.number, a.Bytes, a.Spare, a.Used)
}

// next returns the next grant for a connection of an engine that is due. Grants for others before it are
// handed to their engines.
func (l *link) next(e *engine) (c *connection, bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		member, n, ok := l.pacer.Next(e.now)
		if !ok {
			return nil, 0
		}
		c := l.members[member]
		if c == nil {
			continue // it has left
		}
		c.seat.asked -= min(c.seat.asked, uint64(n))
		if c.engine == e {
			return c, n
		}
		c.seat.granted += n
		c.engine.handed.Store(true)
	}
}

// take returns what was handed to a connection.
func (l *link) take(c *connection) (bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	bytes, c.seat.granted = c.seat.granted, 0
	return bytes
}

// deadline is when the next grant is due, core.Never if no connection of the engine asks.
func (l *link) deadline(e *engine) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.members {
		if c != nil && c.engine == e && c.seat.asked > 0 {
			return l.pacer.Deadline()
		}
	}
	return core.Never
}

// grant grants the credit that is due.
func (e *engine) grant() {
	for _, l := range e.links {
		for c, n := l.next(e); c != nil; c, n = l.next(e) {
			c.step(&core.Event{Kind: core.EvGrant, Count: n})
		}
	}
	if len(e.links) == 0 || !e.handed.Swap(false) {
		return
	}
	for i := 0; i < len(e.connected); i++ {
		if c := e.connected[i]; c.seat.link != nil {
			if n := c.seat.link.take(c); n > 0 {
				c.step(&core.Event{Kind: core.EvGrant, Count: n})
			}
		}
	}
}

// grantAt is when the next grant is due.
func (e *engine) grantAt() int64 {
	at := core.Never
	for _, l := range e.links {
		at = min(at, l.deadline(e))
	}
	if e.handed.Load() {
		at = e.now
	}
	return at
}
