package core

import "ibverbx/reliable/wire"

// A message that takes a receive leaves when the peer has a receive for it. A peer whose flow has receives
// of its own tells their number unasked. A peer whose flows share receives cannot: a receive that an idle
// flow knows of is of no use to the others. So the sender tells how many messages it has, in a Solicit, and
// the peer promises receives in turn to all that ask (see Share). What was promised is not taken back.
//
//	sender                                      receiver
//	messageNo  messages in total  -- Solicit ->           ActWant
//	recvLimit  have a receive     <- Ack ------  posted   EvReceives

// asking is what the sending half of a flow knows about the peer's receives.
type asking struct {
	met    bool   // reports that the peer has acknowledged something
	shared bool   // reports that the peer's flows share receives
	told   uint32 // the number of messages that the peer was told of
	at     int64  // when the peer is told again, while a message waits for a receive and chunks are in flight
	nonce  uint32 // the first nonce since a message waits for a receive
	denied bool   // reports that the peer has answered since then, and has no receive
}

// askBatch is the number of new messages of which a peer is told although it has not promised receives for
// all others yet.
const askBatch = 32

// tellMessages tells the peer how many messages a flow has, and asks for an acknowledgement.
func (c *Conn) tellMessages(f *flow, route Route) {
	s := &f.send
	s.nonce++
	s.ask.told = s.messageNo
	s.ask.at = c.now + c.probeWait(s.recvProbes)
	c.tell(route, wire.Record{Type: wire.Solicit, Flow: f.number, Nonce: s.nonce, Want: s.messageNo})
}

// askReceives tells a peer whose flows share receives of messages that have none: when it does not know of
// any others, and again while a message waits. With nothing in flight the probes do the latter.
func (c *Conn) askReceives(f *flow) {
	s := &f.send
	if !s.ask.shared || int32(s.messageNo-s.recvLimit) <= 0 {
		return
	}
	news := s.messageNo - s.ask.told
	switch {
	case news >= askBatch || (news > 0 && int32(s.ask.told-s.recvLimit) <= 0):
		if c.control.posting {
			c.askSoon(f)
			return
		}
		c.tellMessages(f, c.control.route)
	case c.now >= s.askAgainAt():
		s.recvProbes = min(s.recvProbes+1, 30)
		c.tellMessages(f, c.nextRoute())
	}
}

// askSoon makes the next EvFlush ask: the user may post more messages until then.
func (c *Conn) askSoon(f *flow) {
	c.control.asks = true
	c.markOwing(f)
}

// Asks reports whether a posted message waits for a receive that must be requested from the peer. The
// owner then ends a chain of posts with EvFlush.
func (c *Conn) Asks() bool { return c.control.asks }

// Owes reports whether EvFlush has work to do: a flow owes an acknowledgement or must request receives.
func (c *Conn) Owes() bool { return len(c.owing) > 0 }

// askAgainAt is when askReceives tells the peer again, or never.
func (s *sender) askAgainAt() int64 {
	if s.ask.shared && s.noRecv && s.una < s.nxt {
		return s.ask.at
	}
	return never
}

// beginWait notes that the front message waits for a receive from now on.
func (s *sender) beginWait(now int64) {
	s.noRecvAt, s.ask.nonce, s.ask.denied = now, s.nonce+1, false
}

// onReceives takes what an acknowledgement tells about receives.
func (s *sender) onReceives(r *wire.Record, now int64) {
	s.ask.met, s.ask.shared = true, r.Flags&wire.AckShared != 0
	if int32(r.RecvLimit-s.recvLimit) > 0 {
		s.recvLimit = r.RecvLimit
		s.recvProbes, s.noRecv = 0, false
		s.progressAt = now
	}
	if s.noRecv && !s.ask.denied && r.Flags&wire.AckNonce != 0 && int32(r.Nonce-s.ask.nonce) >= 0 {
		s.ask.denied = true
		if s.ask.shared {
			s.noRecvAt = now
		}
	}
}

// impatient reports whether the flow waits for a receive, but not forever. The time counts when the peer
// can have told of its receives: of shared ones it tells only when asked.
func (f *flow) impatient() bool {
	s := &f.send
	return s.noRecv && f.patience > 0 && s.ask.met && (s.ask.denied || !s.ask.shared)
}

// Share makes a flow use shared receives. ActWant reports the number of the peer's messages to the
// owner, which grants receives by EvReceives.
func (c *Conn) Share(number int) { c.flows[number].recv.shared = true }

// want asks the owner for receives that the peer wants of a flow, and reports whether it did.
func (c *Conn) want(f *flow, messages uint32) bool {
	r := &f.recv
	if !r.shared || f.failed || r.faulty || int32(messages-r.posted) <= 0 {
		return false
	}
	if messages-r.turn > maxSendDepth+uint32(len(r.have)) {
		c.stats.BadRecords++ // no peer has so many
		return false
	}
	a := c.act(ActWant)
	a.Flow, a.Len = f.number, messages
	return true
}
