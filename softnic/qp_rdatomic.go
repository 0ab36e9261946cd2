package softnic

import (
	"sync/atomic"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// job is the rest of the answer to a READ or an atomic.
type job struct {
	atomic bool
	// again says that the request was a duplicate.
	again bool
	rkey  uint32
	// psn is that of the next packet.
	psn    roce.PSN
	va     uint64
	length uint32
	// off is how many bytes have been sent.
	off uint32
	// original is the value that an atomic found.
	original uint64
	// after is the number of the first landing that started after the request arrived.
	after uint32
}

// atomicResult remembers what an atomic returned.
type atomicResult struct {
	valid    bool
	psn      roce.PSN
	original uint64
}

// servedRead remembers a READ that was served. Its answer may be asked for again, from any of its packets
// on.
type servedRead struct {
	valid  bool
	rkey   uint32
	psn    roce.PSN
	length uint32
	va     uint64
}

// wasServed reports whether a duplicate READ repeats one of the last that were served, or the end of one. A
// READ with another key or address would be free to try keys: a wrong one ends nothing. In memory nobody
// forges packets, and gates serve READs without a record.
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

// addJob queues an answer and returns it, or nil if there is no room. New requests and duplicates have
// separate limits, so that a network that repeats packets does not use up what a peer was
// promised.
func (q *qp) addJob(j job) *job {
	kin := &q.jobCount[index(j.again)]
	if *kin >= q.attr.MaxDestRdAtomic {
		return nil
	}
	*kin++
	j.after = q.landings.nextSeq()
	q.jobs.Push(j)
	q.core.lists.tx.push(q)
	return q.jobs.At(q.jobs.Tail() - 1)
}

// responsePackets returns how many packets answer a READ.
func (q *qp) responsePackets(length uint32) uint32 {
	if length == 0 {
		return 1
	}
	return (length-1)/q.seg + 1
}

// serveRead begins to answer a new READ. The data is read when it is sent. The peer must expect
// that: without a fence, a READ is not ordered before later WRITEs.
func (q *qp) serveRead(p *packet) {
	if q.attr.Access&verbs.AccessRemoteRead == 0 {
		q.refuse(roce.NAKInvalidRequest, verbs.StatusSuccess)
		return
	}
	if !q.readable(p) {
		q.refuse(roce.NAKRemoteAccess, verbs.StatusSuccess)
		return
	}
	j := job{rkey: p.RKey, psn: p.PSN, va: p.VA, length: p.DMALen}
	if p.DMALen > maxMsgSize || q.addJob(j) == nil {
		q.refuse(roce.NAKInvalidRequest, verbs.StatusSuccess) // more than the QP has resources for
		return
	}
	q.answered[q.answeredNext] = servedRead{valid: true, rkey: p.RKey, psn: p.PSN, length: p.DMALen, va: p.VA}
	q.answeredNext = (q.answeredNext + 1) % len(q.answered)
	q.served(q.responsePackets(p.DMALen))
}

// readable reports whether the memory that a READ names may be read. A READ of no bytes does not
// check its key.
func (q *qp) readable(p *packet) bool {
	if p.DMALen == 0 {
		return true
	}
	return q.nic.mrs.get(p.RKey).holds(q.pd, p.VA, p.DMALen, verbs.AccessRemoteRead)
}

// serveAtomic executes a new atomic and remembers its result.
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
	j := q.addJob(job{atomic: true, psn: p.PSN})
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

// execute does an atomic of the peer on an aligned word of memory, and returns and remembers what it found.
// It is an atomic instruction: pairs in gates of their own, and programs that use sync/atomic, may change
// the same word.
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

// served counts a READ or atomic that was accepted, and its PSNs.
func (q *qp) served(psns uint32) {
	q.filled()
	q.epsn = q.epsn.Add(psns)
	q.asked = min(q.asked+psns, maxWindow-1)
	q.msn++
}

// duplicate answers a request that was served before. A SEND or WRITE is acknowledged again, a
// READ read again, and an atomic answered from the replay ring (IBTA 1.4 section 9.7.4.1.5). A
// request that cannot be answered is dropped: the peer will ask again. So is a READ that was not served.
func (q *qp) duplicate(p *packet, op uint8) {
	q.nic.stats.Duplicates++
	switch op {
	case roce.OpReadRequest:
		last := p.PSN.Add(q.responsePackets(p.DMALen) - 1)
		if p.DMALen <= maxMsgSize && last.Sub(q.epsn) < 0 && !q.answers(p.PSN) && (q.core.traits.immediate || q.wasServed(p)) && q.readable(p) {
			q.addJob(job{again: true, rkey: p.RKey, psn: p.PSN, va: p.VA, length: p.DMALen})
		}
	case roce.OpCompareSwap, roce.OpFetchAdd:
		for i := range q.replay { // newest first: PSNs wrap
			r := &q.replay[(q.replayNext+len(q.replay)-1-i)%len(q.replay)]
			if r.valid && r.psn == p.PSN {
				q.addJob(job{again: true, atomic: true, psn: p.PSN, original: r.original})
				return
			}
		}
	default:
		q.owe()
	}
}

// answers reports whether the answer with a PSN is still to be sent. The peer may have asked again because the bytes take long to come from a
// device.
func (q *qp) answers(psn roce.PSN) bool {
	for i := q.jobs.Head(); i != q.jobs.Tail(); i++ {
		j := q.jobs.At(i)
		if d := psn.Sub(j.psn); !j.atomic && d >= 0 && uint32(d) < q.responsePackets(j.length-j.off) {
			return true
		}
	}
	return false
}

// respondBudget bounds the packets of answers that a QP sends in one call over UDP. A peer other
// than softnic may READ a gigabyte with one request, which must not block other traffic for that
// long. It is more than a softnic asks for at a time.
const respondBudget = 2 * maxRdAtomic * udpReadAhead

// respond sends answers until all are sent or the link has no room. It reports whether the QP can
// go on to its own requests.
func (q *qp) respond() bool {
	for sent := 0; q.jobs.Len() > 0; sent++ {
		if !q.room() {
			return false
		}
		if sent == respondBudget && q.core.udpNIC != nil {
			q.core.lists.later.push(q)
			return false
		}
		j := q.jobs.Front()
		if q.landings.pendingBefore(j.after) {
			return false
		}
		p, again := q.answer(j.psn), j.again
		if j.atomic {
			p.noPayload()
			p.Opcode, p.Original = roce.RC|roce.OpAtomicAck, j.original
			q.endJob(j)
		} else if nak, due := q.readPacket(j, p); due {
			return false
		} else if nak != 0 {
			q.dropJobs()
			q.epsn, q.asked = j.psn, 0 // later requests are not served
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

// readPacket makes p the next packet of a READ answer. It returns the NAK to send instead if the memory has been
// deregistered meanwhile or cannot be copied, otherwise 0. due says that the bytes are still to come from their device.
func (q *qp) readPacket(j *job, p *packet) (nak uint8, due bool) {
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
				src, s = q.prefetching().responses.bytes(m, q.jobs.Head(), j.off, j.off, n)
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
		q.endJob(j)
	}
	return 0, false
}

// endJob takes the oldest answer, j, out of the queue.
func (q *qp) endJob(j *job) {
	q.jobCount[index(j.again)]--
	q.jobs.Drop(1)
}

// dropJobs discards all responses.
func (q *qp) dropJobs() { q.dropJobsFrom(q.jobs.Head()) }

// dropJobsAfter discards the responses to requests that arrived after a landing.
func (q *qp) dropJobsAfter(landing uint32) {
	seq := q.jobs.Head()
	for seq != q.jobs.Tail() && int32(q.jobs.At(seq).after-landing) <= 0 {
		seq++
	}
	q.dropJobsFrom(seq)
}

// dropJobsFrom discards the responses from number seq on.
func (q *qp) dropJobsFrom(seq uint32) {
	if q.prefetch != nil {
		q.prefetch.responses.drop(0)
	}
	for i := seq; i != q.jobs.Tail(); i++ {
		q.jobCount[index(q.jobs.At(i).again)]--
	}
	q.jobs.Truncate(seq)
}
