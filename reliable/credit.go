package reliable

import (
	"cmp"

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

// pacer returns the pacer of a port. All connections through the port share it.
func (e *engine) pacer(port uint8) (*core.Pacer, error) {
	port = max(port, 1)
	for len(e.pacers) <= int(port) {
		e.pacers = append(e.pacers, nil)
	}
	if e.pacers[port] != nil {
		return e.pacers[port], nil
	}
	rate := e.ctx.cfg.CreditRate
	if rate == 0 {
		attr, err := e.ctx.inner.QueryPort(int(port))
		if err != nil {
			return nil, err
		}
		rate = 0.95 * float64(cmp.Or(attr.SpeedMbps, unknownSpeed)) * 1e6 / 8
	}
	slack := int64(creditSlack)
	if e.keeper != nil {
		slack = keeperSlack
	}
	e.pacers[port] = core.NewPacer(rate, creditQuantum, slack)
	return e.pacers[port], nil
}

// joinPacer lets the pacer of a port grant credit to the peer.
func (c *connection) joinPacer(port uint8) error {
	if !c.ctx.cfg.Credits {
		return nil
	}
	p, err := c.engine.pacer(port)
	if err != nil {
		return err
	}
	p.Join(c.index())
	c.pacer = p
	return nil
}

// leavePacer undoes joinPacer.
func (c *connection) leavePacer() {
	if c.pacer != nil {
		c.pacer.Leave(c.index())
		c.pacer = nil
	}
}

// grant grants the credit that is due.
func (e *engine) grant() {
	for _, p := range e.pacers {
		if p == nil {
			continue
		}
		for {
			conn, n, ok := p.Next(e.now)
			if !ok {
				break
			}
			if c := e.conns[conn]; c != nil && c.pacer == p {
				c.step(&core.Event{Kind: core.EvGrant, Count: n})
			}
		}
	}
}

// grantAt is when the next grant is due.
func (e *engine) grantAt() int64 {
	at := core.Never
	for _, p := range e.pacers {
		if p != nil {
			at = min(at, p.Deadline())
		}
	}
	return at
}
