package core

import "ibverbx/reliable/wire"

// A path that is given up comes back as a pair of new QPs, whose numbers nothing old bears:
// UC takes the first packet of a message whatever its PSN is, so that a QP that was merely
// reset and connected again would take late packets of its former life.
//
//	          lost twice, QP failed,
//	          or the peer did the same      pause               made
//	UP, SUSPECT -----------------> DOWN ----------> BUILDING ---------> OFFERED
//	   ^                             ^                 ^                  |
//	   | two pongs                   | no pong         | offer of a       | both have the
//	   |                             |                 | later epoch      | other's offer
//	   +--------------------------- PROBING <-----------------------------+

const (
	pongsToUp = 2
	maxPings  = 8
)

// down takes a path out of service. What was in flight on it is lost, and nothing refers to
// memory any more.
func (c *Conn) down(i int) {
	p := &c.paths[i]
	if !p.alive() {
		return
	}
	a := c.act(ActReset)
	a.Path, a.Epoch = uint16(i), p.epoch
	for ; p.low != p.next; p.low++ {
		if c.outstanding(i, p, p.low) {
			c.lose(p.entry(p.low), false)
		}
	}
	for p.done != p.next {
		c.unref(p)
	}
	p.inflight, p.flying, p.measured, p.loss, p.silent = 0, 0, false, 0, false
	c.stats.PathsDown++
	c.pause(p)
	c.setState(i, PathDown)
}

// pathFailed takes a path out of service whose QP has failed. One whose QP could not be made is
// tried again after a pause.
func (c *Conn) pathFailed(i int) {
	p := &c.paths[i]
	if p.state != PathBuilding || c.over() {
		c.down(i)
		return
	}
	p.peerQPN = 0 // the peer has offered it for the epoch that is over
	c.pause(p)
	c.setState(i, PathDown)
}

// pause sets the time at which a path is tried again.
func (c *Conn) pause(p *path) {
	p.timerAt = c.now + c.cfg.Recovery<<p.attempts
	p.attempts = min(p.attempts+1, 6)
}

// pathTimer does what is due on a path that is being brought back.
func (c *Conn) pathTimer(i int) {
	p := &c.paths[i]
	p.timerAt = never
	switch p.state {
	case PathDown:
		c.rebuild(i, p.epoch+1)
	case PathOffered:
		c.sendOffer(i)
	case PathProbing:
		if p.tries >= maxPings {
			c.down(i)
			return
		}
		c.sendPing(i)
	case PathUp, PathSuspect, PathBuilding:
	}
}

// rebuild asks for the QP of a new epoch.
func (c *Conn) rebuild(i int, epoch uint16) {
	p := &c.paths[i]
	p.epoch = epoch
	p.tries, p.pongs, p.havePeer, p.peerHas, p.qpn = 0, 0, false, false, 0
	p.timerAt = never
	c.setState(i, PathBuilding)
	a := c.act(ActRebuild)
	a.Path, a.Epoch = uint16(i), epoch
}

// onRebuilt takes the QP that the owner has made, and tells the peer.
func (c *Conn) onRebuilt(ev *Event) {
	if int(ev.Path) >= len(c.paths) {
		return
	}
	p := &c.paths[ev.Path]
	if p.state != PathBuilding || p.epoch != ev.Epoch || c.over() {
		return
	}
	p.qpn, p.psn = ev.QPN, ev.PSN
	c.setState(int(ev.Path), PathOffered)
	if p.peerQPN != 0 {
		c.meet(int(ev.Path))
	}
	c.sendOffer(int(ev.Path))
}

// meet connects a path to the QP that the peer has offered.
func (c *Conn) meet(i int) {
	p := &c.paths[i]
	p.havePeer = true
	a := c.act(ActConnect)
	a.Path, a.Epoch, a.QPN, a.PSN = uint16(i), p.epoch, p.peerQPN, p.peerPSN
	p.peerQPN = 0
	c.tryPath(i)
}

