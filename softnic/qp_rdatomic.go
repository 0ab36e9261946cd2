package softnic

import (
	"sync/atomic"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// pendingResponse is the unsent part of a response to a READ or an atomic.
type pendingResponse struct {
	atomic bool
	// duplicate is set if the request was a duplicate.
	duplicate bool
	rkey      uint32
	// psn is the PSN of the next packet.
	psn    roce.PSN
	va     uint64
	length uint32
	// off is the number of bytes sent.
	off uint32
	// original is the value found by an atomic.
	original uint64
	// after is the number of the first landing that arrived after the request. The response waits for
	// the earlier ones.
	after uint32
}

// atomicResult records the result of an atomic.
type atomicResult struct {
	valid    bool
	psn      roce.PSN
	original uint64
}

// servedRead records an executed READ. The peer may request its response again, from any packet on.
type servedRead struct {
	valid  bool
	rkey   uint32
	psn    roce.PSN
	length uint32
	va     uint64
}

// wasServed reports whether a duplicate READ repeats a recent READ or the end of one. Any other key or
// address could be a guess, which must not be free: on a duplicate, a wrong key does not fail the QP.
// On memory links packets cannot be forged, and gates execute READs without a record.
func (q *qp) wasServed(p *packet) bool {
	for i := range q.answered {
		r := &q.answered[i]
		d := p.PSN.Sub(r.psn)
		if !r.valid || d < 0 || uint32(d) >= q.responsePackets(r.length) {
			continue
		}
		done := uint32(d) * q.seg
		if p.RKey == r.rkey && p.VA == r.va+uint64(done) && p.DMALen <= r.length-done {
			return true
		}
	}
	return false
}

// addResponse queues a response and returns it, or nil at the limit. New requests and duplicates have
// separate limits, so that a network that duplicates packets cannot exhaust the resources promised to a
// peer.
func (q *qp) addResponse(j pendingResponse) *pendingResponse {
	kin := &q.responseCount[index(j.duplicate)]
	if *kin >= q.attr.MaxDestRdAtomic {
		return nil
	}
	*kin++
	j.after = q.landings.nextSeq()
	q.responses.Push(j)
	q.core.lists.tx.push(q)
	return q.responses.At(q.responses.Tail() - 1)
}

// responsePackets returns the number of packets in a READ response.
func (q *qp) responsePackets(length uint32) uint32 {
	if length == 0 {
		return 1
	}
	return (length-1)/q.seg + 1
}

// serveRead starts the response to a new READ. The data is read when sent. Peers must expect that:
// without a fence, a READ is not ordered before later WRITEs.
func (q *qp) serveRead(p *packet) {
	if q.attr.Access&verbs.AccessRemoteRead == 0 {
		q.refuse(roce.NAKInvalidRequest, verbs.StatusSuccess)
		return
	}
	if !q.readable(p) {
		q.refuse(roce.NAKRemoteAccess, verbs.StatusSuccess)
		return
	}
	j := pendingResponse{rkey: p.RKey, psn: p.PSN, va: p.VA, length: p.DMALen}
	if p.DMALen > maxMsgSize || q.addResponse(j) == nil {
		q.refuse(roce.NAKInvalidRequest, verbs.StatusSuccess) // exceeds the QP's resources
		return
	}
	q.answered[q.answeredNext] = servedRead{valid: true, rkey: p.RKey, psn: p.PSN, length: p.DMALen, va: p.VA}
	q.answeredNext = (q.answeredNext + 1) % len(q.answered)
	q.served(q.responsePackets(p.DMALen))
}

// readable reports whether the memory named by a READ may be read. An empty READ does not check its
// key.
func (q *qp) readable(p *packet) bool {
	if p.DMALen == 0 {
		return true
	}
	return q.nic.mrs.get(p.RKey).holds(q.pd, p.VA, p.DMALen, verbs.AccessRemoteRead)
}

// serveAtomic executes a new atomic and records its result.
func (q *qp) serveAtomic(p *packet, op uint8) {
	if p.VA%8 != 0 || q.attr.Access&verbs.AccessRemoteAtomic == 0 {
		q.refuse(roce.NAKInvalidRequest, verbs.StatusSuccess)
		return
	}
	mem, ok := q.nic.mrs.get(p.RKey).find(q.pd, p.VA, 8, verbs.AccessRemoteAtomic)
	if !ok {
		q.refuse(roce.NAKRemoteAccess, verbs.StatusSuccess)
		return
	}
	if !isAligned(mem) {
		q.refuse(roce.NAKInvalidRequest, verbs.StatusSuccess)
		return
	}
	j := q.addResponse(pendingResponse{atomic: true, psn: p.PSN})
	if j == nil {
		q.refuse(roce.NAKInvalidRequest, verbs.StatusSuccess)
		return
	}
	if q.nic.observe != nil {
		q.touch(AccessRemoteAtomic, p.VA, 8)
	}
	j.original = q.execute(p.PSN, mem, op, p.Compare, p.SwapAdd)
	q.served(1)
}

// execute performs an atomic of the peer on an aligned word. It records and returns the previous value.
// It uses an atomic instruction, because pairs in other gates and programs with sync/atomic may modify
// the word concurrently.
func (q *qp) execute(psn roce.PSN, mem []byte, op uint8, compare, swapAdd uint64) (original uint64) {
	word := wordAt(mem)
	if op == roce.OpFetchAdd {
		original = atomic.AddUint64(word, swapAdd) - swapAdd
	} else {
		for original = compare; original == compare && !atomic.CompareAndSwapUint64(word, compare, swapAdd); {
			original = atomic.LoadUint64(word)
		}
	}
	q.replay[q.replayNext] = atomicResult{valid: true, psn: psn, original: original}
	q.replayNext = (q.replayNext + 1) % len(q.replay)
	return original
}

// served counts an accepted READ or atomic, and its PSNs.
func (q *qp) served(psns uint32) {
	q.filled()
	q.epsn = q.epsn.Add(psns)
	q.unackedPSNs = min(q.unackedPSNs+psns, maxWindow-1)
	q.msn++
}

// duplicate handles a request executed before. A SEND or WRITE is acknowledged again, a READ executed
// again, and an atomic answered from the replay ring (IBTA 1.4 section 9.7.4.1.5). A request that
// cannot be answered is dropped, because the peer will retry. So is a READ without a record.
func (q *qp) duplicate(p *packet, op uint8) {
	q.nic.stats.Duplicates++
	switch op {
	case roce.OpReadRequest:
		last := p.PSN.Add(q.responsePackets(p.DMALen) - 1)
		if p.DMALen <= maxMsgSize && last.Sub(q.epsn) < 0 && !q.isPending(p.PSN) && (q.core.traits.immediate || q.wasServed(p)) && q.readable(p) {
			q.addResponse(pendingResponse{duplicate: true, rkey: p.RKey, psn: p.PSN, va: p.VA, length: p.DMALen})
		}
	case roce.OpCompareSwap, roce.OpFetchAdd:
		for i := range q.replay { // newest first: PSNs wrap
			r := &q.replay[(q.replayNext+len(q.replay)-1-i)%len(q.replay)]
			if r.valid && r.psn == p.PSN {
				q.addResponse(pendingResponse{duplicate: true, atomic: true, psn: p.PSN, original: r.original})
				return
			}
		}
	default:
		q.oweAck()
	}
}

// isPending reports whether the response with a PSN is still queued. The peer may have retried because a
// device is slow.
func (q *qp) isPending(psn roce.PSN) bool {
	for i := q.responses.Head(); i != q.responses.Tail(); i++ {
		j := q.responses.At(i)
		if d := psn.Sub(j.psn); !j.atomic && d >= 0 && uint32(d) < q.responsePackets(j.length-j.off) {
			return true
		}
	}
	return false
}

// respondBudget bounds the response packets of a QP per call over UDP. A peer other than softnic may
// READ a gigabyte with one request, which must not block other traffic for that long. The bound exceeds
// all outstanding READs of a softnic.
const respondBudget = 2 * maxRdAtomic * udpReadAhead

// respond sends responses until the queue is empty or the link is full. It reports whether the QP can
// continue with its own requests.
func (q *qp) respond() bool {
	for sent := 0; q.responses.Len() > 0; sent++ {
		if !q.room() {
			return false
		}
		if sent == respondBudget && q.core.udpNIC != nil {
			q.core.lists.later.push(q)
			return false
		}
		j := q.responses.Front()
		if q.landings.pendingBefore(j.after) {
			return false
		}
		p, again := q.newResponse(j.psn), j.duplicate
		if j.atomic {
			p.noPayload()
			p.Opcode, p.Original = roce.RC|roce.OpAtomicAck, j.original
			q.endResponse(j)
		} else if nak, due := q.readPacket(j, p); due {
			return false
		} else if again && nak == roce.NAKRemoteAccess {
			q.endResponse(j) // the peer may have completed the READ before its region was closed
			continue
		} else if nak != 0 {
			q.dropResponses()
			q.epsn, q.unackedPSNs = j.psn, 0 // later requests are not served
			q.refuse(nak, verbs.StatusSuccess)
			return false
		}
		if again {
			q.countRetransmit()
		}
		q.emit(p)
	}
	if q.ackDue || q.nakSyndrome != 0 {
		q.core.lists.acks.push(q)
	}
	return true
}

// readPacket makes p the next packet of a READ response. It returns the NAK to send instead if the
// memory has been deregistered or cannot be copied, otherwise 0. due is set while the device still
// fetches the data.
func (q *qp) readPacket(j *pendingResponse, p *packet) (nak uint8, due bool) {
	n := min(j.length-j.off, q.seg)
	if n == 0 {
		p.noPayload()
	} else {
		src, ok := q.nic.mrs.get(j.rkey).find(q.pd, j.va+uint64(j.off), n, verbs.AccessRemoteRead)
		if !ok {
			m := q.nic.mrs.get(j.rkey)
			from, ok := m.onDevice(q.pd, j.va+uint64(j.off), n, verbs.AccessRemoteRead)
			if !ok {
				return roce.NAKRemoteAccess, false
			}
			s := fetchRefused
			if m.stager != nil {
				src, s = q.prefetching().responses.bytes(m, q.responses.Head(), j.off, j.off, n)
			}
			if s == fetchPending {
				return 0, true
			}
			if s == fetchRefused {
				src = q.nic.stage.room(n)
				if m.load(src, from) != verbs.StatusSuccess {
					return roce.NAKRemoteOperation, false
				}
			}
		}
		if q.nic.observe != nil {
			q.touch(AccessRemoteRead, j.va+uint64(j.off), n)
		}
		p.setPayload(src)
	}
	first, last := j.off == 0, j.off+n == j.length
	p.Opcode = roce.RC | readOpcodes[index(first)][index(last)]
	j.off += n
	j.psn = j.psn.Add(1)
	if last {
		q.endResponse(j)
	}
	return 0, false
}

// endResponse removes the oldest response, j.
func (q *qp) endResponse(j *pendingResponse) {
	q.responseCount[index(j.duplicate)]--
	q.responses.Drop(1)
}

// dropResponses removes all responses.
func (q *qp) dropResponses() { q.dropResponsesFrom(q.responses.Head()) }

// dropResponsesAfter removes the responses to requests that arrived after a landing.
func (q *qp) dropResponsesAfter(landing uint32) {
	seq := q.responses.Head()
	for seq != q.responses.Tail() && int32(q.responses.At(seq).after-landing) <= 0 {
		seq++
	}
	q.dropResponsesFrom(seq)
}

// dropResponsesFrom removes the responses from number seq on.
func (q *qp) dropResponsesFrom(seq uint32) {
	if q.prefetch != nil {
		q.prefetch.responses.drop(0)
	}
	for i := seq; i != q.responses.Tail(); i++ {
		q.responseCount[index(q.responses.At(i).duplicate)]--
	}
	q.responses.Truncate(seq)
}
