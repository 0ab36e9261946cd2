package core

import "ibverbx/reliable/wire"

// A path that was taken out of service recovers with a pair of new QPs, whose numbers no old packet
// carries. UC accepts the first packet of a message with any PSN, so a QP that was only reset and
// reconnected would accept late packets from before.
//
//	          lost twice, QP failed,
//	          or the peer did the same      pause             created
//	UP, SUSPECT -----------------> DOWN ----------> BUILDING ---------> OFFERED
//	   ^                             ^                 ^                  |
//	   | two pongs                   | no pong         | offer of a       | both have the
//	   |                             |                 | later epoch      | other's offer
//	   +--------------------------- PROBING <-----------------------------+
//
// With Carrier.Shared, each side recovers on its own: DOWN leads to PROBING by another route. QPs are not
// rebuilt, because software drops late transmissions by their numbers.

const (
	pongsToUp = 2
	maxPings  = 8
)

// route is the route of control packets on the path.
func (p *path) route() Route { return RoutePath + Route(p.index) }

// down takes the path out of service. Its transmissions in flight are lost, and they no longer refer to memory.
func (p *path) down() {
	if !p.alive() || p.state == PathDown {
		return
	}
	c := p.c
	if !c.cfg.Carrier.Shared {
		a := c.act(ActReset)
		a.Path, a.Epoch = p.index, p.epoch
	}
	for ; p.low != p.next; p.low++ {
		if p.outstanding(p.low) {
			c.lose(p.entry(p.low), false)
		}
	}
	for !c.cfg.Carrier.Shared && p.done != p.next {
		p.unref()
	}
	p.inflight, p.flying, p.measured, p.loss, p.silent = 0, 0, false, 0, false
	c.stats.PathsDown++
	p.pause()
}

// failed takes a path whose QP has failed out of service. If its QP could not be created, it is retried
// after a pause.
func (p *path) failed() {
	if p.state != PathBuilding || p.c.Over() {
		p.down()
		return
	}
	p.peer.qpn = 0 // the peer's offer was for this epoch
	p.pause()
}

// pause defers the recovery of the path.
func (p *path) pause() {
	p.timerAt = p.c.now + p.c.cfg.Recovery<<p.attempts
	p.attempts = min(p.attempts+1, 6)
	p.setState(PathDown)
}

// onTimer performs the due step of the recovery.
func (p *path) onTimer() {
	p.timerAt = never
	switch p.state {
	case PathDown:
		if p.c.cfg.Carrier.Shared {
			p.probeRoute()
			return
		}
		p.rebuild(p.epoch + 1)
	case PathOffered:
		p.sendOffer()
	case PathProbing:
		if p.tries >= maxPings {
			p.down()
			return
		}
		p.sendPing()
	case PathSuspect:
		p.tries, p.pongs = 0, 0
		p.setState(PathProbing)
		p.sendPing()
	case PathUp, PathBuilding:
	}
}

// probeRoute makes a path of shared QPs probe another route.
func (p *path) probeRoute() {
	a := p.c.act(ActConnect)
	a.Path, a.Epoch = p.index, uint16(p.pingNonce+1)
	p.tries, p.pongs = 0, 0
	p.setState(PathProbing)
	p.sendPing()
}

// rebuild requests the QP of a new epoch from the owner.
func (p *path) rebuild(epoch uint16) {
	p.epoch = epoch
	p.tries, p.pongs, p.havePeer, p.peerHas, p.own.qpn = 0, 0, false, false, 0
	p.timerAt = never
	p.setState(PathBuilding)
	a := p.c.act(ActRebuild)
	a.Path, a.Epoch = p.index, epoch
}

// onRebuilt offers the QP created by the owner to the peer.
func (p *path) onRebuilt(ev *Event) {
	if p.state != PathBuilding || p.c.Over() {
		return
	}
	p.own = addr{ev.QPN, ev.PSN}
	p.setState(PathOffered)
	if p.peer.qpn != 0 {
		p.connectPeer()
	}
	p.sendOffer()
}

