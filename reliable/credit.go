package reliable

import "ibverbx/reliable/core"

const (
	// maxCreditRate is far beyond any link.
	maxCreditRate = 1e15
	// creditQuantum is what a QP is granted in its turn.
	creditQuantum = 64 << 10
	// creditSlack is by how much grants may be late and are made up for, in nanoseconds, and
	// keeperSlack the same where a keeper grants while nobody polls: it wakes a millisecond
	// late, when the link could have carried a hundred quanta.
	creditSlack = 100_000
	keeperSlack = 2_000_000
	// unknownSpeed is what a port counts as that does not tell its speed, in Mb/s.
	unknownSpeed = 100_000
)

// pacer returns the pacer of a port: all connections through it share the link.
func (d *device) pacer(port uint8) (*core.Pacer, error) {
	port = max(port, 1)
	for len(d.pacers) <= int(port) {
		d.pacers = append(d.pacers, nil)
	}
	if d.pacers[port] != nil {
		return d.pacers[port], nil
	}
	rate := d.cfg.CreditRate
	if rate == 0 {
		attr, err := d.inner.QueryPort(int(port))
		if err != nil {
			return nil, err
		}
		if attr.SpeedMbps == 0 {
			attr.SpeedMbps = unknownSpeed
		}
		rate = 0.95 * float64(attr.SpeedMbps) * 1e6 / 8
	}
	slack := int64(creditSlack)
	if d.keeper != nil {
		slack = keeperSlack
	}
	d.pacers[port] = core.NewPacer(rate, creditQuantum, slack)
	return d.pacers[port], nil
}

// enroll makes a link one of those that share the link of a port.
func (l *link) enroll(port uint8) error {
	if !l.ctx.cfg.Credits {
		return nil
	}
	p, err := l.ctx.pacer(port)
	if err != nil {
		return err
	}
	p.Join(l.index())
	l.pacer = p
	return nil
}

// dismiss ends what enroll began: the link's time is for others.
func (l *link) dismiss() {
	if l.pacer != nil {
		l.pacer.Leave(l.index())
		l.pacer = nil
	}
}

// demand takes what the peer asks for.
func (l *link) demand(a *core.Action) {
	if l.pacer != nil {
		l.pacer.Want(l.ctx.now, l.index(), a.Bytes, a.Spare, a.Used)
	}
}

// grant gives the credit that is due.
func (d *device) grant() {
	for _, p := range d.pacers {
		if p == nil {
			continue
		}
		for {
			conn, n, ok := p.Next(d.now)
			if !ok {
				break
			}
			if l := d.links[conn]; l != nil && l.pacer == p {
				l.ev = core.Event{Kind: core.EvGrant, Count: n}
				l.step(&l.ev)
			}
		}
	}
}

// grantAt is when the next grant is due.
func (d *device) grantAt() int64 {
	at := core.Never
	for _, p := range d.pacers {
		if p != nil {
			at = min(at, p.Deadline())
		}
	}
	return at
}
