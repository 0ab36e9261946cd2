package reliable

import (
	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// Step does what is due, and arms the inner CQ so that the keeper wakes for the next
// completion.
func (d *device) Step() (next int64, pending bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, false
	}
	d.collect()
	d.drive()
	d.wakeAt = core.Never
	if d.keeper != nil {
		if d.attended() {
			d.wakeAt = d.now + lookAgain
		} else {
			_ = d.cq.Arm(false) // it has a Waker
			d.drive()
		}
	}
	if d.more || d.stashed < len(d.stash) {
		d.wakeAt = d.now // no completion will wake the keeper for what is there already
	}
	d.wakeAt = min(d.wakeAt, d.grantAt())
	for _, l := range d.live {
		d.wakeAt = min(d.wakeAt, l.conn.Deadline())
	}
	for _, q := range d.qps {
		if q != nil && q.sideDown {
			d.wakeAt = min(d.wakeAt, d.sidesAt)
		}
		if q != nil && q.askAt != 0 {
			d.wakeAt = min(d.wakeAt, q.askAt)
		}
	}
	return d.wakeAt, d.wakeAt != core.Never
}

// lookAgain is how long the keeper leaves completions to a program that polls.
const lookAgain = 1_000_000

// attended reports whether the program has polled since the last time, and so takes the
// completions itself: then the keeper would only be in its way. A program that sleeps until a
// CQ wakes it does not.
func (d *device) attended() bool {
	polled := d.polled
	d.polled = false
	for _, c := range d.cqs {
		if c.armed {
			return false
		}
	}
	return polled
}

// rekick wakes the keeper if a timer of q is due before it would look.
func (d *device) rekick(q *qp) {
	if q.conn == nil {
		return
	}
	if at := q.conn.Deadline(); at < d.wakeAt {
		d.wakeAt = at
		d.keeper.kick()
	}
}

// rounds bounds what one call does.
const rounds = 1024

// drive takes the completions of the inner QPs, runs what is due and posts what comes of it.
func (d *device) drive() {
	d.more = true
	for range rounds {
		if d.stashed == len(d.stash) {
			d.stash, d.stashed = d.stash[:0], 0
			n, _ := d.cq.Poll(d.wcs) // its depth is beyond what can be outstanding
			if n == 0 {
				d.more = false
				break
			}
			d.stash = append(d.stash, d.wcs[:n]...)
			d.now = d.clock()
		}
		wc := d.stash[d.stashed]
		d.stashed++
		d.dispatch(&wc)
	}
	d.now = d.clock()
	if d.asking > 0 {
		d.askForCards()
	}
	if d.now >= d.sidesAt {
		d.watchSides()
	}
	for i := 0; i < len(d.live); i++ {
		if l := d.live[i]; d.now >= l.conn.Deadline() || len(l.queue) > 0 {
			l.ev = core.Event{Kind: core.EvTick}
			l.step(&l.ev)
		}
	}
	d.grant()
	for i := 0; i < len(d.dirty); i++ {
		l := d.dirty[i]
		l.ev = core.Event{Kind: core.EvFlush}
		l.step(&l.ev)
	}
	for _, p := range d.domains {
		if len(p.refill) >= lowWater(d.cfg.RecvDepth) {
			p.topUp() // before acknowledgements leave, which invite more
		}
	}
	d.flush()
}

// drain takes all completions of the inner QPs into the stash, to be looked at later: a QP
// that is closed takes its completions with it.
func (d *device) drain() {
	for {
		n, _ := d.cq.Poll(d.wcs)
		if n == 0 {
			return
		}
		d.stash = append(d.stash, d.wcs[:n]...)
	}
}

// disregard drops what the stash has of a QP that begins a new life with the number it had.
func (d *device) disregard(qpn uint32) {
	for i := d.stashed; i < len(d.stash); i++ {
		if d.stash[i].QPN == qpn {
			d.stash[i].WRID = 0 // of no kind
		}
	}
}

// flush posts the chains and control packets of all links that have some.
func (d *device) flush() {
	for _, l := range d.dirty {
		l.dirty = false
		if !d.shared {
			l.refillPaths()
		}
		for i := range l.paths {
			if len(l.paths[i].chain) > 0 {
				l.ring(i)
			}
		}
		for i := range l.outbox {
			l.mail(i)
		}
	}
	d.dirty = d.dirty[:0]
}

// ring posts the chain of a path, with one doorbell. What is refused stays.
func (l *link) ring(i int) {
	p := &l.paths[i]
	if p.qp == nil {
		p.chain = p.chain[:0]
		return
	}
	for k := range p.chain {
		if k%8 == 7 || k == len(p.chain)-1 {
			p.chain[k].Flags |= verbs.SendSignaled
		}
	}
	n, err := p.qp.PostSend(p.chain)
	p.chain = p.chain[:copy(p.chain, p.chain[n:])]
	if err != nil && err != verbs.ErrQueueFull { //nolint:errorlint // it comes bare
		l.queue = append(l.queue, core.Event{Kind: core.EvPathFailed, Path: uint16(i), Epoch: p.epoch})
	}
}

