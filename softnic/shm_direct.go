package softnic

import (
	"runtime"

	"ibverbx/internal/ntcopy"
	"ibverbx/verbs"
)

const (
	// waitMin is the minimum length of a direct request that waits for the ACKs of earlier
	// requests. A shorter one travels as packets instead.
	waitMin = 2048
	// udpWaitMin is waitMin over UDP, where packets carry as much within one round trip.
	// Consecutive requests add up.
	udpWaitMin = 64 << 10
	// lineWaitBytes is the minimum number of bytes that a potential line counts toward udpWaitMin.
	lineWaitBytes = 4 << 10
	// shmKernelMin is the minimum length of a copy by the kernel, for memory without a file. Shorter
	// requests are faster through the ring, which needs no system call.
	shmKernelMin = 16 << 10
	// shmDeviceMin is the minimum length of a copy between a device and the peer's host memory, which is
	// not pinned. Shorter requests are as fast or faster through staging buffers.
	shmDeviceMin = 64 << 10
	// directQuantum is the number of bytes per turn. Between turns the peer may revoke a grant and other
	// QPs of the NIC proceed.
	directQuantum = 1 << 20
	// deviceQuantumShift lengthens turns on a device to directQuantum<<deviceQuantumShift bytes, because each
	// one needs a synchronization.
	deviceQuantumShift = 4
)

// directResult is the outcome of an attempt at a direct request.
type directResult uint8

const (
	directPackets directResult = iota // it needs packets
	directWait                        // it must wait
	directDone
	directAgain // its device copies failed: retry another way
)

// direct executes the next requests of q in the peer's memory, up to the first that needs packets. It
// applies the checks of the packet path, under the peer's grants. Earlier requests must be acknowledged
// first: if one of them failed, later ones must not take effect. Requests that qualify as lines are
// sent as lines. After directQuantum bytes the rest waits for another turn. If it then needs packets, they
// carry the whole request (mayStart).
func (b *neighbor) direct(q *qp) directResult {
	n := q.nic
	done := q.path.movedBytes // bytes moved of the first request
	if q.typ != verbs.RC || (q.state != verbs.StateRTS && (q.state != verbs.StateSQD || done == 0)) {
		return directPackets
	}
	if b.gone.Load() && b.at.IsValid() {
		return directPackets
	}
	if b.gone.Load() {
		if q.sqHead == q.sqNext { // otherwise peerLost is about to fail it
			q.failSend(verbs.StatusRetryExcErr)
		}
		return directWait
	}
	if q.sqNext != q.sqMax || !n.portUp || n.observe != nil { // a request keeps its PSNs once sent
		return directPackets
	}
	b.epoch.Add(1)
	p := b.readPermit(q)
	did, left := directPackets, uint32(directQuantum)
	for q.sqNext != q.sqTail && (q.state == verbs.StateRTS || done > 0) {
		w := q.wqe(q.sqNext)
		r, shift, t := b.directTarget(q, w, &p)
		part := w.length - done
		if r != nil {
			part = min(part, left<<shift)
			t = b.executePart(q, w, &p, r, done, part, shift > 0)
		}
		if t == directWait || t == directAgain || did == directPackets {
			did = t
		}
		if t != directDone || b.batch.busy && b.batch.copies.failed {
			break
		}
		if left -= min(left, (part+1<<shift-1)>>shift); done+part < w.length {
			if did = b.finishBatch(q); did == directDone {
				q.path.movedBytes = done + part
				q.core.lists.later.push(q)
				did = directWait
			}
			break
		}
		done, q.path.movedBytes, b.used = 0, 0, true
		q.sqNext++
		q.sqMax++
		if !b.batch.busy {
			q.nic.stats.Direct += uint64(index(r != nil))
			q.completeSend(w, verbs.StatusSuccess)
		}
	}
	if t := b.finishBatch(q); t != directDone {
		did = t
	}
	b.endAccess()
	if did == directAgain {
		did = directDone // the caller continues with the first failed one
	}
	return did
}

// targetsReceive reports whether a request is a SEND or an empty WRITE_WITH_IMM, which at most write to a
// receive.
func (w *sendWQE) targetsReceive() bool {
	return w.opcode == verbs.OpSend || w.opcode == verbs.OpSendWithImm || (w.opcode == verbs.OpRDMAWriteWithImm && w.length == 0)
}

// finishDirect continues the direct requests of q and yields to other QPs after each turn. The caller
// holds the core's lock, which is released between turns. The helper would do the same, but each turn
// would wake it.
func (q *qp) finishDirect() {
	c := q.core
	c.turns++
	for q.lists&onLater != 0 && q.path != nil && q.path.neighbor != nil && !q.closed {
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
		c.settle()
	}
	if c.turns--; !c.lists.later.empty() {
		c.helper.wakeBy(c.at)
	}
}

