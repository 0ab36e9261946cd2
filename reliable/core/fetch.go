package core

import "ibverbx/reliable/wire"

// A fetch is a READ or an atomic. It travels as one chunk, in order with all others, so it sees
// everything that was posted before it, and it is executed once. The peer responds with a message in the
// other direction. The chunks of a response have numbers of that direction: they take all paths,
// and are acknowledged and retransmitted like those of a SEND. A fetch completes when its whole response is in
// place.
//
//	requester                                   responder
//	asked    fetches sent          ---------->  taken  in order, their responses wait
//	                                            cut    responses cut into chunks
//	answered fetches completed     <----------  done   responses acknowledged
//
// Responses need no receive, and a message of the user is cut into chunks only when the peer has its
// receive. So a response never queues behind a waiting message, and two sides that wait for each other's
// receives still respond.
//
//	asked - answered <= Window/2     the requester waits
//	taken - done     <= Window       the responder drops more: the requester has responses of which the
//	                                 responder does not know

// fetches is the requester of a flow: the local fetches and their responses.
type fetches struct {
	msgs     []uint64 // the message of each fetch, by number modulo limit; nil before the first
	limit    uint32   // the maximum number of fetches without a response, a power of two
	asked    uint32   // counts the sent fetches
	answered uint32   // counts the fetches whose response is in place
	placed   uint32   // the bytes of the next response that are in order
	probedAt int64    // the last check at probeAt
}

// answers is the responder of a flow: the fetches of the peer and the responses to them.
type answers struct {
	early []bool    // the fetches that have arrived out of order, by number modulo limit; nil before the first
	msgs  []message // the responses, likewise
	limit uint32    // the maximum number of responses, a power of two
	taken uint32    // counts the fetches received in order
	cut   uint32    // counts the responses cut into chunks; the next one may be cut in part
	done  uint32    // counts the responses that have arrived and no longer refer to memory
	own   bool      // set if the user's messages precede the responses in the next turn
}

// answerBit marks the number of a response among those of messages.
const answerBit = 1 << 63

// maxFetches is the maximum number of fetches without a response.
func (cfg *Config) maxFetches() int { return max(cfg.Window/2, 1) }

// Answers returns the maximum number of responses that this side keeps per flow. Tokens of ActAnswer are
// below it.
func (c *Conn) Answers() int { return 2 * c.cfg.maxFetches() }

func (f *flow) initFetches() {
	f.fetches.limit, f.answers.limit = uint32(f.c.cfg.maxFetches()), uint32(f.c.Answers())
}

// waiting reports whether a fetch waits for its response.
func (q *fetches) waiting() bool { return q.asked != q.answered }

// Fetching returns the token of the message that waits for the response with the given number. ok is false if
// no message does.
func (c *Conn) Fetching(flow int, number uint32) (token uint32, ok bool) {
	if f := c.flows[flow]; !f.failed {
		if m := f.fetching(number); m != nil {
			return m.Token, true
		}
	}
	return 0, false
}

// fetching returns the message that waits for the response with the given number, or nil.
func (f *flow) fetching(number uint32) *message {
	q := &f.fetches
	if number-q.answered >= q.asked-q.answered {
		return nil
	}
	return f.send.message(*q.message(number))
}

// full reports whether a fetch must wait for another one's response.
func (q *fetches) full() bool { return q.asked-q.answered >= q.limit }

// message returns the entry for the message number of a fetch.
func (q *fetches) message(number uint32) *uint64 { return &q.msgs[number&(q.limit-1)] }

// index is the index of a fetch of the peer in the tables.
func (a *answers) index(number uint32) uint32 { return number & (a.limit - 1) }

func (a *answers) message(number uint32) *message { return &a.msgs[a.index(number)] }

// waiting reports whether a response has data to send.
func (a *answers) waiting() bool { return a.cut != a.taken }

// pending reports whether the flow has data to send.
func (f *flow) pending() bool { return f.send.cut != f.send.posted || f.answers.waiting() }

// startFetch records that fetch m, message number index, is sent. WRITEs are unordered among themselves, but
// a fetch orders them: later ones wait until earlier ones are acknowledged.
func (f *flow) startFetch(m *message, index uint64) {
	q := &f.fetches
	m.number, m.waits, f.send.barrier = q.asked, true, f.send.wrote
	if q.msgs == nil {
		q.msgs = make([]uint64, q.limit)
	}
	*q.message(q.asked) = index
	q.asked++
}

