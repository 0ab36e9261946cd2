package reliable

import (
	"slices"

	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// path is one data path of a connection. Its UC QP is replaced in every epoch. A UD QP belongs to the engine;
// see datagramQP.
//
// On devices whose UC QPs cannot use a shared receive queue a path has Config.PathRecv receives of
// its own. The peer may use three quarters of them, counted per path. The buffers stay
// with the path: its next QP inherits them, and data received by the former QP is ignored.
type path struct {
	conn       *connection      // the connection that owns the path
	index      int              // the position in conn.paths, the same on both sides
	qp         verbs.QP         // the UC QP of the current epoch or the UD QP, nil while the path has none
	data       *datagramQP      // the owner of a UD qp, nil on UC
	ah         *sharedAH        // the peer's address on UD, nil until connected
	oldAH      *sharedAH        // the previous address, nil unless outstanding sends use it
	oldAHUntil uint32           // the first send that uses ah
	epoch      uint16           // the current epoch, as counted by the core
	addr       pathAddr         // the address of qp, or of its predecessor
	label      uint32           // the current or last flow label; 0 until connected
	posted     uint32           // counts the sends staged in this epoch
	done       uint32           // counts the completed sends of this epoch
	cqEntries  int              // the CQ entries held by posted sends
	controls   uint32           // counts the control packets between done and posted, at most maxControls
	chain      []verbs.SendWR   // the staged sends that wait for the doorbell
	owner      [pathSlots]int16 // the flow of each send between done and posted, controlPacket or answerChunk
	refill     refill           // the receive buffers to be reposted, if the path has its own
}

const (
	// pathSlots is the depth of a path's send queue, for chunks and control packets.
	pathSlots = 2 * pathDepth
	// maxControls is the maximum number of control packets in it, which leaves pathDepth slots for chunks.
	maxControls = pathSlots - pathDepth
	// controlPacket is the owner of a send that is a control packet.
	controlPacket = -1
	// answerChunk is the owner of a send that is a chunk of a response. Its memory may be closed as soon as the
	// peer has the chunk, before the acknowledgement arrives.
	answerChunk = -2
	// headerSlot is the length of a slot for a chunk header or a control packet, in bytes.
	headerSlot = 96
)

// open creates the QP of an epoch.
func (p *path) open(epoch uint16) error {
	c, ctx, e := p.conn, p.conn.ctx, p.conn.engine
	if ctx.carrier.datagrams() {
		p.data = &e.resources.data[p.index]
		p.qp, p.addr = p.data.qp, pathAddr{p.data.qp.Num(), e.connsCreated & 0xffffff}
		return nil
	}
	cfg := verbs.QPConfig{
		Type: verbs.UC, SendCQ: e.inbox.cq, RecvCQ: e.inbox.cq, SRQ: e.resources.srq, MaxSendWR: pathSlots, MaxSendSGE: verbs.MaxSGE,
		Port: c.port, GID: c.gid, Path: c.qos,
	}
	if ctx.carrier.ownReceives() {
		cfg.MaxRecvWR = ctx.cfg.PathRecv
	}
	inner, err := e.resources.pd.CreateQP(cfg)
	if err != nil {
		return err
	}
	ep, err := inner.Endpoint()
	if err != nil {
		_ = inner.Close() // no object depends on it
		return err
	}
	p.addr = pathAddr{ep.QPN, ep.PSN}
	p.qp, p.epoch, p.posted, p.done, p.controls, p.chain = inner, epoch, 0, 0, 0, p.chain[:0]
	e.routes.Set(inner.Num(), route{path: p})
	ctx.events.register(inner, nil)
	return nil
}

// close takes the QP out of service. Afterwards no message lands and no request refers to
// memory. Received messages stay in the inbox, so that no receive buffer is lost.
func (p *path) close() {
	if p.qp == nil {
		return
	}
	if p.data != nil {
		p.dropReferences()
		p.conn.engine.resources.releaseAH(p.ah)
		p.conn.engine.resources.releaseAH(p.oldAH)
		p.qp, p.ah, p.oldAH = nil, nil, nil
		return
	}
	if s := p.qp.State(); s != verbs.StateReset && s != verbs.StateErr {
		_ = p.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState) // if it fails, Close does the same
	}
	e := p.conn.engine
	e.inbox.drain()
	p.holdEntries(-p.cqEntries)
	e.routes.Delete(p.qp.Num())
	p.conn.ctx.events.unregister(p.qp)
	_ = p.qp.Close() // no object depends on it
	p.qp = nil
	p.chain = p.chain[:0]
}

// dropReferences ends the references of the path's sends to memory. Those that are not posted are lost. If others have not completed, the
// UD QP is reset.
func (p *path) dropReferences() {
	posted, e := p.posted-uint32(len(p.chain)), p.conn.engine
	e.inbox.drain()
	done := e.inbox.lastSent(p, p.done)
	// The core releases these sends now. It must not take the report of onReset for one about later sends.
	p.conn.queue = slices.DeleteFunc(p.conn.queue, func(ev core.Event) bool { return ev.Kind == core.EvSent && int(ev.Path) == p.index })
	p.done, p.controls, p.chain = p.posted, 0, p.chain[:0]
	p.holdEntries(-p.cqEntries)
	p.dropOldAH()
	if done != posted {
		p.data.revive()
	}
}

