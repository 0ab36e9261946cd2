package reliable

import (
	"encoding/binary"
	"time"

	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// cardQP is a handshake QP for devices without RC. It behaves like an RC QP for cards and attributes, but uses a UD QP with its
// number. A card is one datagram or more, retransmitted until the peer acknowledges it. Its PSN distinguishes the
// sender from its predecessors, as on RC.
//
//	 0         8         16        24       31
//	+---------+---------+---------+---------+
//	| version |  kind   |  slot   |  part   |  0    kind: 1 part of a card, 2 its last part, 3 acknowledgement
//	+---------+---------+---------+---------+
//	|          number of the card           |  4
//	+---------------------------------------+
//	|    first PSN of the card's sender     |  8
//	+---------------------------------------+
//	|            part of the card           | 12
type cardQP struct {
	verbs.QP                // the UD QP, in RTS while this QP is in INIT or later
	user      *qp           // the wrapped QP
	state     verbs.QPState // the state of an RC QP
	attr      verbs.QPAttr  // the attributes of an RC QP
	psn       uint32        // the first PSN in the endpoint
	ah        verbs.AH      // the peer's address, nil until RTR
	in, out   pool          // cardRecvs receives, and two slots for cards
	headers   pool          // cardHeaders slots for headers
	payload   int           // the maximum number of a card's bytes per datagram
	number    uint32        // counts the cards sent
	posted    uint32        // counts the datagrams sent
	cqEntries int           // the CQ entries held by sends
	sent      [cardRecv]sentCard
	received  [cardRecv]receivedCard
	wr        [1]verbs.SendWR
}

// sentCard is a card that is retransmitted until the peer acknowledges it.
type sentCard struct {
	number uint32 // its number
	length int    // in bytes, 0 without a card
	tries  int    // counts the transmissions
	at     int64  // the next transmission
}

// receivedCard is a card of the peer.
type receivedCard struct {
	number uint32 // its number
	bytes  []byte // the data received in order
	parts  int    // the number of its parts received, or cardDone
}

const (
	cardHeader = 12
	cardRecvs  = 16
	// cardHeaders is the maximum number of datagrams in the send queue; others are dropped.
	cardHeaders = 32
	// cardDone means that the card is complete.
	cardDone = 1 << 16

	kindCard, kindLast, kindAck = 1, 2, 3

	// cardTimeout is the first retransmission interval of a card, which doubles, in nanoseconds. After cardTries times the QP fails.
	cardTimeout = int64(20 * time.Millisecond)
	cardTries   = 6
)

// newCardQP creates the handshake QP of a user's QP.
func newCardQP(q *qp) (*cardQP, error) {
	h := &q.engine.resources
	inner, err := h.pd.CreateQP(verbs.QPConfig{
		Type: verbs.UD, SendCQ: q.engine.inbox.cq, RecvCQ: q.engine.inbox.cq, MaxSendSGE: minSGEs,
		MaxSendWR: cardHeaders, MaxRecvWR: cardRecvs, Port: q.cfg.Port, GID: q.cfg.GID, Path: q.cfg.Path,
	})
	if err != nil {
		return nil, err
	}
	size := q.ctx.cfg.maxCardLen()
	s := &cardQP{QP: inner, user: q, payload: min(size, h.chunk)}
	if s.in, err = newPool(h.pd, cardRecvs, verbs.GRHLen+cardHeader+s.payload); err == nil {
		s.out, err = newPool(h.pd, cardRecv, size)
	}
	if err == nil {
		s.headers, err = newPool(h.pd, cardHeaders, cardHeader)
	}
	if err == nil {
		err = s.reset()
	}
	if err != nil {
		_ = s.Close() // no object depends on it
		return nil, err
	}
	return s, nil
}

// reset returns the QP to RESET.
func (s *cardQP) reset() error {
	s.stopAll()
	s.discardCompletions()
	ep, err := s.QP.Endpoint()
	s.state, s.attr, s.received = verbs.StateReset, verbs.QPAttr{}, [cardRecv]receivedCard{}
	s.psn = ep.PSN
	return err
}

// discardCompletions drops the completions of the QP, which is closed or in RESET.
func (s *cardQP) discardCompletions() {
	in := &s.user.engine.inbox
	in.drain()
	in.discard(s.Num())
	in.entries.hold(&s.cqEntries, -s.cqEntries)
}

// stopAll stops the retransmission of all cards.
func (s *cardQP) stopAll() {
	for i := range s.sent {
		s.stopCard(i)
	}
}

// stopCard stops the retransmission of a card.
func (s *cardQP) stopCard(slot int) {
	if s.sent[slot].length != 0 {
		s.sent[slot] = sentCard{}
		s.user.engine.unackedCards--
	}
}

// Type implements verbs.QP.
func (s *cardQP) Type() verbs.QPType { return verbs.RC }

// State implements verbs.QP.
func (s *cardQP) State() verbs.QPState { return s.state }

// Query implements verbs.QP.
func (s *cardQP) Query() (verbs.QPAttr, error) {
	a := s.attr
	a.State, a.CurState = s.state, s.state
	return a, nil
}

// maxCardAtomic is the limit of READs and atomics in the endpoint, as on most NICs. Software has no limit.
const maxCardAtomic = 16

// Endpoint implements verbs.QP.
func (s *cardQP) Endpoint() (verbs.Endpoint, error) {
	ep, err := s.QP.Endpoint()
	ep.PSN, ep.QKey, ep.MaxRdAtomic, ep.MaxDestRdAtomic = s.psn, 0, maxCardAtomic, maxCardAtomic
	return ep, err
}

// Connect implements verbs.QP.
func (s *cardQP) Connect(remote verbs.Endpoint) error {
	own, err := s.Endpoint()
	if err != nil {
		return err
	}
	cfg := &s.user.cfg
	row, err := cfg.Path.SGIDIndex(s.user.ctx.inner, max(cfg.Port, 1), own.GID)
	if err != nil {
		return err
	}
	attr := verbs.ConnectAttr(own, remote, max(cfg.Port, 1), row)
	cfg.Path.Apply(&attr)
	if err := s.start(remote); err != nil {
		return err
	}
	return verbs.ConnectWith(s, attr)
}

// start takes the UD QP into service. remote, unless zero, describes the peer to the device.
func (s *cardQP) start(remote verbs.Endpoint) error {
	if s.QP.State() == verbs.StateRTS {
		if remote.QPN == 0 {
			return nil
		}
		if err := s.QP.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState); err != nil {
			return err
		}
		s.discardCompletions()
	}
	if err := s.QP.Connect(remote); err != nil {
		return err
	}
	var r refill
	for i := range cardRecvs {
		r.add(tagCardRecv.with(s.user.id, 0, uint32(i)), &s.in, i)
	}
	r.post(s.QP) // the queue is deep enough
	return nil
}

