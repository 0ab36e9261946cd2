package reliable

import (
	"fmt"

	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// link is a connection: the paths that Config.Flows QPs of a PD share. It is made with the first of
// them, connected with the first that is connected, and ends with the last.
//
//	QP, flow 0 --+
//	QP, flow 1 --+-- link --+-- paths
//	   ...     --+          +-- core.Conn
type link struct {
	ctx  *device
	pd   *domain
	id   uint32 // number of the connection; see take
	port uint8
	gid  verbs.GID
	// members are its QPs, by flow; nil is one that has left or is still to come. A number is
	// not given away again: the peer could not tell the one from the other.
	members []*qp
	made    int // flows given away
	users   int // QPs that are there

	conn    *core.Conn // nil until connected
	peer    *card      // of the first QP that was connected
	attr    verbs.QPAttr
	ah      verbs.AH
	access  verbs.Access // what any of its QPs allows
	share   int          // receive buffers that its peer is told of
	paths   []pathQP
	arrival pool        // PathRecv slots per path, if they have their own receives
	headers pool        // one slot per transmission of each path
	pacer   *core.Pacer // grants to the peer, with Config.Credits
	outbox  [2][]byte
	queue   []core.Event
	ev      core.Event
	dirty   bool
	sick    bool   // a QP has failed and does not know it yet
	landing []byte // the bytes of the chunk being stepped
}

// enlist gives the QP a flow: of the link that the last QP of the PD has got, if it has one left,
// or of a new one. A QP that has one keeps it; one that was reset when there was no room has none.
func (q *qp) enlist() error {
	if q.link != nil {
		return nil
	}
	l := q.pd.open
	if l == nil || l.made == len(l.members) || l.port != q.cfg.Port || l.gid != q.cfg.GID {
		var err error
		if l, err = q.pd.newLink(q.cfg.Port, q.cfg.GID); err != nil {
			return err
		}
		q.pd.open = l
	}
	q.link, q.flow = l, uint16(l.made)
	l.members[l.made] = q
	l.made++
	l.users++
	return nil
}

// leave takes the QP off its link. When it returns nothing refers to its memory. With the last QP
// the link ends.
func (q *qp) leave() {
	l := q.link
	if l == nil {
		return
	}
	q.wait(0)
	connected := q.conn != nil
	q.link, q.conn, q.sideDown = nil, nil, false
	l.members[q.flow] = nil
	if l.users--; l.users == 0 {
		l.destroy()
		return
	}
	if connected {
		l.step(&core.Event{Kind: core.EvClose, Flow: q.flow, Status: uint8(verbs.StatusWRFlushErr)})
	}
	l.allow()
}

// newLink makes a link with its paths.
func (p *domain) newLink(port uint8, gid verbs.GID) (*link, error) {
	d := p.ctx
	if (p.users+1)*d.quota() > d.cfg.RecvDepth {
		return nil, d.opError("create QP", 0, fmt.Errorf("%w: Config.RecvDepth of %d serves %d QPs of a PD",
			verbs.ErrLimit, d.cfg.RecvDepth, d.maxLinks()*d.cfg.Flows))
	}
	if err := p.prepare(); err != nil {
		return nil, err
	}
	l := &link{ctx: d, pd: p, port: port, gid: gid, members: make([]*qp, d.cfg.Flows)}
	if err := l.take(); err != nil {
		if p.users == 0 {
			p.release()
		}
		return nil, err
	}
	p.users++
	p.divide()
	if err := l.build(); err != nil {
		l.destroy()
		return nil, err
	}
	return l, nil
}

// maxLinks is how many links of a PD the receives serve.
func (d *device) maxLinks() int { return d.cfg.RecvDepth / d.quota() }

func (l *link) build() (err error) {
	d := l.ctx
	if l.headers, err = newPool(l.pd.inner, d.cfg.Paths*pathSlots, headerSlot); err != nil {
		return err
	}
	l.paths = make([]pathQP, d.cfg.Paths)
	if err = l.makeReceives(); err != nil {
		return err
	}
	for i := range l.paths {
		l.paths[i].chain = make([]verbs.SendWR, 0, pathSlots)
		if err = l.makePath(i, 0); err != nil {
			return err
		}
	}
	for i := range l.outbox {
		l.outbox[i] = make([]byte, 0, wire.MaxControlLen)
	}
	return nil
}

// take gives the link the number of a connection: its place in the table, and above it what
// tells it from those that had the place before, whose packets may still be under way.
func (l *link) take() error {
	d := l.ctx
	i := 0
	for i < len(d.links) && d.links[i] != nil {
		i++
	}
	if i > maxIndex {
		return d.opError("create QP", 0, verbs.ErrLimit)
	}
	if i == len(d.links) {
		d.links = append(d.links, nil)
	}
	d.lives++
	d.links[i], l.id = l, (d.lives<<indexBits|uint32(i))&maxConn
	return nil
}

// index is the link's place in the table.
func (l *link) index() int { return int(l.id & maxIndex) }

// destroy frees the parts of a link, also of one that was not built to the end.
func (l *link) destroy() {
	d, p := l.ctx, l.pd
	l.dismiss()
	for i, o := range d.live {
		if o == l {
			d.live = append(d.live[:i], d.live[i+1:]...)
			break
		}
	}
	if l.ah != nil {
		_ = l.ah.Close() // nothing stands on it
		l.ah = nil
	}
	l.conn, l.peer = nil, nil
	for i := range l.paths {
		l.dropPath(i)
	}
	l.arrival.free()
	l.headers.free()
	d.links[l.index()] = nil
	if p.open == l {
		p.open = nil
	}
	if p.users--; p.users == 0 {
		d.drain()
		p.release()
	} else {
		p.divide()
	}
}

// meet connects the link to that of the peer, of whose QP the card is, or makes sure that it is
// connected to that one.
func (l *link) meet(q *qp, peer *card, attr *verbs.QPAttr, cfg core.FlowConfig) error {
	switch {
	case peer.flow != q.flow:
		return q.opError("connect QP", verbs.Invalidf("it is number %d of the QPs that share a connection, the peer's is number %d: create QPs in the same order at both ends, or set Config.Flows to 1",
			q.flow, peer.flow))
	case l.conn == nil:
		return l.plug(peer, attr, cfg)
	case peer.conn != l.peer.conn || peer.control != l.peer.control || attr.AH.DGID != l.attr.AH.DGID || attr.AH.DLID != l.attr.AH.DLID:
		return q.opError("connect QP", verbs.Invalidf("it shares connection %d of the peer with others, the peer's QP belongs to connection %d: connect the QPs that share a connection to the same peer, in the order of their creation, or set Config.Flows to 1",
			l.peer.conn, peer.conn))
	}
	l.allow()
	return nil
}

// plug connects all paths to those of the peer.
func (l *link) plug(peer *card, attr *verbs.QPAttr, flow core.FlowConfig) (err error) {
	d := l.ctx
	if l.ah != nil {
		_ = l.ah.Close() // of an attempt that has failed
		l.ah = nil
	}
	l.peer, l.attr = peer, *attr
	if l.ah, err = l.pd.inner.CreateAH(attr.AH); err != nil {
		l.ah = nil
		return err
	}
	l.allow()
	for i, a := range peer.paths {
		if err := l.join(i, a); err != nil {
			return err
		}
	}
	cfg := d.cfg.core(flow.SendDepth, l.share, peer.credit)
	cfg.PathCredit = peer.perPath
	if d.cfg.Flows == 1 {
		cfg.RecvPatience = flow.RecvPatience
		if flow.GiveUp != 0 {
			cfg.GiveUp = flow.GiveUp
		}
	}
	if err := l.enroll(attr.Port); err != nil {
		return err
	}
	if l.conn, err = core.New(cfg); err != nil {
		l.conn = nil
		return d.opError("connect QP", 0, err)
	}
	d.live = append(d.live, l)
	return nil
}

// join connects the QP of path i, as the side QP of the first QP was connected.
func (l *link) join(i int, a pathAddr) error {
	p, attr := l.paths[i].qp, l.attr
	own, err := p.Endpoint()
	if err != nil {
		return err
	}
	attr.DestQPN, attr.RQPSN, attr.SQPSN, attr.Access = a.qpn, a.psn, own.PSN, l.access&verbs.AccessRemoteWrite
	if err := l.openReceives(i, &attr); err != nil {
		return err
	}
	return verbs.ConnectWith(p, attr)
}

// allow lets the paths do what any of the QPs allows: they are shared.
func (l *link) allow() {
	l.access = 0
	for _, q := range l.members {
		if q != nil {
			l.access |= q.access
		}
	}
	for i := range l.paths {
		if p := l.paths[i].qp; p != nil && p.State() == verbs.StateRTS {
			_ = p.Modify(verbs.QPAttr{Access: l.access & verbs.AccessRemoteWrite}, verbs.AttrAccess) // what it places is checked by nobody else
		}
	}
}

// makePath makes the QP of a path for an epoch.
func (l *link) makePath(i int, epoch uint16) error {
	d := l.ctx
	cfg := verbs.QPConfig{
		Type: verbs.UC, SendCQ: d.cq, RecvCQ: d.cq, SRQ: l.pd.srq, MaxSendWR: pathSlots, MaxSendSGE: verbs.MaxSGE,
		Port: l.port, GID: l.gid,
	}
	if !d.shared {
		cfg.MaxRecvWR = d.cfg.PathRecv
	}
	inner, err := l.pd.inner.CreateQP(cfg)
	if err != nil {
		return err
	}
	ep, err := inner.Endpoint()
	if err != nil {
		_ = inner.Close() // nothing stands on it
		return err
	}
	p := &l.paths[i]
	p.addr = pathAddr{ep.QPN, ep.PSN}
	p.qp, p.epoch, p.posted, p.done, p.orders, p.chain = inner, epoch, 0, 0, 0, p.chain[:0]
	d.routes.add(routeSlot{qpn: inner.Num(), path: uint16(i), link: l})
	return nil
}

// dropPath takes the QP of a path out of service: when it returns nothing lands any more and
// no request refers to memory. What has arrived before stays in the stash of the device, so
// that no receive buffer is lost.
func (l *link) dropPath(i int) {
	p := &l.paths[i]
	if p.qp == nil {
		return
	}
	if s := p.qp.State(); s != verbs.StateReset && s != verbs.StateErr {
		_ = p.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState) // Close does it otherwise
	}
	l.ctx.drain()
	l.ctx.routes.remove(p.qp.Num())
	_ = p.qp.Close() // nothing stands on it
	p.qp = nil
	p.chain = p.chain[:0]
}
