package reliable

import (
	"sync/atomic"

	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// datagramQP is a UD QP that carries path index of all connections of an engine:
//
//	path i    local QP i ----- AH with a flow label of its own -----> QP i of the peer's engine
//
// Software places the chunks and drops late ones by their numbers. So a QP that fails, or must drop its
// references to memory, is reset and keeps its number. For the connections, packets were lost.
type datagramQP struct {
	udQP               // its index is also that of its paths in their connections
	resets uint32      // counts the resets of the QP
	broken atomic.Bool // set by an event that reports the failure of the QP
}

const (
	// datagramSends is the depth of the send queue, if the device allows it.
	datagramSends = 2048
	// datagramSignal is the number of sends of a chain after which a completion is requested.
	datagramSignal = 32
)

// datagramPayload returns the largest payload of a chunk that fits a datagram of a port. A device without
// connected QPs (AWS EFA) reports the length of a datagram as the port's maximum message size.
func datagramPayload(port *verbs.PortAttr) int {
	const fewerThanMessages = 1 << 16
	n := port.ActiveMTU.Bytes()
	if m := port.MaxMsg; m > uint64(n) && m < fewerThanMessages {
		n = int(m)
	}
	return n - wire.HeaderLen
}

func (d *datagramQP) open(h *engineResources, index int, cfg *verbs.QPConfig) error {
	ctx := h.engine.ctx
	queues := verbs.QPConfig{SRQ: h.srq, MaxSendWR: min(datagramSends, ctx.attr.MaxQPWR), MaxSendSGE: ctx.carrier.sges}
	if h.srq == nil {
		queues.MaxRecvWR = (ctx.recvs.depth + ctx.cfg.Paths - 1) / ctx.cfg.Paths
	}
	if err := d.create(h, index, queues, cfg); err != nil {
		return err
	}
	if err := h.startUD(d.qp); err != nil {
		return err
	}
	h.engine.routes.Set(d.qp.Num(), route{data: d})
	h.engine.ctx.events.watch(d.qp, &d.broken)
	return nil
}

// maintain detects a failure of the QP and revives a failed one once reviveAt is due.
func (d *datagramQP) maintain() {
	if d.broken.Load() {
		d.broken.Store(false)
		if a, err := d.qp.Query(); err != nil || a.State != verbs.StateRTS {
			d.fail() // else revive caused the event
		}
	}
	if d.failed && d.resources.engine.now >= d.reviveAt {
		d.revive()
	}
}

// revive resets the QP, if the device permits. Its requests then no longer refer to memory, received data is lost, and its
// receive buffers are reposted.
func (d *datagramQP) revive() {
	e := d.resources.engine
	d.failed, d.reviveAt = true, e.now+backgroundInterval
	// A reset removes completions, and would lose their SRQ buffers. In the error state nothing arrives after the drain.
	_ = d.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState) // fails if the device has failed
	e.inbox.drain()
	if d.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState) != nil {
		return
	}
	e.inbox.drain()
	d.resources.reclaim(d)
	e.inbox.discard(d.qp.Num())
	for _, c := range e.connected {
		c.paths[d.index].onReset()
	}
	d.failed = d.resources.startUD(d.qp) != nil
	d.resources.engine.doorbells.refilled(d.refill.post(d.qp))
}

// arrived processes a datagram in buffer b. Any host could have sent it, so its sender must be the QP and the address of the peer of
// its connection.
func (d *datagramQP) arrived(b []byte, wc *verbs.WC) {
	e := d.resources.engine
	if wc.Status != verbs.StatusSuccess {
		d.fail()
		return
	}
	if !d.accept(b, wc) {
		e.closedStats.Malformed++
	}
}

// accept processes a datagram and reports whether it belongs to a connection.
func (d *datagramQP) accept(b []byte, wc *verbs.WC) bool {
	if wc.ByteLen < verbs.GRHLen || int64(wc.ByteLen) > int64(len(b)) || wc.Flags&verbs.WCWithImm == 0 {
		return false
	}
	e := d.resources.engine
	imm, err := wire.DecodeImm(wc.Imm)
	payload := b[verbs.GRHLen:wc.ByteLen]
	if err != nil {
		return false
	}
	route := core.RoutePath + core.Route(d.index)
	switch imm.Kind {
	case wire.KindChunk:
		h, err := wire.DecodeHeader(payload)
		if err != nil || h.Flags&wire.FlagLap == 0 {
			return false
		}
		c := e.findSender(h.Conn, route, b, wc)
		if c == nil {
			return false
		}
		c.confirm()
		if c.core != nil {
			c.receiveChunk(&core.Event{Path: uint16(d.index), Imm: imm, Header: h}, payload)
		}
		return true
	case wire.KindControl:
		var r wire.Reader
		if r.Open(payload) != nil {
			return false
		}
		c := e.findSender(r.Conn, route, b, wc)
		if c == nil {
			return false
		}
		c.records(payload, route)
		return true
	case wire.KindData:
	}
	return false
}

// findSender returns the connection of a datagram on a shared QP. It is nil if the connection does not exist or
// its peer has not sent the datagram by that route: the QP accepts the Seals of all peers.
func (e *engine) findSender(id uint32, by core.Route, b []byte, wc *verbs.WC) *connection {
	c := e.findConnection(id)
	if c == nil || c.peer == nil {
		return nil
	}
	seal, qpn := uint32(0), uint32(0)
	if wc.Flags&verbs.WCSealed != 0 {
		seal = wc.Seal
	}
	if by < core.RoutePath {
		qpn = c.peer.control[by]
	} else {
		qpn = c.peer.paths[by-core.RoutePath].qpn
	}
	if seal != c.seal || !sentFrom(&c.attr.AH, wc, b, qpn) {
		return nil
	}
	return c
}

// sentFrom reports whether a datagram, which begins with its GRH, was sent by a QP number at an address. A device that reports
// no address (AWS EFA) is checked by the number only.
func sentFrom(to *verbs.AHAttr, wc *verbs.WC, b []byte, qpn uint32) bool {
	switch {
	case wc.SrcQPN != qpn:
		return false
	case wc.Flags&verbs.WCGRH != 0 && !to.DGID.IsZero():
		g, err := verbs.ParseGRH(b)
		return err == nil && g.SGID == to.DGID
	}
	return to.DLID == 0 || wc.SLID == 0 || wc.SLID == to.DLID
}

// acquireAH returns the address handle of an address, shared by all connections to it.
func (res *engineResources) acquireAH(attr verbs.AHAttr) (*sharedAH, error) {
	if a := res.ahs[attr]; a != nil {
		a.users++
		return a, nil
	}
	ah, err := res.pd.CreateAH(attr)
	if err != nil {
		return nil, err
	}
	a := &sharedAH{AH: ah, attr: attr, users: 1}
	if s, ok := ah.(verbs.SealedAH); ok {
		a.seal = s.SealNumber()
	}
	if res.ahs == nil {
		res.ahs = make(map[verbs.AHAttr]*sharedAH)
	}
	res.ahs[attr] = a
	return a, nil
}

// sharedAH is an address handle of connections to one address.
type sharedAH struct {
	verbs.AH
	attr  verbs.AHAttr
	seal  uint32 // the number of attr.Seal, 0 without one
	users int    // counts the paths and connections that use it
}

// releaseAH undoes acquireAH. No posted request uses the handle.
func (res *engineResources) releaseAH(a *sharedAH) {
	if a == nil {
		return
	}
	if a.users--; a.users == 0 {
		delete(res.ahs, a.attr)
		_ = a.Close() // no object depends on it
	}
}
