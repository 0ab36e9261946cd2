package softnic

import (
	"ibverbx/internal/ntcopy"
	"ibverbx/internal/ring"
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// dock is what a QP holds back until bytes that have come for memory of devices are in place: completions, acknowledgements, NAKs, and answers to
// READs. The bytes wait in staging buffers, together with those of other QPs.
type dock struct {
	// q is nil once the QP has been reset.
	q *qp
	// parts are the bytes that are not in place, oldest first.
	parts ring.Ring[part]
	// held are the completions behind them, oldest first.
	held ring.Ring[heldWC]
	// progress says that bytes have landed since the last acknowledgement.
	progress bool
}

// side says what bytes belong to.
type side uint8

const (
	ofPeer side = iota // a request of the peer
	ofOwn              // the answer to a request of the QP
)

// part is bytes of a QP that land together.
type part struct {
	side         side
	done, failed bool
	// psn is that of the first packet, if the side is ofPeer.
	psn roce.PSN
	// ack and msn are what acknowledges everything before it.
	ack roce.PSN
	msn uint32
}

// partRef names a part of a QP in a cargo.
type partRef struct {
	dock *dock
	seq  uint32
	// from is the first of its copies.
	from   int
	failed bool
}

// heldWC is a completion that is held back.
type heldWC struct {
	// after is the first part that it does not wait for.
	after uint32
	side  side
	// silent says that it only returns slots, unless it becomes an error.
	silent, solicited bool
	cq                *cq
	used              *slotCount
	wc                verbs.WC
}

// docked reports whether the QP waits for bytes to land.
func (q *qp) docked() bool { return q.dock != nil && q.dock.parts.Len() > 0 }

// lacks reports whether a part before number after is not in place.
func (d *dock) lacks(after uint32) bool {
	return d != nil && d.parts.Len() > 0 && int32(after-d.parts.Head()) > 0
}

// arrivals is the number of the next part.
func (d *dock) arrivals() uint32 {
	if d == nil {
		return 0
	}
	return d.parts.Tail()
}

// land copies b to an address of the region's device, at once or when the packets at hand have been served.
func (q *qp) land(m *mr, to uint64, b []byte, s side) verbs.Status {
	if m.depot == nil {
		return copied(m.device.Copy([]verbs.DeviceCopy{{To: to, Host: b, Len: uint64(len(b))}}))
	}
	for len(b) > 0 {
		g := m.depot.room()
		if g == nil {
			return copied(m.device.Copy([]verbs.DeviceCopy{{To: to, Host: b, Len: uint64(len(b))}}))
		}
		n := min(len(b), cargoSize-g.used)
		q.begin(g, s)
		ntcopy.Copy(g.add(to, n, true), b[:n])
		to, b = to+uint64(n), b[n:]
	}
	return verbs.StatusSuccess
}

// begin makes the next copies of a cargo those of the QP.
func (q *qp) begin(g *cargo, s side) {
	if q.dock == nil {
		q.dock = &dock{q: q}
	}
	d := q.dock
	if k := len(g.parts); k > 0 && g.parts[k-1].dock == d && d.parts.At(g.parts[k-1].seq).side == s {
		return
	}
	g.parts = append(g.parts, partRef{dock: d, seq: d.parts.Tail(), from: len(g.copies)})
	d.parts.Push(part{side: s, psn: q.epsn, ack: q.ackPSN(), msn: q.msn})
}

// landed tells the QPs that the bytes of a cargo are in place.
func (g *cargo) landed() {
	for i := range g.parts {
		r := &g.parts[i]
		p := r.dock.parts.At(r.seq)
		p.done, p.failed = true, r.failed
		if last := i+1 == len(g.parts) || g.parts[i+1].dock != r.dock; last && r.dock.q != nil {
			r.dock.advance()
		}
	}
}

// advance goes on with what has waited for the parts that are in place.
func (d *dock) advance() {
	for d.parts.Len() > 0 && d.parts.Front().done {
		p := *d.parts.Front()
		if p.failed {
			d.release(d.parts.Head())
			d.q.cannotLand(&p)
		}
		if d.q == nil {
			return
		}
		d.parts.Drop(1)
		d.progress = true
	}
	d.release(d.parts.Head())
	q := d.q
	if q.state == verbs.StateErr && !q.docked() {
		q.lastWQE()
	}
	if q.ackDue || q.nakSyndrome != 0 {
		q.core.lists.acks.push(q)
	}
	q.core.lists.tx.push(q)
}

// release reports the completions that wait for no part from number landed on.
func (d *dock) release(landed uint32) {
	for d.held.Len() > 0 && int32(d.held.Front().after-landed) <= 0 {
		h := d.held.Pop()
		n := uint32(1)
		if h.side == ofOwn {
			d.q.unreported++
			if n = d.q.unreported; h.silent {
				continue
			}
			d.q.unreported = 0
		}
		wc := h.cq.push(h.used, n, h.solicited)
		h.wc.Timestamp = wc.Timestamp
		*wc = h.wc
	}
}

// withholds reports whether a completion of a side is held back.
func (d *dock) withholds(s side) bool {
	if d == nil {
		return false
	}
	for i := d.held.Head(); i != d.held.Tail(); i++ {
		if d.held.At(i).side == s {
			return true
		}
	}
	return false
}

// hold returns the slot of a completion that is held back.
func (d *dock) hold(h heldWC) *verbs.WC {
	h.after = d.parts.Tail()
	d.held.Push(h)
	return &d.held.At(d.held.Tail() - 1).wc
}

// holdSend holds the completion of a request back.
func (q *qp) holdSend(w *sendWQE, status verbs.Status) {
	ok := status == verbs.StatusSuccess
	wc := q.dock.hold(heldWC{
		side: ofOwn, silent: ok && w.flags&verbs.SendSignaled == 0 && !q.signalAll, solicited: !ok, cq: q.sendCQ, used: q.sqUsed,
	})
	wc.WRID, wc.Status, wc.Opcode, wc.QPN, wc.ByteLen = w.wrid, status, w.opcode.WC(), q.num, w.length
}

// spoil makes the held completions of a side errors. It reports whether there was a success among them.
func (d *dock) spoil(s side) bool {
	status := verbs.StatusGeneralErr
	for i := d.held.Head(); i != d.held.Tail(); i++ {
		if h := d.held.At(i); h.side == s && h.wc.Status == verbs.StatusSuccess {
			h.wc.Status, h.silent, h.solicited = status, false, true
			status = verbs.StatusWRFlushErr
		}
	}
	return status != verbs.StatusGeneralErr
}

// cannotLand ends the QP because the device has refused a part. What came before it is in place.
func (q *qp) cannotLand(p *part) {
	hit := q.dock.spoil(p.side)
	switch {
	case p.side == ofOwn:
		if hit {
			q.enterError()
		} else if q.state == verbs.StateRTS || q.state == verbs.StateSQD {
			q.failSend(verbs.StatusGeneralErr) // the oldest request is the READ
		}
	case !receivable[q.state], q.dying && q.nakPSN.Sub(p.psn) <= 0: // a request before it has ended the QP
	case q.typ == verbs.RC:
		q.dropJobsAfter(q.dock.parts.Head())
		q.epsn, q.asked, q.nakSyndrome = p.psn, 0, 0
		q.refuse(roce.NAKRemoteOperation, verbs.StatusGeneralErr)
	case hit:
		q.dying = true
		q.core.lists.failing.push(q)
	default:
		q.dropMessage() // a WRITE, or one that has not come completely
	}
}

// abandon gives up what the QP holds back: it is being reset. Its bytes land before abandon returns, because nothing may change memory
// for a QP that has been reset.
func (q *qp) abandon() {
	if q.dock == nil {
		return
	}
	if q.docked() {
		for _, d := range q.core.depots {
			d.depart(true)
			d.lander.drain()
			d.remind()
		}
	}
	for d := q.dock; d.held.Len() > 0; {
		if h := d.held.Pop(); q.srq != nil && h.used == q.srq.used {
			h.used.free(1)
		}
	}
	q.dock.q, q.dock = nil, nil
}

// unplaced returns the oldest part of a side, nil if all are in place.
func (d *dock) unplaced(s side) *part {
	if d == nil {
		return nil
	}
	for i := d.parts.Head(); i != d.parts.Tail(); i++ {
		if p := d.parts.At(i); p.side == s {
			return p
		}
	}
	return nil
}

// ackBefore acknowledges what came before a part.
func (q *qp) ackBefore(p *part) {
	if !q.ackDue || !q.dock.progress {
		return
	}
	q.dock.progress = false
	a := q.answer(p.ack)
	a.noPayload()
	a.Opcode, a.MSN = roce.RC|roce.OpAck, p.msn&roce.PSNMask
	q.emit(a)
}