// onReset notes that the UD QP was reset: no send of the path refers to memory.
func (p *path) onReset() {
	n := p.retire(p.posted)
	p.chain = p.chain[:0]
	if n > 0 {
		p.conn.queue = append(p.conn.queue, core.Event{Kind: core.EvSent, Path: uint16(p.index), Epoch: p.epoch, Count: n})
		p.conn.markDirty()
	}
}

// retire removes the sends before n and returns the number of chunks among them.
func (p *path) retire(n uint32) (chunks int) {
	if int32(n-p.done) < 0 {
		return 0 // dropReferences has removed them
	}
	p.holdEntries(-min(int(int32(n-p.done)), p.cqEntries))
	for ; int32(n-p.done) > 0; p.done++ {
		if p.owner[p.done%pathSlots] == controlPacket {
			p.controls--
		} else {
			chunks++
		}
	}
	p.dropOldAH()
	return chunks
}

// holdEntries counts n more CQ entries that posted sends hold.
func (p *path) holdEntries(n int) { p.conn.engine.inbox.entries.hold(&p.cqEntries, n) }

// dropOldAH closes the former address if no send uses it.
func (p *path) dropOldAH() {
	if p.oldAH != nil && int32(p.done-p.oldAHUntil) >= 0 {
		p.conn.engine.resources.releaseAH(p.oldAH)
		p.oldAH = nil
	}
}

// setRoute moves the path of a UD QP to another route to the peer, unless sends by the previous route are outstanding.
func (p *path) setRoute(route uint16) error {
	c := p.conn
	if p.oldAH != nil {
		return verbs.ErrBusy
	}
	to := c.attr.AH
	to.Seal = c.qos.Seal
	to.FlowLabel = c.flowLabel(p.index, route)
	ah, err := c.engine.resources.acquireAH(to)
	if err != nil {
		return err
	}
	p.oldAH, p.oldAHUntil = p.ah, p.posted
	p.ah, p.label = ah, to.FlowLabel
	p.dropOldAH()
	return nil
}

// connect connects the QP to the peer's with the attributes of the connection.
func (p *path) connect(to pathAddr) error {
	if p.data != nil {
		return p.setRoute(0)
	}
	own, err := p.qp.Endpoint()
	if err != nil {
		return err
	}
	attr := p.conn.attr
	attr.DestQPN, attr.RQPSN, attr.SQPSN, attr.Access = to.qpn, to.psn, own.PSN, p.conn.pathAccess()
	p.label = p.conn.flowLabel(p.index, p.epoch)
	attr.AH.FlowLabel = p.label
	if p.conn.ctx.carrier.ownReceives() && p.qp.State() == verbs.StateReset {
		if err := p.postReceives(&attr); err != nil {
			return err
		}
	}
	return verbs.ConnectWith(p.qp, attr)
}

// postReceives moves the QP to INIT and posts all receives of the path.
func (p *path) postReceives(attr *verbs.QPAttr) error {
	init := verbs.QPAttr{State: verbs.StateInit, Port: attr.Port, PKeyIndex: attr.PKeyIndex, Access: attr.Access}
	if err := p.qp.Modify(init, verbs.AttrState|verbs.AttrPort|verbs.AttrPKeyIndex|verbs.AttrAccess); err != nil {
		return err
	}
	p.refill = p.refill[:0]
	for k := range p.conn.ctx.cfg.PathRecv {
		p.recycle(k)
	}
	p.refill.post(p.qp)
	if len(p.refill) != 0 {
		return p.conn.ctx.opError("post receive", p.qp.Num(), verbs.ErrQueueFull)
	}
	return nil
}

// slot is the index in conn.arrival of receive buffer k of the path.
func (p *path) slot(k int) int { return p.index*p.conn.ctx.cfg.PathRecv + k }

// recycle adds receive buffer k to refill.
func (p *path) recycle(k int) {
	p.refill.add(tagPathRecv.with(p.conn.id, p.index, uint32(k)), &p.conn.arrival, p.slot(k))
}

// topUp reposts free receive buffers once a quarter of them are free.
func (p *path) topUp() {
	if p.qp != nil && len(p.refill) >= max(p.conn.ctx.cfg.PathRecv/4, 1) {
		p.conn.engine.doorbells.refilled(p.refill.post(p.qp))
	}
}

// stage appends a send to the chain and returns it, with the index of its slot in conn.headers. The
// owner is a flow, controlPacket or answerChunk.
func (p *path) stage(owner int16) (*verbs.SendWR, int) {
	n := p.posted % pathSlots
	p.owner[n] = owner
	p.chain = append(p.chain, verbs.SendWR{WRID: tagPath.with(p.conn.id, p.index, p.posted)})
	p.posted++
	wr := &p.chain[len(p.chain)-1]
	if p.data != nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = p.ah.Handle(), p.conn.peer.paths[p.index].qpn, p.conn.peer.qkey
	}
	return wr, p.index*pathSlots + int(n)
}