// tryPath begins to ping when both ends are connected.
func (c *Conn) tryPath(i int) {
	p := &c.paths[i]
	if p.state != PathOffered || !p.havePeer || !p.peerHas {
		return
	}
	p.tries = 0
	c.setState(i, PathProbing)
	c.sendPing(i)
}

// sendOffer tells the peer of the own QP, until both know of each other.
func (c *Conn) sendOffer(i int) {
	p := &c.paths[i]
	a := c.act(ActControl)
	a.Route = c.nextRoute()
	a.Record = wire.Record{Type: wire.Offer, Path: uint16(i), Epoch: p.epoch, QPN: p.qpn, PSN: p.psn}
	if p.havePeer {
		a.Record.Flags = wire.OfferHave
	}
	if p.state == PathOffered {
		p.timerAt = c.now + c.cfg.Recovery<<min(p.tries, 6)
		p.tries++
	}
}

// onOffer takes the peer's offer. The later epoch wins.
func (c *Conn) onOffer(r *wire.Record) {
	if c.over() || int(r.Path) >= len(c.paths) {
		c.stats.BadRecords++
		return
	}
	i := int(r.Path)
	p := &c.paths[i]
	ahead := int16(r.Epoch - p.epoch)
	switch {
	case ahead > 0:
		c.down(i)
		p.peerQPN, p.peerPSN = r.QPN, r.PSN
		c.rebuild(i, r.Epoch)
	case ahead < 0:
		if p.alive() && p.qpn != 0 {
			c.sendOffer(i) // the peer is behind
		}
	case p.state == PathBuilding:
		p.peerQPN, p.peerPSN = r.QPN, r.PSN
	case p.state == PathOffered:
		had := p.havePeer
		p.peerHas = p.peerHas || r.Flags&wire.OfferHave != 0
		if !had {
			p.peerQPN, p.peerPSN = r.QPN, r.PSN
			c.meet(i)
		} else {
			c.tryPath(i)
		}
		if r.Flags&wire.OfferHave == 0 {
			c.sendOffer(i)
		}
	case p.alive() && p.qpn != 0 && r.Flags&wire.OfferHave == 0:
		c.sendOffer(i) // ours was lost
	}
}

func (c *Conn) sendPing(i int) {
	p := &c.paths[i]
	p.tries++
	p.pingNonce++
	p.pingAt = c.now
	p.timerAt = c.now + c.probeWait(p.tries)
	a := c.act(ActControl)
	a.Route = RoutePath + Route(i)
	a.Record = wire.Record{Type: wire.Ping, Path: uint16(i), Nonce: p.pingNonce}
}

// onPing answers on the same path. It shows, too, that the peer is connected.
func (c *Conn) onPing(r *wire.Record, route Route) {
	i := int(r.Path)
	if c.over() || i >= len(c.paths) || route != RoutePath+Route(i) || !c.paths[i].alive() {
		c.stats.BadRecords++
		return
	}
	a := c.act(ActControl)
	a.Route = route
	a.Record = wire.Record{Type: wire.Pong, Path: r.Path, Nonce: r.Nonce}
	c.paths[i].peerHas = true
	c.tryPath(i)
}

// onPong takes an answer; after a few the path is up again.
func (c *Conn) onPong(r *wire.Record, route Route) {
	i := int(r.Path)
	if i >= len(c.paths) || route != RoutePath+Route(i) {
		c.stats.BadRecords++
		return
	}
	p := &c.paths[i]
	if p.state != PathProbing || r.Nonce != p.pingNonce {
		return
	}
	sample := max(c.now-p.pingAt, 1)
	p.rtt = newRTT(c.cfg.InitialRTT)
	c.measure(&p.rtt, sample)
	p.tries = 0
	if p.pongs++; p.pongs < pongsToUp {
		c.sendPing(i)
		return
	}
	p.measured, p.measuredAt, p.timerAt = true, c.now, never
	c.stats.PathsUp++
	c.setState(i, PathUp)
}
