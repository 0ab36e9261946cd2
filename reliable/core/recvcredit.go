package core

import "ibverbx/reliable/wire"

// A message that consumes a receive is sent once the peer has a receive for it. A peer whose flow has its own
// receives advertises their number. A peer whose flows share receives cannot: a receive advertised to an idle
// flow would be useless to the others. So the sender announces its messages in a Solicit, and the peer grants
// receives round-robin (see Share). Grants are never revoked.
//
//	sender                                      receiver
//	messageNo  messages in total  -- Solicit ->           ActWant
//	recvLimit  have a receive     <- Ack ------  posted   EvReceives

// recvCredit is the sender's view of the peer's receives.
type recvCredit struct {
	acked    bool   // set once the peer has acknowledged something
	shared   bool   // set if the peer's flows share receives
	reported uint32 // the number of messages in the last Solicit
	resendAt int64  // when the Solicit is repeated, while a message waits for a receive and chunks are in flight
	nonce    uint32 // the first nonce sent since a message has waited for a receive
	denied   bool   // set if the peer has responded to it without a receive
}

// requestBatch is the number of new messages after which a Solicit is sent although earlier messages still wait
// for a grant.
const requestBatch = 32

// sendSolicit announces a flow's messages and requests an acknowledgement.
func (c *Conn) sendSolicit(f *flow, route Route) {
	s := &f.send
	s.nonce++
	s.recvCredit.reported = s.messageNo
	s.recvCredit.resendAt = c.now + c.probeWait(s.recvProbes)
	c.sendRecord(route, wire.Record{Type: wire.Solicit, Flow: f.number, Nonce: s.nonce, Want: s.messageNo})
}

// requestReceives requests shared receives for the messages without one: once the peer has granted all earlier
// requests, and repeatedly while a message waits. With nothing in flight, probes repeat the request.
func (c *Conn) requestReceives(f *flow) {
	s := &f.send
	if !s.recvCredit.shared || int32(s.messageNo-s.recvLimit) <= 0 {
		return
	}
	news := s.messageNo - s.recvCredit.reported
	switch {
	case news >= requestBatch || (news > 0 && int32(s.recvCredit.reported-s.recvLimit) <= 0):
		if c.control.posting {
			c.requestAtFlush(f)
			return
		}
		c.sendSolicit(f, c.control.route)
	case c.now >= s.requestAgainAt():
		s.recvProbes = min(s.recvProbes+1, 30)
		c.sendSolicit(f, c.nextRoute())
	}
}

// requestAtFlush defers the request to the next EvFlush: the user may post more messages until then.
func (c *Conn) requestAtFlush(f *flow) {
	c.control.requestDue = true
	c.markOwing(f)
}

// Asks reports whether a posted message waits for a receive that must be requested from the peer. The
// owner then ends a chain of posts with EvFlush.
func (c *Conn) Asks() bool { return c.control.requestDue }

// Owes reports whether EvFlush has work to do: a flow owes an acknowledgement or must request receives.
func (c *Conn) Owes() bool { return len(c.owing) > 0 }

// requestAgainAt is the time at which requestReceives repeats the request, or never.
func (s *sender) requestAgainAt() int64 {
	if s.recvCredit.shared && s.noRecv && s.una < s.nxt {
		return s.recvCredit.resendAt
	}
	return never
}

// beginRecvWait starts the wait of the front message for a receive.
func (s *sender) beginRecvWait(now int64) {
	s.noRecvAt, s.recvCredit.nonce, s.recvCredit.denied = now, s.nonce+1, false
}

// onReceives processes the receives advertised by an acknowledgement.
func (s *sender) onReceives(r *wire.Record, now int64) {
	s.recvCredit.acked, s.recvCredit.shared = true, r.Flags&wire.AckShared != 0
	if int32(r.RecvLimit-s.recvLimit) > 0 {
		s.recvLimit = r.RecvLimit
		s.recvProbes, s.noRecv = 0, false
		s.progressAt = now
	}
	if s.noRecv && !s.recvCredit.denied && r.Flags&wire.AckNonce != 0 && int32(r.Nonce-s.recvCredit.nonce) >= 0 {
		s.recvCredit.denied = true
		if s.recvCredit.shared {
			s.noRecvAt = now
		}
	}
}

// recvTimerRuns reports whether the timeout for a receive is running. It starts once the peer can have
// advertised a receive; shared receives are advertised only on request.
func (f *flow) recvTimerRuns() bool {
	s := &f.send
	return s.noRecv && f.recvTimeout > 0 && s.recvCredit.acked && (s.recvCredit.denied || !s.recvCredit.shared)
}

// Share makes a flow use shared receives. ActWant reports the number of the peer's messages to the
// owner, which grants receives by EvReceives.
func (c *Conn) Share(number int) { c.flows[number].recv.shared = true }

// requestGrant requests the receives that the peer wants from the owner and reports whether it did.
func (c *Conn) requestGrant(f *flow, messages uint32) bool {
	r := &f.recv
	if !r.shared || f.failed || r.faulty || int32(messages-r.posted) <= 0 {
		return false
	}
	if messages-r.nextRecv > maxSendDepth+uint32(len(r.have)) {
		c.stats.BadRecords++ // more than any peer can have
		return false
	}
	a := c.act(ActWant)
	a.Flow, a.Len = f.number, messages
	return true
}
