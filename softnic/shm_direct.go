package softnic

import (
	"runtime"

	"ibverbx/internal/ntcopy"
	"ibverbx/verbs"
)

const (
	// shmPatience is the length from which a request that could be done directly waits until those before it
	// are acknowledged. A shorter one travels as packets.
	shmPatience = 2048
	// nearPatience is shmPatience over UDP, where packets carry as much while an acknowledgement is under way. Requests in a row add up.
	nearPatience = 64 << 10
	// nearLine is the minimum number of bytes that a request counts toward nearPatience if it could be a line.
	nearLine = 4 << 10
	// shmKernel is the length from which the kernel copies to memory without a file. Shorter requests are faster through
	// the ring, which needs no system call.
	shmKernel = 16 << 10
	// shmDevice is the length from which a device copies to and from host memory of the peer, which is not pinned for it. Shorter
	// requests are as fast or faster through staging buffers.
	shmDevice = 64 << 10
	// shmStretch is how many bytes are moved before the peer may take back a grant and other QPs of the NIC have their turn.
	shmStretch = 1 << 20
	// deviceShift is the logarithm of how much more a device copies in a turn, because each turn needs a synchronization.
	deviceShift = 4
)

// transfer is what became of a request.
type transfer uint8

const (
	transferPackets transfer = iota // it needs packets
	transferWait                    // it must wait
	transferDone
	transferAgain // what a device was to copy is to be done again, in another way
)

// direct does the next requests of q on the peer's memory as long as they are WRITEs and READs that need no packets. It
// does what packets would do, with the same checks, by what the peer has granted. The requests before them
// must be acknowledged: they may still fail, and then nothing behind them may happen. Requests that can be lines are sent on the
// way. After shmStretch bytes the rest waits for another turn, and if packets must do it, they do all of the request (mayStart).
func (b *neighbor) direct(q *qp) transfer {
	n := q.nic
	done := q.path.moved // of the first request
	if q.typ != verbs.RC || (q.state != verbs.StateRTS && (q.state != verbs.StateSQD || done == 0)) {
		return transferPackets
	}
	if b.gone.Load() && b.at.IsValid() {
		return transferPackets
	}
	if b.gone.Load() {
		if q.sqHead == q.sqNext { // else lost is about to end it
			q.failSend(verbs.StatusRetryExcErr)
		}
		return transferWait
	}
	if q.sqNext != q.sqMax || !n.portUp || n.observe != nil { // a request that has been sent keeps its PSNs
		return transferPackets
	}
	b.in.Add(1)
	p := b.permitted(q)
	did, left := transferPackets, uint32(shmStretch)
	for q.sqNext != q.sqTail && (q.state == verbs.StateRTS || done > 0) {
		w := q.wqe(q.sqNext)
		r, shift, t := b.target(q, w, &p)
		part := w.length - done
		if r != nil {
			part = min(part, left<<shift)
			t = b.directly(q, w, &p, r, done, part, shift > 0)
		}
		if t == transferWait || t == transferAgain || did == transferPackets {
			did = t
		}
		if t != transferDone || b.run.busy && b.run.copies.failed {
			break
		}
		if left -= min(left, (part+1<<shift-1)>>shift); done+part < w.length {
			if did = b.finish(q); did == transferDone {
				q.path.moved = done + part
				q.core.lists.later.push(q)
				did = transferWait
			}
			break
		}
		done, q.path.moved, b.used = 0, 0, true
		q.sqNext++
		q.sqMax++
		if !b.run.busy {
			q.nic.stats.Direct += uint64(index(r != nil))
			q.completeSend(w, verbs.StatusSuccess)
		}
	}
	if t := b.finish(q); t != transferDone {
		did = t
	}
	b.leave()
	if did == transferAgain {
		did = transferDone // the caller looks at the next request, which is the first one of those
	}
	return did
}

// unplaced reports whether a request does not place bytes in the peer's memory, other than in a receive.
func (w *sendWQE) unplaced() bool {
	return w.opcode == verbs.OpSend || w.opcode == verbs.OpSendWithImm || (w.opcode == verbs.OpRDMAWriteWithImm && w.length == 0)
}

// finishTurns goes on with what q moves directly, with a turn for others after each of its own. The core's lock is held, and released in
// between. A helper would do the same, but every turn would wake it.
func (q *qp) finishTurns() {
	c := q.core
	c.turns++
	for q.lists&onLater != 0 && q.path != nil && q.path.near != nil && !q.closed {
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
		c.settle()
	}
	if c.turns--; !c.lists.later.empty() {
		c.helper.wakeBy(c.at)
	}
}

