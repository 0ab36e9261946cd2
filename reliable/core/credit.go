package core

import "ibverbx/reliable/wire"

// Receiver credits. With Config.Credits the bytes that a sender has sent, in total, must not exceed the
// bytes that the receiver has granted, in total. The sender tells its demand in total. The receiver's
// owner grants at the pace of its link, in turn to all that ask (see Pacer). Both totals only grow, so
// a lost, late or repeated record does no harm: the next one replaces it. Retransmissions need no
// credit.
//
//	arrived <= granted <= arrived + reach      bounds unused credit
//	granted <= wanted + Speculative            credit of an idle peer
//
// With the credit of an idle peer a message leaves without a round trip. It is paid for when it is used:
// ActDemand tells the owner, which grants that much later.

// credits is the credit state of both halves. Its numbers are totals in bytes.
type credits struct {
	c *Conn

	demand    uint64 // posted by the user, without what failed flows have not sent
	asked     uint64 // the demand that the peer was told
	sent      uint64 // sent, without what failed flows have sent and was not acknowledged
	limit     uint64 // may be sent
	blocked   bool   // reports that a chunk waits for credit
	tries     uint8  // counts the requests since limit last grew
	askAt     int64  // when the next request is due, or never
	grantedAt int64  // when the peer last answered while a chunk waited for credit

	wanted  uint64 // the demand of the peer
	granted uint64 // granted to the peer
	pledged uint64 // what the owner was asked to grant
	arrived uint64 // taken from the peer
}

// maxIdleAsks is the limit of repeated requests of a sender that is not blocked.
const maxIdleAsks = 3

func (k *credits) init(c *Conn) {
	spare := uint64(c.cfg.Speculative)
	*k = credits{c: c, askAt: never, limit: spare, granted: spare, pledged: spare}
}

// reach is the limit of the credit of the peer beyond what has arrived: its window and its credit when
// idle. A peer that is gone, or that asks for more than it sends, takes no more than that from others.
func (k *credits) reach() uint64 {
	cfg := &k.c.cfg
	return uint64(cfg.Window)*uint64(cfg.ChunkBytes) + uint64(cfg.Speculative)
}

// has reports whether n more bytes may be sent.
func (k *credits) has(n uint32) bool {
	k.blocked = k.c.cfg.Credits && k.sent+uint64(n) > k.limit
	return !k.blocked
}

// unsend takes back bytes of a failed flow, which the peer may never count as arrived: other flows must
// not miss them. The peer keeps the demand that it was told. It grants that to the other flows, within
// its reach.
func (k *credits) unsend(n uint32) {
	k.sent -= uint64(n)
	k.demand -= uint64(n)
}

// ask tells the peer of new demand when half of the idle credit is used, and again if it does not
// answer.
func (k *credits) ask() {
	c := k.c
	spare := uint64(c.cfg.Speculative)
	if !c.cfg.Credits || k.demand+spare/2 <= k.limit {
		k.askAt, k.tries = never, 0
		return
	}
	// While the peer knows of more than it has granted, a small increase can wait.
	news := k.demand > k.asked && (k.asked <= k.limit || k.demand-k.asked >= spare/4)
	due := k.askAt != never && c.now >= k.askAt
	if !news && !due && (k.askAt != never || !k.blocked) {
		return
	}
	route := c.control.route
	if !news {
		if k.tries = min(k.tries+1, 30); !k.blocked && k.tries > maxIdleAsks {
			k.askAt = never // the next message asks again
			return
		}
		route = c.nextRoute()
	}
	k.asked = k.demand
	k.askAt = c.now + c.probeWait(k.tries)
	c.tell(route, wire.Record{Type: wire.CreditRequest, Bytes: k.demand})
}

// onRecord takes the peer's demand or its grant.
func (k *credits) onRecord(r *wire.Record) {
	if r.Type == wire.Credit {
		k.onCredit(r.Bytes)
		return
	}
	used := uint64(0)
	if r.Bytes > k.wanted {
		used = min(r.Bytes, k.granted) - min(k.wanted, k.granted)
		k.wanted = r.Bytes
	}
	k.pledge(used)
	k.tell()
}

// onCredit takes a grant.
func (k *credits) onCredit(limit uint64) {
	if k.blocked {
		k.grantedAt = k.c.now // the peer is alive and busy with others
	}
	if limit > k.limit {
		k.limit = limit
		k.tries = 0
	}
	k.askAt = k.c.now + k.c.probeWait(k.tries)
}

// pledge tells the owner what the peer may be granted, if that has grown, and how many bytes the peer
// sends on its idle credit.
func (k *credits) pledge(used uint64) {
	if !k.c.cfg.Credits || k.c.Over() {
		return
	}
	spare := uint64(k.c.cfg.Speculative)
	bound := k.arrived + k.reach()
	top := min(k.wanted, bound) + spare // wanted may be anything: no sum with it may overflow
	top = min(top, bound)
	if top <= k.pledged && used == 0 {
		return
	}
	k.pledged = max(k.pledged, top)
	a := k.c.act(ActDemand)
	a.Bytes = min(max(k.wanted, k.granted), k.pledged) - k.granted
	a.Spare = k.pledged - k.granted - a.Bytes
	a.Used = used
}

// onGrant takes what the owner grants to the peer.
func (k *credits) onGrant(n int) {
	if !k.c.cfg.Credits || k.c.Over() || n <= 0 {
		return
	}
	k.granted = min(k.granted+uint64(n), k.pledged)
	k.tell()
}

// tell tells the peer how much it was granted.
func (k *credits) tell() {
	k.c.tell(k.c.control.ackRoute, wire.Record{Type: wire.Credit, Bytes: k.granted})
}