// Modify implements verbs.QP.
func (s *cardQP) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	q, to := s.user, s.state
	if mask&verbs.AttrState != 0 {
		to = attr.State
	}
	err := verbs.CheckTransition(verbs.RC, s.state, to, mask)
	if err == nil {
		err = s.check(&attr, mask)
	}
	if err != nil {
		return q.opError("modify QP", err)
	}
	if mask&verbs.AttrAV != 0 {
		address := attr.AH
		address.Seal = q.cfg.Path.Seal
		ah, err := q.engine.resources.pd.CreateAH(address)
		if err != nil {
			return err
		}
		s.closeAH()
		s.ah = ah
	}
	switch {
	case to == verbs.StateReset:
		if err := s.QP.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState); err != nil {
			return err
		}
		s.closeAH()
		return s.reset()
	case to == verbs.StateErr:
		s.stopAll()
		_ = s.QP.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState) // fails if it is there already
	case s.QP.State() == verbs.StateReset:
		if err := s.start(verbs.Endpoint{}); err != nil {
			return err
		}
	}
	s.attr.Set(&attr, mask)
	s.state = to
	return nil
}

// check validates the attributes in mask.
func (s *cardQP) check(a *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := a.Check(mask); err != nil {
		return err
	}
	ctx := s.user.ctx
	number := max(s.user.cfg.Port, 1)
	if mask&verbs.AttrPort != 0 {
		number = a.Port
	}
	port, err := ctx.inner.QueryPort(int(number))
	if err != nil {
		return err
	}
	for _, f := range [...]struct {
		bit   verbs.QPAttrMask
		bad   bool
		what  string
		value any
	}{
		{verbs.AttrPort, a.Port != max(s.user.cfg.Port, 1), "Port: want that of QPConfig", a.Port},
		{verbs.AttrPKeyIndex, int(a.PKeyIndex) >= max(port.PKeys, 1), "PKeyIndex: the table is shorter", a.PKeyIndex},
		{verbs.AttrAccess, a.Access&^verbs.AccessAll != 0, "Access: unknown flags", a.Access},
		{verbs.AttrPathMTU, a.PathMTU.Bytes() == 0 || a.PathMTU > port.ActiveMTU, "PathMTU: not a code, or above the port's", a.PathMTU},
		{verbs.AttrMaxRdAtomic, a.MaxRdAtomic > maxCardAtomic, "MaxRdAtomic: above the limit", a.MaxRdAtomic},
		{verbs.AttrMaxDestRdAtomic, a.MaxDestRdAtomic > maxCardAtomic, "MaxDestRdAtomic: above the limit", a.MaxDestRdAtomic},
	} {
		if mask&f.bit != 0 && f.bad {
			return verbs.Invalidf("QPAttr.%s, not %v", f.what, f.value)
		}
	}
	return nil
}

