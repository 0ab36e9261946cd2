package core

import (
	"math"

	"ibverbx/reliable/wire"
)

// Receiver credits. A receiver with Config.Grants sends its peer a limit: the total bytes that the peer may
// send. The peer, with Config.PeerGrants, starts a chunk only below the limit. If it wants to send
// more, it sends the receiver its total demand. The receiver's owner decides the grants (see
// Pacer). Retransmissions need no credit.
//
//	limit = no limit                           one connection has the port to itself
//	limit = arrived + Speculative              the peer is idle: its next bytes leave without a round trip
//	limit < demand                             several peers share the port round-robin
//
// Both records carry the current state and a number. The latest one counts, so a limit may also shrink. A
// lost record is repaired by the next one: a waiting peer repeats its request, and a receiver that gets bytes
// beyond its limit repeats the limit.

// credits is the credit state of both directions. Its numbers are totals in bytes.
type credits struct {
	c *Conn

	demand     uint64 // posted by the user, without the unsent bytes of failed flows
	requested  uint64 // the demand in the last CreditRequest
	sent       uint64 // sent, without the unacknowledged bytes of failed flows
	limit      uint64 // no chunk starts at or beyond this number of bytes
	requestSeq uint32 // counts the requests
	lastCredit uint32 // the number of the last Credit
	blocked    bool   // set while a chunk waits for credit
	tries      uint8  // counts the requests since limit last changed
	requestAt  int64  // the time of the next request, or never
	grantedAt  int64  // the last response of the peer while a chunk waited for credit

	peerDemand  uint64 // the peer's demand
	lastRequest uint32 // the number of the last CreditRequest
	granted     uint64 // the limit of the peer
	creditSeq   uint32 // counts the Credits
	arrived     uint64 // accepted from the peer
	reported    uint64 // the value of arrived last reported to the owner
	ended       bool   // set when NoLimit was revoked and the peer has not sent its demand since
	reportDue   bool   // set when an ActDemand is due
}

const (
	// maxIdleRequests limits the repeated requests of a sender that is not blocked.
	maxIdleRequests = 3
	// noLimit is the limit that stands for unlimited credit.
	noLimit = math.MaxUint64
)

func (k *credits) init(c *Conn) {
	*k = credits{c: c, requestAt: never, limit: noLimit, granted: uint64(c.cfg.Speculative)}
	if c.cfg.PeerGrants {
		k.limit = uint64(c.cfg.Speculative)
	}
}

// has reports whether there is credit for a chunk of n bytes. The last chunk may exceed the limit, so that
// even a small credit is usable.
func (k *credits) has(n uint32) bool {
	k.blocked = n > 0 && k.sent >= k.limit
	return !k.blocked
}

// unsend subtracts bytes of a failed flow, which the peer may never count as arrived: other flows must
// not miss them.
func (k *credits) unsend(n uint32) {
	k.sent -= uint64(n)
	k.demand -= uint64(n)
}

// requestMore sends the peer demand beyond the limit, and repeats it without a response.
func (k *credits) requestMore() {
	c := k.c
	if k.demand <= k.limit {
		k.requestAt, k.tries = never, 0
		return
	}
	// If the peer already knows of unmet demand, report again only once that demand has doubled.
	news := k.demand > k.requested && (k.requested <= k.limit || k.demand-k.requested >= k.requested-k.limit)
	due := k.requestAt != never && c.now >= k.requestAt
	if !news && !due && (k.requestAt != never || !k.blocked) {
		return
	}
	route := c.control.route
	if !news {
		if c.flying > 0 { // probes check whether the peer is alive
			k.requestAt = c.now + c.probeWait(k.tries)
			return
		}
		if k.tries = min(k.tries+1, 30); !k.blocked && k.tries > maxIdleRequests {
			k.requestAt = never // the next message triggers a request
			return
		}
		route = c.nextRoute()
	}
	k.requestAt = c.now + c.probeWait(k.tries)
	k.sendRequest(route)
}

// sendRequest sends the peer the demand.
func (k *credits) sendRequest(route Route) {
	k.requested = k.demand
	k.requestSeq++
	k.c.sendRecord(route, wire.Record{Type: wire.CreditRequest, Nonce: k.requestSeq, Bytes: k.demand})
}

// onRecord processes the peer's demand or its limit. A record that is older than the last one is
// ignored.
func (k *credits) onRecord(r *wire.Record) {
	last := &k.lastRequest
	if r.Type == wire.Credit {
		last = &k.lastCredit
	}
	if int32(r.Nonce-*last) <= 0 {
		return
	}
	*last = r.Nonce
	if r.Type == wire.Credit {
		k.onCredit(r.Bytes)
		return
	}
	if r.Bytes == k.peerDemand {
		k.c.control.lostAckHints++ // the response may be lost
	}
	k.peerDemand, k.ended, k.reportDue = r.Bytes, false, true
	k.sendLimit()
}

// onCredit processes a limit.
func (k *credits) onCredit(limit uint64) {
	if k.blocked {
		k.grantedAt = k.c.now // the peer is alive, and serves others
	}
	if limit < k.limit {
		k.sendRequest(k.c.control.route) // the peer may not know the demand
	}
	if limit != k.limit {
		k.limit, k.tries = limit, 0
	}
	k.requestAt = k.c.now + k.c.probeWait(k.tries)
}

// onGrant processes a grant of the owner: n bytes, NoLimit, or 0, which revokes NoLimit.
func (k *credits) onGrant(n int) {
	switch {
	case k.c.Over() || n < 0 || !k.c.cfg.Grants:
		return
	case n == NoLimit:
		k.granted, k.ended = noLimit, false
	case n > 0 && k.granted != noLimit:
		k.granted = max(k.granted, k.arrived) + uint64(n)
	case n == 0 && k.granted == noLimit:
		k.granted = k.arrived + uint64(k.c.cfg.Speculative)
		k.peerDemand, k.ended = k.granted, true // assumes that the peer uses all of it
	default:
		return
	}
	k.reportDue = true
	k.sendLimit()
}

// report reports changes to the owner: bytes granted that have not arrived, bytes that the peer waits
// for, and bytes arrived. Arrivals are reported at the end of a batch.
func (k *credits) report() {
	k.reportDue = false
	if !k.c.cfg.Grants {
		return
	}
	spare, beyond := uint64(k.c.cfg.Speculative), uint64(0)
	switch {
	case k.arrived > k.granted && k.arrived-k.granted > uint64(k.c.cfg.ChunkBytes):
		beyond = k.arrived - k.granted
		k.granted = k.arrived
		k.sendLimit() // the peer does not know its limit
	case !k.ended && k.peerDemand <= max(k.granted, k.arrived) && k.granted < k.arrived+spare/2:
		k.granted = k.arrived + spare
		k.sendLimit() // the peer is idle, or nearly so
	}
	a := k.c.act(ActDemand)
	a.Arrived = k.arrived - k.reported
	a.Beyond = min(beyond, a.Arrived)
	k.reported = k.arrived
	if k.granted != noLimit && !k.c.Over() {
		used := max(min(k.peerDemand, k.granted), k.arrived)
		a.Flying, a.Bytes = used-k.arrived, max(k.peerDemand, used)-used
	}
	if beyond > 0 {
		a.Flying = max(a.Flying, spare) // more will follow
	}
}

// sendLimit sends the peer its limit.
func (k *credits) sendLimit() {
	k.creditSeq++
	k.c.sendRecord(k.c.answerRoute(), wire.Record{Type: wire.Credit, Nonce: k.creditSeq, Bytes: k.granted})
}
