package reliable

import (
	"ibverbx/internal/bulk"
	"ibverbx/internal/ring"
	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// copier puts chunks into dma-bufs, which the CPU cannot write. Its RC QP is connected to itself: a SEND
// from memory of the host ends in a receive whose elements are in the dma-buf. That needs local keys only,
// and copies end in the order in which they begin. An engine has one as soon as its PD has a dma-buf and it has a QP.
//
//	receive buffer --CPU--> slot of stage --NIC--> dma-buf --> core.EvPlaced
type copier struct {
	hub   *hub
	qp    verbs.QP           // the RC QP, nil while there is none
	stage pool               // has copySlots slots of a chunk
	jobs  ring.Ring[copyJob] // the copies under way, at most copySlots; copy n uses slot n modulo copySlots
	recv  [1]verbs.RecvWR    // the receive being posted
	send  [1]verbs.SendWR    // the request being posted
}

// copyJob is the chunk that a copy is for.
type copyJob struct {
	conn   uint32 // the number of its connection
	imm    wire.Imm
	header wire.Header
}

const (
	// copySlots is the number of copies that can be under way, a power of two. The peer sends a chunk again
	// that finds none.
	copySlots = 64
	// Indices of tagCopy.
	copySend, copyRecv = 0, 1
)

// open makes the copier of a hub, unless it exists.
func (c *copier) open(h *hub) (err error) {
	if c.hub != nil {
		return nil
	}
	if c.stage, err = newPool(h.pd, copySlots, h.chunk); err != nil {
		return err
	}
	c.hub, c.jobs = h, ring.New[copyJob](copySlots)
	if err = c.connect(); err != nil {
		c.close()
	}
	return err
}

// connect makes the QP.
func (c *copier) connect() error {
	h, e := c.hub, c.hub.engine
	cfg := h.first
	cfg.Path.Seal = nil // its packets do not leave the host, and a NIC does not seal those to itself
	cfg.Type, cfg.SendCQ, cfg.RecvCQ = verbs.RC, e.inbox.cq, e.inbox.cq
	cfg.MaxSendWR, cfg.MaxRecvWR = 2*copySlots, copySlots // a SEND completes after its receive
	cfg.MaxRecvSGE = min(verbs.MaxSGE, e.ctx.attr.MaxSGE)
	qp, err := h.pd.CreateQP(cfg)
	if err != nil {
		return err
	}
	self, err := qp.Endpoint()
	if err == nil {
		err = qp.Connect(self)
	}
	if err != nil {
		_ = qp.Close() // no object depends on it
		return err
	}
	c.qp = qp
	e.ctx.events.own(qp, nil)
	return nil
}

// disconnect ends the QP. When it returns, no copy writes any more.
func (c *copier) disconnect() {
	if c.qp != nil {
		c.hub.engine.ctx.events.disown(c.qp)
		_ = c.qp.Close() // no object depends on it
		c.qp = nil
	}
}

// close frees the parts of the copier.
func (c *copier) close() {
	c.disconnect()
	c.stage.free()
	*c = copier{}
}

// room reports whether another copy can begin.
func (c *copier) room() bool {
	return c.hub != nil && c.jobs.Len() < copySlots && (c.qp != nil || c.connect() == nil)
}

// start begins to place the payload of the chunk that the connection of q is stepping. There must be room.
func (c *copier) start(q *qp, ev *core.Event, token uint32) {
	h, n := &ev.Header, c.jobs.Tail()
	slot := int(n % copySlots)
	*c.jobs.Extend() = copyJob{conn: q.conn.id, imm: ev.Imm, header: *h}
	size := bulk.Copy(c.stage.slot(slot), q.conn.landing)
	r, s := &c.recv[0], &c.send[0]
	*r = verbs.RecvWR{WRID: tagCopy.with(c.hub.id, copyRecv, n)}
	q.target(h, token, r)
	*s = verbs.SendWR{WRID: tagCopy.with(c.hub.id, copySend, n), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, NumSGE: 1}
	s.SGE[0] = c.stage.sge(slot, size)
	if k, _ := c.qp.PostRecv(c.recv[:]); k == 1 {
		if k, _ = c.qp.PostSend(c.send[:]); k == 1 {
			return
		}
	}
	c.restart(core.StatusNoRecv)
}

// completed takes a completion of the QP. A copy has ended with its receive.
func (c *copier) completed(index int, n uint32, wc *verbs.WC) {
	switch {
	case c.qp == nil || wc.QPN != c.qp.Num(): // of an earlier one
	case (wc.Status == verbs.StatusLocProtErr || wc.Status == verbs.StatusRemOpErr) && c.jobs.Len() > 0:
		c.restart(c.gone(c.jobs.Front()))
	case wc.Status != verbs.StatusSuccess:
		c.restart(core.StatusNoRecv)
	case index == copyRecv && n == c.jobs.Head():
		job := c.jobs.Pop()
		if conn := c.hub.engine.findConnection(job.conn); conn != nil {
			ev := job.placed(0)
			conn.step(&ev)
		}
	}
}

// restart ends all copies and makes a new QP. The oldest copy ends with status, the others are refused.
func (c *copier) restart(status uint8) {
	c.disconnect()
	for c.jobs.Len() > 0 {
		job := c.jobs.Pop()
		if conn := c.hub.engine.findConnection(job.conn); conn != nil {
			conn.queue = append(conn.queue, job.placed(status)) // conn may be stepping
			conn.touch()
		}
		status = core.StatusNoRecv
	}
	_ = c.connect() // room tries again
}

// gone returns the status of a chunk whose memory is not there any more: its region was closed, or its
// exporter has taken it back.
func (c *copier) gone(job *copyJob) uint8 {
	switch job.header.Op {
	case wire.OpWrite:
		return uint8(verbs.StatusRemAccessErr)
	case wire.OpAnswer:
		return uint8(verbs.StatusLocProtErr)
	case wire.OpEager, wire.OpNotify, wire.OpFetch:
	}
	if conn := c.hub.engine.findConnection(job.conn); conn != nil && conn.flows[job.imm.Flow] != nil {
		conn.flows[job.imm.Flow].recvError = verbs.StatusLocProtErr
	}
	return uint8(verbs.StatusRemOpErr)
}

// abandon ends the copies of a flow whose QP ends: it has no more right to write. The others are begun again
// when the peer repeats their chunks.
func (c *copier) abandon(conn *connection, flow uint16) {
	for n := c.jobs.Head(); n != c.jobs.Tail(); n++ {
		if job := c.jobs.At(n); job.conn == conn.id && job.imm.Flow == flow {
			c.restart(core.StatusNoRecv)
			return
		}
	}
}

// placed returns the event that the copy has ended.
func (j *copyJob) placed(status uint8) core.Event {
	return core.Event{Kind: core.EvPlaced, Status: status, Imm: j.imm, Header: j.header}
}
