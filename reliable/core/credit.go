package core

import "ibverbx/reliable/wire"

// Receiver credits: with Config.Credits a sender may have sent no more bytes, in all, than the
// receiver has granted, in all. It tells how many it would like to have sent; the receiver's
// owner grants them at the pace of its link, in turn to all who ask (see Pacer). Both numbers
// only grow, so that a record that is lost, late or repeated does no harm: the next one says
// it all. Chunks that are sent again need no credit.
//
//	arrived <= granted <= arrived + reach      what a peer has and does not use is bounded
//	granted <= wanted + Speculative            an idle peer has so much in hand
//
// What a peer has in hand lets a message leave without a round trip. It is paid for when it
// is used: ActDemand tells the owner, who grants that much later.

// creditor is the credit state of both halves.
type creditor struct {
	demand  uint64 // bytes that the user has posted, without those of flows that have failed
	asked   uint64 // of which the peer was told
	sent    uint64 // of which were sent
	limit   uint64 // bytes that may be sent
	blocked bool   // a chunk waits for credit
	tries   uint8
	askAt   int64
	// grantedAt is when the peer last answered although a chunk waited for credit.
	grantedAt int64

	wanted  uint64 // by the peer
	granted uint64 // to the peer
	pledged uint64 // what the owner was asked to grant, in all
	arrived uint64 // bytes of the peer that were taken
}

// maxIdleAsks is how often a sender that can go on repeats its wish for more.
const maxIdleAsks = 3

func (c *Conn) initCredit() {
	c.askAt = never
	c.limit, c.granted = uint64(c.cfg.Speculative), uint64(c.cfg.Speculative)
	c.pledged = c.granted
}

// reach is how many bytes may be granted to the peer beyond those that have arrived: what it
// can have in flight, and what it has in hand. A peer that has gone, or asks for what it
// does not send, takes no more than that from the others.
func (c *Conn) reach() uint64 {
	return uint64(c.cfg.Window)*uint64(c.cfg.ChunkBytes) + uint64(c.cfg.Speculative)
}

// hasCredit reports whether n more bytes may be sent.
func (c *Conn) hasCredit(n uint32) bool {
	c.blocked = c.cfg.Credits && c.sent+uint64(n) > c.limit
	return !c.blocked
}

// unsend takes back bytes of a flow that has failed, which the peer will perhaps never count as
// arrived: they must not be missing to other flows. What the peer was told of them stays told: it
// grants to the flows that are left what these had asked for, within its reach.
func (c *Conn) unsend(n uint32) {
	c.sent -= uint64(n)
	c.demand -= uint64(n)
}

// ask tells the peer of new demand when half of what is in hand is spoken for, and again if it
// does not answer.
func (c *Conn) ask() {
	spare := uint64(c.cfg.Speculative)
	if !c.cfg.Credits || c.demand+spare/2 <= c.limit {
		c.askAt, c.tries = never, 0
		return
	}
	// As long as the peer knows of more than it has granted, small news can wait.
	news := c.demand > c.asked && (c.asked <= c.limit || c.demand-c.asked >= spare/4)
	due := c.askAt != never && c.now >= c.askAt
	if !news && !due && (c.askAt != never || !c.blocked) {
		return
	}
	route := c.route
	if !news {
		if c.tries = min(c.tries+1, 30); !c.blocked && c.tries > maxIdleAsks {
			c.askAt = never // the next message asks anew
			return
		}
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
	if !c.cfg.Credits || c.over() {
		c.stats.BadRecords++
		return
	}
	if c.blocked {
		c.grantedAt = c.now // the peer lives, and is busy with others
	}
	if r.Bytes > c.limit {
		c.limit = r.Bytes
		c.tries = 0
	}
	c.askAt = c.now + c.probeWait(c.tries)
}

// onCreditRequest takes the peer's demand, and repeats what was granted.
func (c *Conn) onCreditRequest(r *wire.Record) {
	if !c.cfg.Credits || c.over() {
		c.stats.BadRecords++
		return
	}
	used := uint64(0)
	if r.Bytes > c.wanted {
		used = min(r.Bytes, c.granted) - min(c.wanted, c.granted)
		c.wanted = r.Bytes
	}
	c.pledge(used)
	c.sendCredit()
}

// pledge tells the owner what the peer may be granted, if that is more than it knows, and of
// bytes that come on credit that the peer had in hand.
func (c *Conn) pledge(used uint64) {
	if !c.cfg.Credits || c.over() {
		return
	}
	spare := uint64(c.cfg.Speculative)
	bound := c.arrived + c.reach()
	top := min(c.wanted, bound) + spare // wanted may be anything: no sum with it overflows
	top = min(top, bound)
	if top <= c.pledged && used == 0 {
		return
	}
	c.pledged = max(c.pledged, top)
	a := c.act(ActDemand)
	a.Bytes = min(max(c.wanted, c.granted), c.pledged) - c.granted
	a.Spare = c.pledged - c.granted - a.Bytes
	a.Used = used
}

// onGrant takes what the owner grants to the peer.
func (c *Conn) onGrant(n int) {
	if !c.cfg.Credits || c.over() || n <= 0 {
		return
	}
	c.granted = min(c.granted+uint64(n), c.pledged)
	c.sendCredit()
}

func (c *Conn) sendCredit() {
	a := c.act(ActControl)
	a.Route = c.ackRoute
	a.Record = wire.Record{Type: wire.Credit, Bytes: c.granted}
}