func (s *cardQP) closeAH() {
	if s.ah != nil {
		_ = s.ah.Close() // no object depends on it
		s.ah = nil
	}
}

// Close implements verbs.QP.
func (s *cardQP) Close() error {
	s.stopAll()
	err := s.QP.Close()
	s.discardCompletions()
	s.closeAH()
	s.in.free()
	s.out.free()
	s.headers.free()
	return err
}

// send sends a card from a slot and retransmits it until the peer acknowledges it. It reports whether the QP is in RTS.
func (s *cardQP) send(slot int, card []byte) bool {
	if s.state != verbs.StateRTS {
		return false
	}
	s.stopCard(slot)
	s.number++
	s.sent[slot] = sentCard{number: s.number, length: copy(s.out.slot(slot), card)}
	s.user.engine.unackedCards++
	s.transmit(slot)
	return true
}

// transmit sends the card of a slot.
func (s *cardQP) transmit(slot int) {
	c := &s.sent[slot]
	c.at = s.user.engine.now + cardTimeout<<c.tries
	c.tries++
	for part := 0; part*s.payload < c.length; part++ {
		kind, from := byte(kindCard), s.out.sge(slot, c.length)
		from.Addr += uint64(part * s.payload)
		if from.Length -= uint32(part * s.payload); int(from.Length) <= s.payload {
			kind = kindLast
		}
		from.Length = min(from.Length, uint32(s.payload))
		s.post([4]byte{wire.Version, kind, byte(slot), byte(part)}, c.number, s.attr.SQPSN, from)
	}
}

// post posts a datagram: a header and a part of a card. If the queue or the CQ is full, the datagram is dropped.
func (s *cardQP) post(head [4]byte, number, psn uint32, part ...verbs.SGE) {
	room := &s.user.engine.inbox.entries
	if room.available() == 0 || s.cqEntries == cardHeaders {
		return
	}
	slot := int(s.posted % cardHeaders)
	b := s.headers.slot(slot)
	copy(b, head[:])
	binary.BigEndian.PutUint32(b[4:], number)
	binary.BigEndian.PutUint32(b[8:], psn)
	s.wr[0] = verbs.SendWR{
		WRID: tagCardSend.with(s.user.id, 0, 0), Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
		AH: s.ah.Handle(), RemoteQPN: s.attr.DestQPN, RemoteQKey: verbs.DefaultQKey,
	}
	s.wr[0].SetSGE(append([]verbs.SGE{s.headers.sge(slot, cardHeader)}, part...)...)
	n, _ := s.PostSend(s.wr[:])
	s.posted += uint32(n)
	room.hold(&s.cqEntries, n)
}

// deadline is the time of the next retransmission.
func (s *cardQP) deadline() int64 {
	at := int64(1<<63 - 1)
	for i := range s.sent {
		if s.sent[i].length != 0 {
			at = min(at, s.sent[i].at)
		}
	}
	return at
}

