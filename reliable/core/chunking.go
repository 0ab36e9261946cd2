package core

import "ibverbx/reliable/wire"

// pick returns the message whose next chunk is sent, with its number, and fills in the chunk. Responses
// and messages of the user alternate. It returns nil if the flow must wait.
func (f *flow) pick(ch *chunk) (*message, uint64) {
	a := &f.answers
	if !a.waiting() || a.own {
		if m := f.pickUserMessage(ch); m != nil || !a.waiting() {
			return m, f.send.cut
		}
	}
	m := a.message(a.cut)
	*ch = chunk{}
	f.c.nextPiece(m, ch)
	return m, answerBit | uint64(a.cut)
}

// pickUserMessage returns the front message of the user and fills in its next chunk, or returns nil if the
// message must wait.
func (f *flow) pickUserMessage(ch *chunk) *message {
	s, c := &f.send, f.c
	waited := s.noRecv
	s.noRecv = false
	if s.cut == s.posted {
		return nil
	}
	m := s.message(s.cut)
	if (m.Fence || m.Kind == MsgInvalid) && !m.begun && s.reported != s.cut {
		return nil
	}
	if m.Kind == MsgInvalid {
		f.fail(m.Status)
		return nil
	}
	if m.Kind == MsgFetch && f.fetches.full() {
		return nil
	}
	c.nextPiece(m, ch)
	if (ch.op == wire.OpEager || ch.op == wire.OpNotify) && int32(m.number-s.recvLimit) >= 0 {
		s.noRecv = true
		if !waited {
			s.beginRecvWait(c.now)
		}
		return nil
	}
	if ch.op == 0 && s.una < s.barrier {
		return nil
	}
	return m
}

// finishCut completes the cutting of a message into chunks.
func (f *flow) finishCut(m *message, index uint64) {
	switch m.Kind {
	case MsgAnswer:
		f.answers.cut++
		return
	case MsgFetch:
		f.startFetch(m, index)
	case MsgWrite, MsgWriteImm, MsgSend, MsgInvalid:
	}
	f.send.cut++
}

// nextPiece fills ch with the next chunk of m. FlagLast marks the last one.
func (c *Conn) nextPiece(m *message, ch *chunk) {
	left := m.Length - m.off
	ch.off, ch.len = m.off, min(left, c.cfg.ChunkBytes)
	for _, end := range m.Breaks {
		if m.off < end {
			ch.len = min(ch.len, end-m.off)
			break
		}
	}
	switch m.Kind {
	case MsgSend:
		ch.op = wire.OpEager
	case MsgWriteImm:
		if left == 0 {
			ch.op = wire.OpNotify
		}
	case MsgFetch:
		ch.op, ch.len = wire.OpFetch, left // it fits every receive buffer
	case MsgAnswer:
		ch.op = wire.OpAnswer
	case MsgWrite, MsgInvalid:
	}
	if ch.len == left && (m.Kind != MsgWriteImm || ch.op == wire.OpNotify) {
		ch.flags = wire.FlagLast
	}
	if ch.op != 0 {
		ch.flags |= m.Flags
	}
}