// admit validates a fetch or a response of the peer before it is accepted. It
// returns the status of the chunk, as in EvChunk.
func (f *flow) admit(ev *Event) uint8 {
	switch op := ev.Header.Op; {
	case op == wire.OpAnswer:
		return f.admitAnswer(ev)
	case op == wire.OpFetch && ev.Status == statusSuccess:
		return f.answers.admit(ev.Header.Message)
	}
	return ev.Status
}

// admit returns whether a fetch can be stored until it is in order.
func (a *answers) admit(number uint32) uint8 {
	switch {
	case int32(number-a.taken) < 0:
		return statusInvalid // a duplicate number
	case number-a.done >= a.limit:
		return StatusNoRecv
	case a.msgs == nil:
		a.early, a.msgs = make([]bool, a.limit), make([]message, a.limit)
	}
	early := &a.early[a.index(number)]
	if *early {
		return statusInvalid // a duplicate number among the waiting
	}
	*early = true
	return statusSuccess
}

// admitAnswer checks that a chunk of a response belongs to a waiting fetch and lies within it. If
// its memory is invalid, or its bytes are missing because the peer has closed their memory, the
// fetch fails when everything before it has completed.
func (f *flow) admitAnswer(ev *Event) uint8 {
	h := &ev.Header
	m := f.fetching(h.Message)
	if m == nil {
		return statusInvalid
	}
	switch ev.Status {
	case statusSuccess, StatusPlacing:
	case StatusNoRecv:
		return StatusNoRecv
	default:
		m.Status = ev.Status
		return StatusNoRecv
	}
	if h.Len == 0 && h.Xmit > 0 && h.Offset < m.Answer {
		m.Status = statusRemAccess
		return StatusNoRecv
	}
	end := uint64(h.Offset) + uint64(h.Len)
	if last := h.Flags&wire.FlagLast != 0; end > uint64(m.Answer) || last != (end == uint64(m.Answer)) {
		return statusInvalid
	}
	return ev.Status
}

// acceptFetch accepts the next fetch of the peer in order, and reports whether it is valid.
func (f *flow) acceptFetch(s *slot) bool {
	a := &f.answers
	if s.message != a.taken {
		f.refuse(statusInvalid)
		return false
	}
	i := a.index(s.message)
	a.early[i] = false
	a.msgs[i] = message{Message: Message{Kind: MsgAnswer, Token: i, Length: s.offset}, number: s.message}
	a.taken++
	f.c.credits.demand += uint64(s.offset)
	act := f.c.act(ActAnswer)
	act.Flow, act.Token, act.Len = f.number, i, s.offset
	f.touch()
	return true
}

// acceptAnswer accepts the next chunk of a response in order, and reports whether it is valid. The last
// chunk also proves that the fetch, and every chunk before it, has arrived.
func (f *flow) acceptAnswer(s *slot) bool {
	q, c := &f.fetches, f.c
	if s.message != q.answered || s.offset != q.placed {
		f.refuse(statusInvalid)
		return false
	}
	q.placed += s.len
	f.send.progressAt, c.arrivedAt = c.now, c.now
	if s.flags&wire.FlagLast == 0 {
		return true
	}
	m := f.fetching(s.message)
	m.waits = false
	q.placed = 0
	q.answered++
	if f.send.una < m.end {
		f.ackedBelow(m.end)
		c.sweep()
	}
	f.touch()
	return true
}

// releaseAnswers removes the responses that have arrived and no longer refer to memory, and reports whether it removed
// any.
func (f *flow) releaseAnswers() bool {
	a := &f.answers
	before := a.done
	for a.done != a.cut {
		m := a.message(a.done)
		if m.end > f.send.una || m.refs != 0 {
			break
		}
		a.done++
	}
	f.raiseFault()
	return a.done != before
}

// dropAnswers removes all responses of a failed flow. If there were any, the peer is notified.
func (f *flow) dropAnswers() {
	a := &f.answers
	for i := a.cut; i != a.taken; i++ {
		m := a.message(i)
		f.c.credits.demand -= uint64(m.Length - m.off)
	}
	if a.done != a.taken {
		f.recv.ackNow = true
	}
	a.cut, a.done = a.taken, a.taken
	f.raiseFault()
}
