package core

import "ibverbx/reliable/wire"

// A message that consumes a receive is sent only once the peer has a receive for it. A peer advertises receives
// that belong to a single flow without a request. It cannot advertise shared ones: a receive advertised to an
// idle flow would be useless to the others. So the sender reports its message count in a Solicit, and the peer
// grants receives round-robin to the requesting flows (see Share). Grants are never revoked.
//
//	sender                                      receiver
//	messageNo  messages in total  -- Solicit ->           ActWant
//	recvLimit  have a receive     <- Ack ------  posted   EvReceives

// recvCredit is the sender's view of the peer's receives.
type recvCredit struct {
	acked    bool   // is set once the peer has acknowledged something
	shared   bool   // is set if the peer's flows share receives
	reported uint32 // the message count last reported to the peer
	resendAt int64  // when to report again, while a message waits for a receive and chunks are in flight
	nonce    uint32 // the first nonce sent after the wait for a receive began
	denied   bool   // is set if the peer has responded since then without granting a receive
}

// requestBatch is the number of unreported messages that triggers a report even while the peer owes receives
// for earlier ones.
const requestBatch = 32

// sendSolicit reports a flow's message count to the peer and requests an acknowledgement.
func (c *Conn) sendSolicit(f *flow, route Route) {
	s := &f.send
	s.nonce++
	s.recvCredit.reported = s.messageNo
	s.recvCredit.resendAt = c.now + c.probeWait(s.recvProbes)
	c.sendRecord(route, wire.Record{Type: wire.Solicit, Flow: f.number, Nonce: s.nonce, Want: s.messageNo})
}

// requestReceives requests shared receives for messages that lack one: when no earlier request is open, for
// every askBatch new messages, and again on a timer. If no chunk is in flight, probes repeat the request
// instead.
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

// requestAtFlush defers the request to the next EvFlush, because the user may post more messages until then.
func (c *Conn) requestAtFlush(f *flow) {
	c.control.requestDue = true
	c.markOwing(f)
}

// Asks reports whether a posted message waits for a receive that must be requested from the peer. The
// owner then ends a chain of posts with EvFlush.
func (c *Conn) Asks() bool { return c.control.requestDue }

// Owes reports whether EvFlush has work to do: a flow owes an acknowledgement or must request receives.
func (c *Conn) Owes() bool { return len(c.owing) > 0 }

// requestAgainAt returns the time of requestReceives' next repeated request, or never.
func (s *sender) requestAgainAt() int64 {
	if s.recvCredit.shared && s.noRecv && s.una < s.nxt {
		return s.recvCredit.resendAt
	}
	return never
}

// beginRecvWait records that the front message starts to wait for a receive.
func (s *sender) beginRecvWait(now int64) {
	s.noRecvAt, s.recvCredit.nonce, s.recvCredit.denied = now, s.nonce+1, false
}

// onReceives processes the receive limit of an acknowledgement.
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

// recvTimerRuns reports whether the timeout for a receive is running. It starts when the peer could have
// granted one, and shared receives are granted only on request.
func (f *flow) recvTimerRuns() bool {
	s := &f.send
	return s.noRecv && f.recvTimeout > 0 && s.recvCredit.acked && (s.recvCredit.denied || !s.recvCredit.shared)
}

// Share makes a flow use shared receives. ActWant reports the number of the peer's messages to the
// owner, which grants receives by EvReceives.
func (c *Conn) Share(number int) { c.flows[number].recv.shared = true }

// requestGrant requests receives from the owner for the peer's messages and reports whether it did.
func (c *Conn) requestGrant(f *flow, messages uint32) bool {
	r := &f.recv
	if !r.shared || f.failed || r.faulty || int32(messages-r.posted) <= 0 {
		return false
	}
	if messages-r.nextRecv > maxSendDepth+uint32(len(r.early)) {
		c.stats.BadRecords++ // more than any peer can have
		return false
	}
	a := c.act(ActWant)
	a.Flow, a.Len = f.number, messages
	return true
}