// target returns the peer's region of a request that can be executed directly now. For other requests r is nil and t is the
// result; some of them have been sent as lines. A device copies shmStretch<<shift bytes in a turn, and its side of the region is open.
func (b *neighbor) target(q *qp, w *sendWQE, p *permit) (r *shmRegion, shift uint, t transfer) {
	var need verbs.Access
	missed := q.path.missed
	if q.path.missed = 0; w.unplaced() {
		return nil, 0, b.line(q, w, p, missed)
	}
	switch w.opcode {
	case verbs.OpRDMAWrite:
		need = verbs.AccessRemoteWrite
	case verbs.OpRDMAWriteWithImm:
		if b.at.IsValid() && (b.ring == nil || !p.credits()) {
			return nil, 0, transferPackets // a datagram cannot say that the payload is at its place
		}
		need = verbs.AccessRemoteWrite
	case verbs.OpRDMARead:
		need = verbs.AccessRemoteRead
	default:
		return nil, 0, transferPackets
	}
	if w.length == 0 || w.placed || p.access&need == 0 || w.numSGE > verbs.MaxSGE {
		return nil, 0, transferPackets
	}
	if r = b.reach(p.domain, w.rkey, w.remoteAddr, w.length, need); r == nil {
		b.ask(w.rkey)
		return nil, 0, transferPackets
	}
	device := r.far != nil || q.fromDevice(w)
	switch {
	case device && !b.opened(q, w, r):
		return nil, 0, transferPackets
	case !device && r.bytes == nil && (b.process == nil || w.length < shmKernel):
		return nil, 0, transferPackets
	case (q.sqHead != q.sqNext && !b.run.busy) || q.landings.oldest(asRequester) != nil:
		return nil, 0, b.behind(q, w.length, missed, device || w.opcode == verbs.OpRDMAWriteWithImm && p.credits() && b.ring.packets != nil)
	case w.opcode == verbs.OpRDMAWriteWithImm && b.at.IsValid() && (!p.credit(q) || !b.ring.room(q)):
		return nil, 0, transferPackets
	case w.opcode == verbs.OpRDMAWriteWithImm && p.credit(q) && (!b.ring.room(q) || b.gone.Load()):
		return nil, 0, transferWait
	case need == verbs.AccessRemoteRead && b.ring != nil && b.ring.unplacedSend():
		return nil, 0, transferPackets // behind it in the ring
	case need == verbs.AccessRemoteRead && (q.attr.MaxRdAtomic == 0 || !q.writable()):
		return nil, 0, transferPackets
	case device:
		return r, deviceShift, transferDone
	}
	return r, 0, transferDone
}

// directly does n bytes of a request from off on. It takes no PSN. What a device copies is done when finish returns. At the end of a WRITE
// with an immediate it sends a line, or a packet without the payload if the peer has not given a credit.
func (b *neighbor) directly(q *qp, w *sendWQE, p *permit, r *shmRegion, off, n uint32, device bool) transfer {
	if n == 0 {
		return transferDone // it has no more turn
	}
	if !device || w.flags&verbs.SendFence != 0 { // a READ before a fence is not done again
		if t := b.finish(q); t != transferDone {
			return t
		}
	}
	if device {
		if !b.queue(q, w, r, off, n) {
			return transferPackets
		}
	} else {
		s := &q.nic.scratch
		if !q.gather(w, off, n, s) {
			return transferWait // the request has failed
		}
		if !b.move(r, w.remoteAddr+uint64(off), s.segs[:s.numSegs], w.opcode == verbs.OpRDMARead) {
			return transferPackets
		}
	}
	if w.opcode == verbs.OpRDMAWriteWithImm && off+n == w.length {
		if t := b.finish(q); t != transferDone {
			return t
		}
		if b.ring != nil && p.credit(q) {
			q.nic.scratch.noPayload()
			b.ring.notifyOf(q, w, &q.nic.scratch)
			return transferDone
		}
		if b.at.IsValid() {
			return transferPackets // they carry all of it
		}
		w.placed = true
		q.nic.stats.Direct++
		return transferPackets
	}
	return transferDone
}

// behind decides about a request of length bytes that could be done directly once those before it are acknowledged. missed is the path's
// before the request. One that needs a device waits in any case: packets would take longer. So does one that may become a line: see line.
func (b *neighbor) behind(q *qp, length, missed uint32, wait bool) transfer {
	long := length >= shmPatience
	if b.at.IsValid() {
		q.path.missed = min(missed+min(length, nearPatience), nearPatience)
		long = q.path.missed == nearPatience
	}
	if long || wait {
		return transferWait
	}
	return transferPackets
}

// move copies pieces of this side's memory to the peer's region at addr, or the other way. It reports false if the kernel refuses:
// then some bytes may have been copied.
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