// directTarget returns the peer's region of a request that can be executed directly now. A device then copies
// up to directQuantum<<shift bytes per turn, and the region is open on it. For other requests r is nil and
// t is the result; some of them have been sent as lines.
func (b *neighbor) directTarget(q *qp, w *sendWQE, p *permit) (r *shmRegion, shift uint, t directResult) {
	var need verbs.Access
	missed := q.path.missedBytes
	if q.path.missedBytes = 0; w.targetsReceive() {
		return nil, 0, b.sendLine(q, w, p, missed)
	}
	switch w.opcode {
	case verbs.OpRDMAWrite:
		need = verbs.AccessRemoteWrite
	case verbs.OpRDMAWriteWithImm:
		if b.at.IsValid() && (b.ring == nil || !p.usesCredits()) {
			return nil, 0, directPackets // a UDP packet cannot state that its payload is in place
		}
		need = verbs.AccessRemoteWrite
	case verbs.OpRDMARead:
		need = verbs.AccessRemoteRead
	default:
		return nil, 0, directPackets
	}
	if w.length == 0 || w.placed || p.access&need == 0 || w.numSGE > verbs.MaxSGE {
		return nil, 0, directPackets
	}
	if r = b.regionFor(p.domain, w.rkey, w.remoteAddr, w.length, need); r == nil {
		b.requestRegion(w.rkey)
		return nil, 0, directPackets
	}
	device := r.deviceMem != nil || q.fromDevice(w)
	switch {
	case device && !b.deviceReaches(q, w, r):
		return nil, 0, directPackets
	case !device && r.bytes == nil && (b.process == nil || w.length < shmKernelMin):
		return nil, 0, directPackets
	case (q.sqHead != q.sqNext && !b.batch.busy) || q.landings.oldest(asRequester) != nil:
		return nil, 0, b.waitOrPackets(q, w.length, missed, device || w.opcode == verbs.OpRDMAWriteWithImm && p.usesCredits() && b.ring.packets != nil)
	case w.opcode == verbs.OpRDMAWriteWithImm && b.at.IsValid() && (!p.hasCredit(q) || !b.ring.room(q)):
		return nil, 0, directPackets
	case w.opcode == verbs.OpRDMAWriteWithImm && p.hasCredit(q) && (!b.ring.room(q) || b.gone.Load()):
		return nil, 0, directWait
	case need == verbs.AccessRemoteRead && b.ring != nil && b.ring.unplacedSend():
		return nil, 0, directPackets // the READ must follow it in the ring
	case need == verbs.AccessRemoteRead && (q.attr.MaxRdAtomic == 0 || !q.writable()):
		return nil, 0, directPackets
	case device:
		return r, deviceQuantumShift, directDone
	}
	return r, 0, directDone
}

// executePart executes n bytes of a request, at offset off. It uses no PSN. Device copies are complete
// once finishBatch returns. At the end of a WRITE with an immediate it sends a line, or without a credit a
// packet without the payload.
func (b *neighbor) executePart(q *qp, w *sendWQE, p *permit, r *shmRegion, off, n uint32, device bool) directResult {
	if n == 0 {
		return directDone // this turn is used up
	}
	if !device || w.flags&verbs.SendFence != 0 { // a READ before a fence must not be repeated
		if t := b.finishBatch(q); t != directDone {
			return t
		}
	}
	if device {
		if !b.queueCopies(q, w, r, off, n) {
			return directPackets
		}
	} else {
		s := &q.nic.scratch
		if !q.gather(w, off, n, s) {
			return directWait // the request has failed
		}
		if !b.move(r, w.remoteAddr+uint64(off), s.segs[:s.numSegs], w.opcode == verbs.OpRDMARead) {
			return directPackets
		}
	}
	if w.opcode == verbs.OpRDMAWriteWithImm && off+n == w.length {
		if t := b.finishBatch(q); t != directDone {
			return t
		}
		if b.ring != nil && p.hasCredit(q) {
			q.nic.scratch.noPayload()
			b.ring.publishQueued(q, w, &q.nic.scratch)
			return directDone
		}
		if b.at.IsValid() {
			return directPackets // packets carry the whole request
		}
		w.placed = true
		q.nic.stats.Direct++
		return directPackets
	}
	return directDone
}

// waitOrPackets decides whether a request of length bytes that could be executed directly waits for the ACKs
// of earlier ones or travels as packets. missed is the previous value of path.missedBytes. wait forces a
// request to wait: on a device, because packets take longer, and as a potential line (see sendLine).
func (b *neighbor) waitOrPackets(q *qp, length, missed uint32, wait bool) directResult {
	long := length >= waitMin
	if b.at.IsValid() {
		q.path.missedBytes = min(missed+min(length, udpWaitMin), udpWaitMin)
		long = q.path.missedBytes == udpWaitMin
	}
	if long || wait {
		return directWait
	}
	return directPackets
}

// move copies local pieces to the peer's region at addr, or from it for a READ. It returns false if the
// kernel refuses, possibly after copying some bytes.
func (b *neighbor) move(r *shmRegion, addr uint64, pieces [][]byte, read bool) bool {
	switch {
	case r.bytes == nil && read:
		return b.process.Read(addr, pieces)
	case r.bytes == nil:
		return b.process.Write(addr, pieces)
	}
	there := r.bytes[addr-r.addr:]
	for _, piece := range pieces {
		if read {
			ntcopy.Copy(piece, there)
		} else {
			ntcopy.Copy(there, piece)
		}
		there = there[len(piece):]
	}
	return true
}
