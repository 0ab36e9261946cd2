package reliable

import (
	"ibverbx/internal/ntcopy"
	"ibverbx/internal/ring"
	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// copier copies chunks into dma-bufs, which the CPU cannot write. Its RC QP is connected to itself: a SEND
// from host memory lands in a receive whose elements are in the dma-buf. This requires only local keys,
// and copies complete in order. An engine with a QP has a copier once its PD has a dma-buf.
//
// On a device without RC it is a UD QP, whose datagrams carry the number of their copy. If one is lost, a later one lands in
// its receive. All copies are then refused, and the peer retransmits the chunks.
//
//	receive buffer --CPU--> slot of stage --NIC--> dma-buf --> core.EvPlaced
type copier struct {
	resources *engineResources
	qp        verbs.QP           // the RC or UD QP, nil while there is none
	ah        verbs.AH           // the own address, if qp is UD
	grh       pool               // receives the GRHs of datagrams, if qp is UD
	maxSGE    int                // the maximum number of payload elements of a receive
	slots     int                // copySlots or datagramCopies
	stage     pool               // has a chunk in each of slots
	jobs      ring.Ring[copyJob] // the outstanding copies, at most slots; copy n uses slot n modulo slots
	recv      [1]verbs.RecvWR    // the receive being posted
	send      [1]verbs.SendWR    // the request being posted
}

// copyJob is the chunk of a copy, in as many parts as its elements need.
type copyJob struct {
	parts  int    // the number of outstanding parts
	at     int64  // the start time
	conn   uint32 // the number of its connection
	imm    wire.Imm
	header wire.Header
}

const (
	// copySlots is the maximum number of outstanding copies, a power of two. The peer retransmits a chunk
	// that finds no slot.
	copySlots = 64
	// datagramCopies is copySlots for chunks of one datagram.
	datagramCopies = 1024
	// copyEntries is the number of CQ entries per slot: two sends and a receive.
	copyEntries = 3
	// copyLimit is the timeout of a copy on UD, in nanoseconds.
	copyLimit = 20_000_000
	// Indices of tagCopy.
	copySend, copyRecv = 0, 1
)

// open makes the copier, unless it exists.
func (c *copier) open(h *engineResources) (err error) {
	if c.resources != nil {
		return nil
	}
	slots := copySlots
	if h.engine.ctx.carrier.datagrams() {
		slots = datagramCopies
	}
	if err := h.engine.inbox.entries.reserve(copyEntries * slots); err != nil {
		return err
	}
	c.resources, c.slots, c.jobs = h, slots, ring.New[copyJob](slots)
	if c.stage, err = newPool(h.pd, slots, h.chunk); err != nil {
		c.close()
		return err
	}
	if err = c.connect(); err != nil {
		c.close()
	}
	return err
}

// connect creates and connects the QP.
func (c *copier) connect() error {
	h, e := c.resources, c.resources.engine
	cfg := h.first
	cfg.Path.Seal = nil // a NIC does not seal packets to itself
	cfg.Type, cfg.SendCQ, cfg.RecvCQ = verbs.RC, e.inbox.cq, e.inbox.cq
	cfg.MaxSendWR, cfg.MaxRecvWR = min(2*c.slots, e.ctx.attr.MaxQPWR), min(c.slots, e.ctx.attr.MaxQPWR) // a SEND completes after its receive
	cfg.MaxRecvSGE = min(verbs.MaxSGE, e.ctx.attr.MaxSGE)
	c.maxSGE = cfg.MaxRecvSGE
	if !e.ctx.carrier.rc {
		cfg.Type = verbs.UD
		c.maxSGE-- // for the GRH
	}
	qp, err := h.pd.CreateQP(cfg)
	if err != nil {
		return err
	}
	self, err := qp.Endpoint()
	switch {
	case err != nil:
	case cfg.Type != verbs.UD:
		err = qp.Connect(self)
	default:
		if err = h.startUD(qp); err == nil {
			err = c.address(&self)
		}
	}
	if err != nil {
		_ = qp.Close() // no object depends on it
		return err
	}
	c.qp = qp
	e.ctx.events.register(qp, nil)
	return nil
}

// address creates the address handle of the QP and the buffer for GRHs, unless they exist.
func (c *copier) address(self *verbs.Endpoint) (err error) {
	if c.ah != nil {
		return nil
	}
	h := c.resources
	row, err := h.first.Path.SGIDIndex(h.engine.ctx.inner, max(h.first.Port, 1), self.GID)
	if err != nil {
		return err
	}
	if c.grh, err = newPool(h.pd, 1, verbs.GRHLen); err == nil {
		c.ah, err = h.pd.CreateAH(verbs.AHAttr{DGID: self.GID, DLID: self.LID, SGIDIndex: row, Port: h.first.Port})
	}
	return err
}

// disconnect closes the QP. Afterwards no copy writes.
func (c *copier) disconnect() {
	if c.qp != nil {
		c.resources.engine.ctx.events.unregister(c.qp)
		_ = c.qp.Close() // no object depends on it
		c.qp = nil
	}
}

// close frees the parts of the copier.
func (c *copier) close() {
	c.disconnect()
	if c.ah != nil {
		_ = c.ah.Close() // no object depends on it
	}
	c.grh.free()
	c.stage.free()
	if c.resources != nil {
		c.resources.engine.inbox.entries.release(copyEntries * c.slots)
	}
	*c = copier{}
}

// hasSlot reports whether another copy can begin.
func (c *copier) hasSlot() bool {
	return c.resources != nil && c.jobs.Len() < c.slots && (c.qp != nil || c.connect() == nil)
}

// start starts copying the payload of the current chunk of q's connection. A slot must be free.
func (c *copier) start(q *qp, ev *core.Event, token uint32) {
	h, n := &ev.Header, c.jobs.Tail()
	slot := int(n) & (c.slots - 1)
	job := c.jobs.Extend()
	*job = copyJob{conn: q.conn.id, imm: ev.Imm, header: *h, at: c.resources.engine.now}
	size := ntcopy.Copy(c.stage.slot(slot), q.conn.payload)
	var to verbs.RecvWR
	q.target(h, token, &to)
	from := c.stage.sge(slot, size)
	for k := 0; k < int(to.NumSGE); k += c.maxSGE {
		job.parts++
		if from.Length = c.copyPart(n, to.SGE[k:min(k+c.maxSGE, int(to.NumSGE))], from); from.Length == 0 {
			c.restart(core.StatusNoRecv)
			return
		}
		from.Addr += uint64(from.Length)
	}
}

// copyPart begins to copy a part of chunk n from the stage to some elements. It returns its length, 0 if the QP has refused it.
func (c *copier) copyPart(n uint32, to []verbs.SGE, from verbs.SGE) uint32 {
	r, s := &c.recv[0], &c.send[0]
	*r = verbs.RecvWR{WRID: tagCopy.with(c.resources.id, copyRecv, n)}
	*s = verbs.SendWR{WRID: tagCopy.with(c.resources.id, copySend, n), Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: n, NumSGE: 1}
	if c.ah != nil {
		r.SGE[0], r.NumSGE = c.grh.sge(0, verbs.GRHLen), 1
		s.AH, s.RemoteQPN, s.RemoteQKey = c.ah.Handle(), c.qp.Num(), c.resources.qkey
	}
	s.SGE[0] = from
	s.SGE[0].Length = 0
	for k := range to {
		r.SGE[r.NumSGE] = to[k]
		r.NumSGE++
		s.SGE[0].Length += to[k].Length
	}
	if k, _ := c.qp.PostRecv(c.recv[:]); k == 1 {
		if k, _ = c.qp.PostSend(c.send[:]); k == 1 {
			return s.SGE[0].Length
		}
	}
	return 0
}

// deadline is the timeout of the oldest copy, core.Never on RC, which retransmits lost packets.
func (c *copier) deadline() int64 {
	if c.ah == nil || c.jobs.Len() == 0 {
		return core.Never
	}
	return c.jobs.Front().at + copyLimit
}

// completed processes a completion of the QP. A copy is complete with its receive.
func (c *copier) completed(index int, n uint32, wc *verbs.WC) {
	switch {
	case c.qp == nil || wc.QPN != c.qp.Num(): // of an earlier one
	case (wc.Status == verbs.StatusLocProtErr || wc.Status == verbs.StatusRemOpErr) && c.jobs.Len() > 0:
		c.restart(c.goneStatus(c.jobs.Front()))
	case wc.Status != verbs.StatusSuccess:
		c.restart(core.StatusNoRecv)
	case index == copyRecv && c.jobs.Len() > 0 && wc.Imm != n:
		c.restart(core.StatusNoRecv) // of a later copy
	case index == copyRecv && c.jobs.Len() > 0 && n == c.jobs.Head():
		if c.jobs.Front().parts--; c.jobs.Front().parts > 0 {
			return
		}
		job := c.jobs.Pop()
		if conn := c.resources.engine.findConnection(job.conn); conn != nil {
			ev := job.placed(0)
			conn.step(&ev)
		}
	}
}

// restart replaces the QP. The oldest copy completes with status, the others are refused.
func (c *copier) restart(status uint8) {
	c.disconnect()
	for c.jobs.Len() > 0 {
		job := c.jobs.Pop()
		if conn := c.resources.engine.findConnection(job.conn); conn != nil {
			conn.queue = append(conn.queue, job.placed(status)) // conn may be stepping
			conn.markDirty()
		}
		status = core.StatusNoRecv
	}
	_ = c.connect() // room tries again
}

// goneStatus returns the status of a chunk whose memory is not there any more: its region was closed, or its
// exporter has taken it back.
func (c *copier) goneStatus(job *copyJob) uint8 {
	switch job.header.Op {
	case wire.OpWrite:
		return uint8(verbs.StatusRemAccessErr)
	case wire.OpAnswer:
		return uint8(verbs.StatusLocProtErr)
	case wire.OpEager, wire.OpNotify, wire.OpFetch:
	}
	if conn := c.resources.engine.findConnection(job.conn); conn != nil && conn.flows[job.imm.Flow] != nil {
		conn.flows[job.imm.Flow].refused.recvError = verbs.StatusLocProtErr
	}
	return uint8(verbs.StatusRemOpErr)
}

// abandon aborts the copies of a flow whose QP fails or closes, which must not write any longer. The others are
// repeated when the peer retransmits their chunks.
func (c *copier) abandon(conn *connection, flow uint16) {
	for n := c.jobs.Head(); n != c.jobs.Tail(); n++ {
		if job := c.jobs.At(n); job.conn == conn.id && job.imm.Flow == flow {
			c.restart(core.StatusNoRecv)
			return
		}
	}
}

// placed returns the event of a completed copy.
func (j *copyJob) placed(status uint8) core.Event {
	return core.Event{Kind: core.EvPlaced, Status: status, Imm: j.imm, Header: j.header}
}