// retransmitCards retransmits unacknowledged cards. After cardTries times the QP fails, as after the retries of RC.
func (e *engine) retransmitCards() {
	for _, q := range e.qps {
		if q == nil || q.handshake.cardQP == nil {
			continue
		}
		s := q.handshake.cardQP
		for slot := range s.sent {
			switch c := &s.sent[slot]; {
			case c.length == 0 || e.now < c.at:
			case c.tries < cardTries:
				s.transmit(slot)
			default:
				s.stopCard(slot)
				q.handshake.completed(tagCardSend, 0, &verbs.WC{Status: verbs.StatusRetryExcErr})
			}
		}
	}
}

// completed processes a completion of the UD QP.
func (s *cardQP) completed(kind tag, n uint32, wc *verbs.WC) {
	if kind == tagCardSend && s.cqEntries > 0 {
		s.user.engine.inbox.entries.hold(&s.cqEntries, -1)
	}
	switch {
	case wc.Status != verbs.StatusSuccess:
		s.user.fail() // the QP or the device has failed
	case kind == tagCardRecv && n < cardRecvs:
		if b := s.in.slot(int(n)); !s.accept(b, wc) {
			s.user.engine.closedStats.Malformed++
		}
		var r refill
		r.add(tagCardRecv.with(s.user.id, 0, n), &s.in, int(n))
		r.post(s.QP) // the queue has a free slot
	}
}

// accept processes a datagram and reports whether the peer has sent it. As on RC, a QP before RTR ignores it.
func (s *cardQP) accept(b []byte, wc *verbs.WC) bool {
	if s.state != verbs.StateRTR && s.state != verbs.StateRTS {
		return true
	}
	if wc.ByteLen < verbs.GRHLen+cardHeader || int(wc.ByteLen) > len(b) || !sentFrom(&s.attr.AH, wc, b, s.attr.DestQPN) {
		return false
	}
	p := b[verbs.GRHLen:wc.ByteLen]
	kind, slot, number, psn := p[1], int(p[2]), binary.BigEndian.Uint32(p[4:]), binary.BigEndian.Uint32(p[8:])
	if p[0] != wire.Version || slot >= cardRecv {
		return false
	}
	switch {
	case kind == kindAck && len(p) == cardHeader && p[3] == 0:
		if c := &s.sent[slot]; c.length != 0 && c.number == number && psn == s.attr.SQPSN {
			s.stopCard(slot)
			s.user.handshake.completed(tagCardSend, 0, &verbs.WC{})
		}
	case (kind == kindCard || kind == kindLast) && psn != s.attr.RQPSN: // of a predecessor
	case kind == kindCard || kind == kindLast:
		return s.acceptFragment(slot, number, int(p[3]), kind == kindLast, p[cardHeader:])
	default:
		return false
	}
	return true
}

// acceptFragment processes a part of a card. Parts out of order are dropped: the peer retransmits them all.
func (s *cardQP) acceptFragment(slot int, number uint32, part int, last bool, b []byte) bool {
	h := &s.received[slot]
	if int32(number-h.number) < 0 {
		return true // a late duplicate: the peer has sent another card since
	}
	if h.number != number {
		*h = receivedCard{number: number, bytes: h.bytes[:0]}
	}
	switch {
	case h.parts == cardDone:
		if last { // the acknowledgement was lost
			s.post([4]byte{wire.Version, kindAck, byte(slot), 0}, number, s.attr.RQPSN)
		}
	case part != h.parts:
	case len(h.bytes)+len(b) > s.user.ctx.cfg.maxCardLen():
		return false
	default:
		h.bytes = append(h.bytes, b...)
		h.parts++
		if last {
			h.parts = cardDone
			s.post([4]byte{wire.Version, kindAck, byte(slot), 0}, number, s.attr.RQPSN)
			s.established()
			s.user.handshake.receiveCard(h.bytes)
		}
	}
	return true
}

// established raises the event of an RC QP in RTR whose peer sends.
func (s *cardQP) established() {
	if s.user.state == verbs.StateRTR && s.state == verbs.StateRTR {
		s.user.ctx.events.raise(verbs.Event{Type: verbs.EventCommEst, QP: s.user})
	}
}