// connectPeer connects the path to the QP offered by the peer.
func (p *path) connectPeer() {
	p.havePeer = true
	a := p.c.act(ActConnect)
	a.Path, a.Epoch, a.QPN, a.PSN = p.index, p.epoch, p.peer.qpn, p.peer.psn
	p.peer.qpn = 0
	p.tryProbing()
}

// tryProbing starts to ping once both sides are connected.
func (p *path) tryProbing() {
	if p.state != PathOffered || !p.havePeer || !p.peerHas {
		return
	}
	p.tries = 0
	p.setState(PathProbing)
	p.sendPing()
}

// sendOffer offers the local QP to the peer. It is repeated until both sides know each other's.
func (p *path) sendOffer() {
	c := p.c
	r := c.sendRecord(c.nextRoute(), wire.Record{Type: wire.Offer, Path: p.index, Epoch: p.epoch, QPN: p.own.qpn, PSN: p.own.psn})
	if p.havePeer {
		r.Flags = wire.OfferHave
	}
	if p.state == PathOffered {
		p.timerAt = c.now + c.cfg.Recovery<<min(p.tries, 6)
		p.tries++
	}
}

// onRecord processes a record about the path, and reports whether it is possible.
func (p *path) onRecord(r *wire.Record, route Route) bool {
	switch {
	case r.Type == wire.Offer:
		if p.c.Over() || p.c.cfg.Carrier.Shared {
			return false
		}
		p.onOffer(r)
	case route != p.route():
		return false
	case r.Type == wire.Pong:
		p.onPong(r)
	default:
		if p.c.Over() || !p.alive() {
			return false
		}
		p.onPing(r)
	}
	return true
}

// onOffer processes the peer's offer. The later epoch wins.
func (p *path) onOffer(r *wire.Record) {
	offered, have := addr{r.QPN, r.PSN}, r.Flags&wire.OfferHave != 0
	ahead := int16(r.Epoch - p.epoch)
	switch {
	case ahead > 0:
		p.down()
		p.peer = offered
		p.rebuild(r.Epoch)
	case ahead < 0:
		if p.alive() && p.own.qpn != 0 {
			p.sendOffer() // the peer is behind
		}
	case p.state == PathBuilding:
		p.peer = offered
	case p.state == PathOffered:
		p.peerHas = p.peerHas || have
		if !p.havePeer {
			p.peer = offered
			p.connectPeer()
		} else {
			p.tryProbing()
		}
		if !have {
			p.sendOffer()
		}
	case p.alive() && p.own.qpn != 0 && !have:
		p.sendOffer() // our offer was lost
	}
}

func (p *path) sendPing() {
	c := p.c
	p.tries++
	p.pingNonce++
	p.pingAt = c.now
	p.timerAt = c.now + c.probeWait(p.tries)
	c.sendRecord(p.route(), wire.Record{Type: wire.Ping, Path: p.index, Nonce: p.pingNonce})
}

// onPing responds on the same path. A ping also proves that the peer is connected.
func (p *path) onPing(r *wire.Record) {
	p.c.sendRecord(p.route(), wire.Record{Type: wire.Pong, Path: p.index, Nonce: r.Nonce})
	p.peerHas = true
	p.tryProbing()
}

// onPong processes a response. After pongsToUp of them the path is up.
func (p *path) onPong(r *wire.Record) {
	if p.state != PathProbing || r.Nonce != p.pingNonce {
		return
	}
	c := p.c
	p.rtt = newRTT(c.cfg.InitialRTT)
	c.measure(&p.rtt, max(c.now-c.age-p.pingAt, 1), max(c.now-p.pingAt, 1))
	p.tries = 0
	if p.pongs++; p.pongs < pongsToUp {
		p.sendPing()
		return
	}
	p.measured, p.measuredAt, p.timerAt = true, c.now, never
	c.stats.PathsUp++
	p.setState(PathUp)
}
