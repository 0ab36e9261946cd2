package softnic

import (
	"ibverbx/internal/ntcopy"
	"ibverbx/internal/ring"
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// landings tracks a QP's received data on its way to device memory, in staging buffers shared with other QPs. Until
// the data is in place, the QP defers completions, ACKs, NAKs and READ responses.
type landings struct {
	// q is nil once the QP has been reset.
	q *qp
	// pending holds the landings that are not in place, oldest first.
	pending ring.Ring[landing]
	// deferred holds the completions behind them, oldest first.
	deferred ring.Ring[deferredWC]
	// progress is set when data has landed since the last ACK.
	progress bool
}

// role is the role in which a QP received data.
type role uint8

const (
	asResponder role = iota // it serves a peer request
	asRequester             // it receives the response to its own request
)

// landing is data of a QP that lands together.
type landing struct {
	role         role
	done, failed bool
	// psn is the PSN of the first packet, if the role is asResponder.
	psn roce.PSN
	// ack and msn acknowledge everything before the landing.
	ack roce.PSN
	msn uint32
}

// landingRef is a landing's share of a batch.
type landingRef struct {
	landings *landings
	seq      uint32
	// from is the index of its first copy.
	from   int
	failed bool
}

// deferredWC is a deferred completion.
type deferredWC struct {
	// after is the first landing that the completion does not wait for.
	after uint32
	role  role
	// silent completions only return slots, unless they become errors.
	silent, solicited bool
	cq                *cq
	used              *slotCount
	wc                verbs.WC
}

// awaitsLanding reports whether received data of the QP is not in place.
func (q *qp) awaitsLanding() bool { return q.landings != nil && q.landings.pending.Len() > 0 }

// pendingBefore reports whether a landing before number after is not in place.
func (d *landings) pendingBefore(after uint32) bool {
	return d != nil && d.pending.Len() > 0 && int32(after-d.pending.Head()) > 0
}

// nextSeq returns the number of the next landing.
func (d *landings) nextSeq() uint32 {
	if d == nil {
		return 0
	}
	return d.pending.Tail()
}

// land copies b to an address on the region's device, directly or through a staging buffer.
func (q *qp) land(m *mr, to uint64, b []byte, s role) verbs.Status {
	if m.stager == nil {
		return copied(m.device.Copy([]verbs.DeviceCopy{{To: to, Host: b, Len: uint64(len(b))}}))
	}
	for len(b) > 0 {
		g := m.stager.landingBatch()
		if g == nil {
			return copied(m.device.Copy([]verbs.DeviceCopy{{To: to, Host: b, Len: uint64(len(b))}}))
		}
		n := min(len(b), stagingBufferSize-g.used)
		q.startLanding(g, s)
		ntcopy.Copy(g.add(to, n, true), b[:n])
		to, b = to+uint64(n), b[n:]
	}
	return verbs.StatusSuccess
}

// startLanding assigns the next copies of a batch to the QP.
func (q *qp) startLanding(g *stagedBatch, s role) {
	if q.landings == nil {
		q.landings = &landings{q: q}
	}
	d := q.landings
	if k := len(g.landings); k > 0 && g.landings[k-1].landings == d && d.pending.At(g.landings[k-1].seq).role == s {
		return
	}
	g.landings = append(g.landings, landingRef{landings: d, seq: d.pending.Tail(), from: len(g.copies)})
	d.pending.Push(landing{role: s, psn: q.epsn, ack: q.ackPSN(), msn: q.msn})
}

// landed records the result of a batch and advances its QPs.
func (g *stagedBatch) landed() {
	for i := range g.landings {
		r := &g.landings[i]
		p := r.landings.pending.At(r.seq)
		p.done, p.failed = true, r.failed
		if last := i+1 == len(g.landings) || g.landings[i+1].landings != r.landings; last && r.landings.q != nil {
			r.landings.advance()
		}
	}
}

// advance removes the landings that are in place, and resumes what they held up.
func (d *landings) advance() {
	for d.pending.Len() > 0 && d.pending.Front().done {
		p := *d.pending.Front()
		if p.failed {
			d.completeDeferred(d.pending.Head())
			d.q.failLanding(&p)
		}
		if d.q == nil {
			return
		}
		d.pending.Drop(1)
		d.progress = true
	}
	d.completeDeferred(d.pending.Head())
	q := d.q
	if q.state == verbs.StateErr && !q.awaitsLanding() {
		q.raiseLastWQE()
	}
	if q.ackDue || q.nakSyndrome != 0 {
		q.core.lists.acks.push(q)
	}
	q.core.lists.tx.push(q)
}

// completeDeferred reports the completions that wait only for landings before number landed.
func (d *landings) completeDeferred(landed uint32) {
	for d.deferred.Len() > 0 && int32(d.deferred.Front().after-landed) <= 0 {
		h := d.deferred.Pop()
		n := uint32(1)
		if h.role == asRequester {
			d.q.withoutCQE++
			if n = d.q.withoutCQE; h.silent {
				continue
			}
			d.q.withoutCQE = 0
		}
		wc := h.cq.push(h.used, n, h.solicited)
		h.wc.Timestamp = wc.Timestamp
		*wc = h.wc
	}
}

// defers reports whether a completion in a role is deferred.
func (d *landings) defers(s role) bool {
	if d == nil {
		return false
	}
	for i := d.deferred.Head(); i != d.deferred.Tail(); i++ {
		if d.deferred.At(i).role == s {
			return true
		}
	}
	return false
}

// deferWC defers a completion and returns it, for the caller to fill.
func (d *landings) deferWC(h deferredWC) *verbs.WC {
	h.after = d.pending.Tail()
	d.deferred.Push(h)
	return &d.deferred.At(d.deferred.Tail() - 1).wc
}

// deferSend defers the completion of a request.
func (q *qp) deferSend(w *sendWQE, status verbs.Status) {
	ok := status == verbs.StatusSuccess
	wc := q.landings.deferWC(deferredWC{
		role: asRequester, silent: ok && w.flags&verbs.SendSignaled == 0 && !q.signalAll, solicited: !ok, cq: q.sendCQ, used: q.sqUsed,
	})
	wc.WRID, wc.Status, wc.Opcode, wc.QPN, wc.ByteLen = w.wrid, status, w.opcode.WC(), q.num, w.length
}

// failDeferred turns the deferred completions in a role into errors. It reports whether one of them was a success.
func (d *landings) failDeferred(s role) bool {
	status := verbs.StatusGeneralErr
	for i := d.deferred.Head(); i != d.deferred.Tail(); i++ {
		if h := d.deferred.At(i); h.role == s && h.wc.Status == verbs.StatusSuccess {
			h.wc.Status, h.silent, h.solicited = status, false, true
			status = verbs.StatusWRFlushErr
		}
	}
	return status != verbs.StatusGeneralErr
}

// failLanding fails the QP after the device has refused a landing. Everything before it is in place.
func (q *qp) failLanding(p *landing) {
	hit := q.landings.failDeferred(p.role)
	switch {
	case p.role == asRequester:
		if hit {
			q.enterError()
		} else if q.state == verbs.StateRTS || q.state == verbs.StateSQD {
			q.failSend(verbs.StatusGeneralErr) // the oldest request is the READ
		}
	case !receivable[q.state], q.failingNAK && q.nakPSN.Sub(p.psn) <= 0: // an earlier request has failed the QP
	case q.typ == verbs.RC:
		q.dropResponsesAfter(q.landings.pending.Head())
		q.epsn, q.unackedPSNs, q.nakSyndrome = p.psn, 0, 0
		q.refuse(roce.NAKRemoteOperation, verbs.StatusGeneralErr)
	case hit:
		q.failingNAK = true
		q.core.lists.failing.push(q)
	default:
		q.dropMessage() // a WRITE, or an incomplete message
	}
}

// dropLandings discards deferred completions for a reset. Pending data lands before it returns, because memory must
// not change on behalf of a QP after its reset.
func (q *qp) dropLandings() {
	if q.landings == nil {
		return
	}
	if q.awaitsLanding() {
		for _, d := range q.core.stagers {
			d.submitOpen(true)
			d.lander.drain()
			d.notify()
		}
	}
	for d := q.landings; d.deferred.Len() > 0; {
		if h := d.deferred.Pop(); q.srq != nil && h.used == q.srq.used {
			h.used.free(1)
		}
	}
	q.landings.q, q.landings = nil, nil
}

// oldest returns the oldest pending landing in a role, nil if there is none.
func (d *landings) oldest(s role) *landing {
	if d == nil {
		return nil
	}
	for i := d.pending.Head(); i != d.pending.Tail(); i++ {
		if p := d.pending.At(i); p.role == s {
			return p
		}
	}
	return nil
}

// ackBefore acknowledges everything before a landing.
func (q *qp) ackBefore(p *landing) {
	if !q.ackDue || !q.landings.progress {
		return
	}
	q.landings.progress = false
	a := q.newResponse(p.ack)
	a.noPayload()
	a.Opcode, a.MSN = roce.RC|roce.OpAck, p.msn&roce.PSNMask
	q.emit(a)
}
