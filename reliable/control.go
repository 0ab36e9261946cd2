package reliable

import (
	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// controlQP is a UD QP that carries the control packets of all connections of an engine.
type controlQP struct {
	udQP                  // its index is also the core.Route of the packets
	in     pool           // has controlRecvs receive buffers
	out    pool           // has controlSends send buffers; packet n uses slot n modulo controlSends
	staged uint32         // counts the packets since start; the last ones are in chain
	done   uint32         // counts the packets that have left their slot
	chain  []verbs.SendWR // holds the packets that wait for the doorbell
}

const (
	controlRecvs = 256
	controlSends = 128
	// controlEntries is the number of CQ entries that both control QPs need.
	controlEntries = 2 * (controlRecvs + controlSends)
)

func (c *controlQP) open(h *engineResources, index int, cfg *verbs.QPConfig) error {
	err := c.create(h, index, verbs.QPConfig{MaxSendWR: controlSends, MaxRecvWR: controlRecvs}, cfg)
	if err != nil {
		return err
	}
	if c.in, err = newPool(h.pd, controlRecvs, verbs.GRHLen+wire.MaxControlLen); err != nil {
		return err
	}
	if c.out, err = newPool(h.pd, controlSends, wire.MaxControlLen); err != nil {
		return err
	}
	if err := c.start(); err != nil {
		return err
	}
	h.engine.routes.Set(c.qp.Num(), route{control: c})
	h.engine.ctx.events.register(c.qp, nil)
	return nil
}

// start takes a QP in RESET into service. All its slots are free.
func (c *controlQP) start() error {
	if err := c.resources.startUD(c.qp); err != nil {
		return err
	}
	c.staged, c.done, c.chain, c.refill = 0, 0, c.chain[:0], c.refill[:0]
	for i := range controlRecvs {
		c.recycle(uint32(i))
	}
	c.refill.post(c.qp)
	return nil
}

// revive returns a failed QP to service, if the device permits. A UD QP has no connection, so it
// keeps its number, and cards with the number stay valid. No completion from before the reset remains
// when its slots are used again.
func (c *controlQP) revive() {
	e := c.resources.engine
	c.reviveAt = e.now + backgroundInterval
	if c.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState) != nil {
		return
	}
	e.inbox.drain()
	e.inbox.discard(c.qp.Num())
	c.failed = c.start() != nil
}

func (c *controlQP) close() {
	c.udQP.close()
	c.failed, c.chain, c.refill = false, c.chain[:0], c.refill[:0]
	c.in.free()
	c.out.free()
}

// recycle adds receive buffer i to refill.
func (c *controlQP) recycle(i uint32) { c.refill.add(tagControlRecv.with(0, 0, i), &c.in, int(i)) }

// arrived processes a datagram. Any host could have sent it, so its sender must be the control QP of the
// peer of its connection, at the peer's address.
func (c *controlQP) arrived(slot uint32, wc *verbs.WC) {
	if wc.Status != verbs.StatusSuccess {
		c.fail()
		return
	}
	if wc.ByteLen > verbs.GRHLen {
		b := c.in.slot(int(slot))[verbs.GRHLen:wc.ByteLen]
		var r wire.Reader
		if r.Open(b) == nil {
			if conn := c.resources.engine.findSender(r.Conn, core.Route(c.index), c.in.slot(int(slot)), wc); conn != nil {
				conn.records(b, core.Route(c.index))
			} else {
				c.resources.engine.closedStats.Malformed++
			}
		}
	}
	if c.qp != nil {
		c.recycle(slot)
	}
}

// sent processes the completion of packet n, which implies those of the unsignaled packets before it.
func (c *controlQP) sent(n uint32, wc *verbs.WC) {
	if wc.Status != verbs.StatusSuccess {
		c.fail()
		return
	}
	if left := c.staged - c.done; n-c.done < left {
		c.done = n + 1
	}
}

// stage appends a packet for the control QP of a connection's peer, with its Q_Key, to the chain. If the QP has failed or
// has no free slot, the packet is dropped, which the protocol tolerates.
func (c *controlQP) stage(b []byte, ah verbs.AH, peer, qkey uint32) {
	if c.failed || c.staged-c.done == controlSends {
		return
	}
	slot := int(c.staged % controlSends)
	copy(c.out.slot(slot), b)
	c.chain = append(c.chain, verbs.SendWR{
		WRID: tagControlSend.with(c.resources.id, c.index, c.staged), Opcode: verbs.OpSend,
		AH: ah.Handle(), RemoteQPN: peer, RemoteQKey: qkey, NumSGE: 1,
	})
	c.chain[len(c.chain)-1].SGE[0] = c.out.sge(slot, len(b))
	c.staged++
}

// ring sends the chain with one doorbell. Only its last packet requests a completion, and every
// controlSends/4-th, so that slots become free early. Refused packets are dropped.
func (c *controlQP) ring() {
	if len(c.chain) == 0 {
		return
	}
	for k := range c.chain {
		if k%(controlSends/4) == controlSends/4-1 || k == len(c.chain)-1 {
			c.chain[k].Flags = verbs.SendSignaled
		}
	}
	n, err := c.qp.PostSend(c.chain)
	c.resources.engine.doorbells.controlled(n)
	if n < len(c.chain) {
		c.staged -= uint32(len(c.chain) - n)
		if err != verbs.ErrQueueFull { //nolint:errorlint // ErrQueueFull is never wrapped
			c.fail()
		}
	}
	c.chain = c.chain[:0]
}