// dispatch takes one completion of an inner QP.
func (d *device) dispatch(wc *verbs.WC) {
	kind, conn, path, n := untag(wc.WRID)
	switch kind {
	case tagPath:
		if l := d.lookup(conn); l != nil && path < len(l.paths) {
			l.sent(path, n, wc)
		}
	case tagArrival:
		d.arrived(conn, n, wc)
	case tagPathRecv:
		if l := d.lookup(conn); l != nil {
			l.arrivedOn(path, n, wc)
		}
	case tagControlSend:
		if p := d.domain(conn); p != nil && path < len(p.control) {
			p.control[path].free = append(p.control[path].free, n)
		}
	case tagControlRecv:
		d.controlArrived(n, wc)
	case tagCardSend:
		if q := d.member(conn); q != nil && wc.QPN == q.num {
			q.cardSent(wc)
		}
	case tagCardRecv:
		if q := d.member(conn); q != nil && wc.QPN == q.num {
			q.gotCard(n, wc)
		}
	case tagSide:
		if q := d.member(conn); q != nil && q.conn != nil && wc.QPN == q.num {
			q.step(&core.Event{Kind: core.EvSide, Token: n, Status: uint8(wc.Status)})
		}
	}
}

// lookup returns the link of a number, or nil.
func (d *device) lookup(conn uint32) *link {
	if i := int(conn & maxIndex); i < len(d.links) && d.links[i] != nil && d.links[i].id == conn {
		return d.links[i]
	}
	return nil
}

// member returns the QP of a number, or nil.
func (d *device) member(id uint32) *qp {
	if int(id) < len(d.qps) {
		return d.qps[id]
	}
	return nil
}

// sent takes the completion of send n of a path, and of those before it.
func (l *link) sent(i int, n uint32, wc *verbs.WC) {
	p := &l.paths[i]
	if p.qp == nil || wc.QPN != p.qp.Num() || l.conn == nil {
		return // of an epoch that is over
	}
	if wc.Status != verbs.StatusSuccess {
		if flow := p.owner[n%pathSlots]; wc.Status != verbs.StatusWRFlushErr && flow >= 0 {
			// The request itself is wrong: no path would take it.
			l.step(&core.Event{Kind: core.EvClose, Flow: uint16(flow), Status: uint8(wc.Status)})
		}
		l.ev = core.Event{Kind: core.EvPathFailed, Path: uint16(i), Epoch: p.epoch}
		l.step(&l.ev)
		return
	}
	count := 0
	for ; int32(n-p.done) >= 0; p.done++ {
		if p.owner[p.done%pathSlots] >= 0 {
			count++
		} else {
			p.orders--
		}
	}
	l.ev = core.Event{Kind: core.EvSent, Path: uint16(i), Epoch: p.epoch, Count: count}
	l.step(&l.ev)
}

// arrived takes a message on a path, and gives its receive buffer back.
func (d *device) arrived(domain, slot uint32, wc *verbs.WC) {
	p := d.domain(domain)
	if p == nil || int(slot) >= d.cfg.RecvDepth {
		return
	}
	if r := d.routes.find(wc.QPN); r != nil && r.link != nil && r.link.conn != nil {
		if wc.Status == verbs.StatusSuccess {
			r.link.take1(int(r.path), wc, p.arrival.slot(int(slot)))
		} else {
			r.link.ev = core.Event{Kind: core.EvPathFailed, Path: r.path, Epoch: r.link.paths[r.path].epoch}
			r.link.step(&r.link.ev)
		}
	}
	p.recycle(int(slot))
}

// take1 takes a message that arrived on path i; buf holds it if it was a SEND.
func (l *link) take1(i int, wc *verbs.WC, buf []byte) {
	imm, err := wire.DecodeImm(wc.Imm)
	if err != nil || wc.Flags&verbs.WCWithImm == 0 || int64(wc.ByteLen) > int64(len(buf)) {
		return
	}
	isWrite := wc.Opcode == verbs.WCRecvRDMAWithImm
	if isWrite != (imm.Kind == wire.KindData) {
		return
	}
	l.ev = core.Event{Path: uint16(i), Epoch: l.paths[i].epoch, Imm: imm}
	switch imm.Kind {
	case wire.KindData:
		l.ev.Kind, l.ev.Count = core.EvData, int(wc.ByteLen)
	case wire.KindChunk:
		h, err := wire.DecodeHeader(buf[:wc.ByteLen])
		if err != nil {
			return
		}
		l.ev.Kind, l.ev.Header, l.ev.Status = core.EvChunk, h, l.check(imm.Flow, &h)
		l.landing = buf[wire.HeaderLen:wc.ByteLen]
	case wire.KindControl:
		l.records(buf[:wc.ByteLen], core.RoutePath+core.Route(i))
		return
	}
	l.step(&l.ev)
}

// records takes a control packet that came by route.
func (l *link) records(b []byte, route core.Route) {
	var r wire.Reader
	if r.Open(b) != nil || r.Conn != l.id {
		return
	}
	for l.conn != nil {
		l.ev = core.Event{Kind: core.EvRecord, Route: route}
		if !r.Next(&l.ev.Record) {
			return
		}
		l.step(&l.ev)
	}
}

// controlArrived takes a datagram. Anyone could have sent it: it must come from the control QP
// of the connection that it names.
func (d *device) controlArrived(slot uint32, wc *verbs.WC) {
	r := d.routes.find(wc.QPN)
	if r == nil || r.control == nil || slot >= controlRecvs {
		return
	}
	c := r.control
	if wc.Status == verbs.StatusSuccess && wc.ByteLen > verbs.GRHLen {
		b := c.in.slot(int(slot))[verbs.GRHLen:wc.ByteLen]
		var rd wire.Reader
		if rd.Open(b) == nil {
			if l := d.lookup(rd.Conn); l != nil && l.peer != nil && l.pd == c.pd && wc.SrcQPN == l.peer.control[c.index] {
				l.records(b, core.Route(c.index))
			}
		}
	}
	if c.qp != nil && wc.Status == verbs.StatusSuccess {
		c.post(slot)
	}
}
