package softnic

import (
	"errors"

	"ibverbx/verbs"
)

// step executes one random operation on or around a.
func (c *chaos) step(a *actor) {
	s := c.rigs[a.at]
	k := c.r.IntN(100)
	if c.mode.loose && c.r.IntN(8) > 0 {
		k = c.r.IntN(75) // mostly plain traffic
		if a.q.State() == verbs.StateErr {
			c.connect(a)
		}
	}
	switch {
	case k < 40:
		c.postSends(a)
	case k < 60:
		c.postRecv(a, 1+c.r.IntN(4), true)
	case k < 75:
		c.poll(a.at, 1+c.r.IntN(32))
	case k < 85:
		if next, pending := c.link.Step(); pending {
			c.now = max(c.now, next)
		}
		c.link.Step()
	case k < 87:
		c.move(a, verbs.StateSQD)
	case k < 91:
		c.move(a, verbs.StateRTS)
	case k < 92:
		c.move(a, verbs.StateErr)
	case k < 95:
		if state := a.q.State(); state == verbs.StateErr || state == verbs.StateSQE || c.r.IntN(5) == 0 {
			c.note("connect %#x", a.q.num)
			c.connect(a)
		}
	case k < 96:
		c.replace(a)
	case k < 97:
		up := s.nic.portUp
		c.note("port of rig %d, up %v", a.at, !up)
		s.nic.SetPort(!up)
		if up && c.r.IntN(3) > 0 {
			s.nic.SetPort(true)
		}
	default:
		c.upkeep(s)
	}
}

// move requests a state transition, which may be illegal.
func (c *chaos) move(a *actor, to verbs.QPState) {
	from := a.q.State()
	err := a.q.Modify(verbs.QPAttr{State: to}, verbs.AttrState)
	c.note("QP %#x from %v to %v: %v", a.q.num, from, to, err)
}

// replace closes a's QP and creates another.
func (c *chaos) replace(a *actor) {
	if a.q.sendCQ.overrun {
		return // it cannot create objects
	}
	c.note("close %#x", a.q.num)
	check(c.t, a.q.Close())
	c.create(a)
	c.connect(a)
}

// upkeep drains events, and occasionally reregisters the memory under a new key.
func (c *chaos) upkeep(s *nicRig) {
	var events [8]verbs.Event
	if _, err := s.ctx.Events(events[:]); err != nil {
		c.failf("Events: %v", err)
	}
	if c.r.IntN(4) > 0 {
		return
	}
	c.note("new key")
	check(c.t, s.mr.Close())
	mr, err := s.pd.RegisterMemory(s.mem, verbs.AccessAll)
	check(c.t, err)
	s.mr = mr
}

func (c *chaos) postSends(a *actor) {
	wrs := make([]verbs.SendWR, 1+c.r.IntN(4))
	for i := range wrs {
		wrs[i] = c.draw(a)
		wrs[i].WRID = a.nextID + uint64(i)
	}
	n, err := a.q.PostSend(wrs)
	c.note("QP %#x, %v in %v: posted %d of %d from %d on: %v", a.q.num, a.typ, a.q.state, n, len(wrs), a.nextID, err)
	for _, wr := range wrs[:n] {
		a.order = append(a.order, wr.WRID)
		if wr.Flags&verbs.SendSignaled != 0 {
			a.pending[wr.WRID] = true
		}
	}
	a.nextID += uint64(n)
}

// draw draws a request, occasionally with a wrong key.
func (c *chaos) draw(a *actor) verbs.SendWR {
	r, s, to := c.r, c.rigs[a.at], a.peer
	wr := verbs.SendWR{Opcode: verbs.Opcode(r.IntN(7)), CompareAdd: 1}
	length := uint32(r.IntN(900))
	switch a.typ {
	case verbs.UD:
		to = c.actors[r.IntN(len(c.actors))]
		wr.Opcode, length = verbs.OpSend+verbs.Opcode(r.IntN(2)), uint32(r.IntN(200))
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = a.ah.Handle(), to.q.num, verbs.DefaultQKey
	case verbs.UC:
		wr.Opcode = verbs.Opcode(r.IntN(4))
	case verbs.RC:
		if wr.Opcode >= verbs.OpAtomicCmpAndSwp {
			length = 8
		}
	}
	if r.IntN(2) == 0 {
		wr.Flags |= verbs.SendSignaled
	}
	if r.IntN(4) == 0 {
		wr.Flags |= verbs.SendFence
	}
	target := c.rigs[to.at]
	wr.RemoteAddr, wr.RKey = target.mr.Addr()+uint64(r.IntN(512)*8), target.mr.RKey()
	sge := s.sge(8<<10, length)
	if c.rarely(60) {
		sge.LKey++
	}
	if c.rarely(60) {
		wr.RKey++
	}
	if length <= 64 && wr.Opcode < verbs.OpRDMARead && r.IntN(3) == 0 {
		wr.Flags |= verbs.SendInline
		sge.Addr = s.mem.Addr()
	}
	wr.SetSGE(sge)
	return wr
}

// rarely returns true once in n calls, or less often if traffic is to be mostly plain.
func (c *chaos) rarely(n int) bool {
	return c.r.IntN(n) == 0 && (!c.mode.loose || c.r.IntN(8) == 0)
}

// postRecv posts n receives to the QP's receive queue; with faults, occasionally one that is too short or has
// a wrong key.
func (c *chaos) postRecv(a *actor, n int, faults bool) {
	s := c.rigs[a.at]
	wrs := make([]verbs.RecvWR, n)
	for i := range wrs {
		sge := s.sge(16<<10, 1200)
		if faults && c.rarely(40) {
			sge.Length = 10
		}
		if faults && c.rarely(60) {
			sge.LKey++
		}
		wrs[i].WRID = recvID | (c.lastRecv + uint64(i) + 1)
		wrs[i].SetSGE(sge)
	}
	// A receive may complete before the call returns.
	for _, wr := range wrs {
		c.recvs[wr.WRID] = true
	}
	var err error
	if a.q.srq != nil {
		n, err = a.q.srq.PostRecv(wrs)
	} else {
		n, err = a.q.PostRecv(wrs)
	}
	if err != nil && !errors.Is(err, verbs.ErrQueueFull) {
		c.failf("PostRecv: %v", err)
	}
	for _, wr := range wrs[n:] {
		delete(c.recvs, wr.WRID)
	}
	c.lastRecv += uint64(len(wrs))
}

// poll polls up to n completions of a rig and checks each.
func (c *chaos) poll(at, n int) {
	wcs := make([]verbs.WC, n)
	n, err := c.rigs[at].cq.Poll(wcs)
	if err != nil && !errors.Is(err, verbs.ErrCQOverrun) {
		c.failf("Poll: %v", err)
	}
	for _, wc := range wcs[:n] {
		c.note("  completed %+v", wc)
		a := c.owner(at, wc.QPN)
		if wc.WRID&recvID != 0 {
			c.received(a, wc)
		} else {
			c.sent(a, wc)
		}
	}
}

func (c *chaos) owner(at int, qpn uint32) *actor {
	for _, a := range c.actors {
		if a.at == at && a.q.num == qpn {
			return a
		}
	}
	c.failf("a completion of QP %#x, which is not open", qpn)
	return nil
}