// ring posts the chain with one doorbell. Refused sends and sends without a CQ entry stay in the chain.
func (p *path) ring() {
	switch {
	case len(p.chain) == 0:
		return
	case p.qp == nil:
		p.chain = p.chain[:0]
		return
	case p.data != nil && p.data.failed:
		return // revive resets the QP, which drops the chain
	}
	every := 8
	if p.data != nil {
		every = datagramSignal
	}
	room := min(len(p.chain), p.conn.engine.inbox.entries.available())
	if room == 0 {
		return
	}
	for k := range room {
		if k%every == every-1 || k == room-1 {
			p.chain[k].Flags |= verbs.SendSignaled
		}
	}
	n, err := p.qp.PostSend(p.chain[:room])
	p.holdEntries(n)
	p.conn.engine.doorbells.sent(n)
	p.chain = p.chain[:copy(p.chain, p.chain[n:])]
	switch {
	case err == nil || err == verbs.ErrQueueFull: //nolint:errorlint // ErrQueueFull is never wrapped
	case p.data != nil:
		p.data.fail()
	default:
		p.conn.queue = append(p.conn.queue, p.failedEvent())
	}
}

// retries reports whether sends left in the chain are to be posted again soon. A failed UD QP drops them when it is revived.
func (p *path) retries() bool {
	if p.data != nil {
		return !p.data.failed
	}
	return p.conn.engine.inbox.entries.available() == 0
}

// failedEvent returns the event that the QP of the present epoch has failed.
func (p *path) failedEvent() core.Event {
	return core.Event{Kind: core.EvPathFailed, Path: uint16(p.index), Epoch: p.epoch}
}

// fail reports the failure of the QP to the core.
func (p *path) fail() {
	ev := p.failedEvent()
	p.conn.step(&ev)
}

// owns reports whether a completion belongs to the QP of the current epoch.
func (p *path) owns(wc *verbs.WC) bool { return p.qp != nil && wc.QPN == p.qp.Num() }

// sent processes the completion of send n, which implies those of the sends before it, even
// unsignaled.
func (p *path) sent(n uint32, wc *verbs.WC) {
	c := p.conn
	if !p.owns(wc) || c.core == nil {
		return
	}
	if wc.Status != verbs.StatusSuccess {
		if p.data != nil {
			p.data.fail() // before the end of the flow, which may reset it
		}
		if flow := p.owner[n%pathSlots]; wc.Status != verbs.StatusWRFlushErr && flow >= 0 {
			// The request itself is wrong and would fail on every path. An answer is sent again without its bytes.
			c.step(&core.Event{Kind: core.EvClose, Flow: uint16(flow), Status: uint8(wc.Status)})
		}
		if p.data == nil {
			p.fail()
			return
		}
		if c.core == nil {
			return
		}
	}
	chunks := p.retire(n + 1)
	c.step(&core.Event{Kind: core.EvSent, Path: uint16(p.index), Epoch: p.epoch, Count: chunks})
}

// arrived processes a message in receive buffer k of the path.
func (p *path) arrived(k uint32, wc *verbs.WC) {
	if int(k) >= p.conn.ctx.cfg.PathRecv || !p.owns(wc) {
		return // the buffer of an earlier epoch is posted already
	}
	p.receive(wc, p.conn.arrival.slot(p.slot(int(k))))
	if wc.Status == verbs.StatusSuccess && p.owns(wc) { // unless receive has closed the QP
		p.recycle(int(k))
		p.conn.markDirty()
	}
}

// receive processes a message of the path. buf holds the payload of a SEND.
func (p *path) receive(wc *verbs.WC, buf []byte) {
	c := p.conn
	if wc.Status == verbs.StatusSuccess {
		c.confirm() // only its peer sends there
	}
	if c.core == nil {
		return
	}
	if wc.Status != verbs.StatusSuccess {
		p.fail()
		return
	}
	imm, err := wire.DecodeImm(wc.Imm)
	isWrite := wc.Opcode == verbs.WCRecvRDMAWithImm
	if err != nil || wc.Flags&verbs.WCWithImm == 0 || int64(wc.ByteLen) > int64(len(buf)) || isWrite != (imm.Kind == wire.KindData) {
		return
	}
	ev := core.Event{Path: uint16(p.index), Epoch: p.epoch, Imm: imm}
	switch imm.Kind {
	case wire.KindData:
		ev.Kind, ev.Count = core.EvData, int(wc.ByteLen)
	case wire.KindChunk:
		if ev.Header, err = wire.DecodeHeader(buf[:wc.ByteLen]); err != nil {
			return
		}
		c.receiveChunk(&ev, buf[:wc.ByteLen])
		return
	case wire.KindControl:
		c.records(buf[:wc.ByteLen], core.RoutePath+core.Route(p.index))
		return
	}
	c.step(&ev)
}
