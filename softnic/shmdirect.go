package softnic

import (
	"runtime"

	"ibverbx/internal/bulk"
	"ibverbx/verbs"
)

const (
	// shmPatience is the length from which a request that could be done directly waits until those before it
	// are acknowledged. A shorter one travels as packets.
	shmPatience = 2048
	// nearPatience is shmPatience over UDP, where packets carry as much while an acknowledgement is under way. Requests in a row add up.
	nearPatience = 64 << 10
	// shmKernel is the length from which the kernel copies to memory without a file. Shorter requests are faster through
	// the ring, which needs no system call.
	shmKernel = 16 << 10
	// shmStretch is how many bytes are moved before the peer may take back a grant and other QPs of the NIC have their turn.
	shmStretch = 1 << 20
)

// transfer is what became of a request.
type transfer uint8

const (
	transferPackets transfer = iota // it needs packets
	transferWait                    // it must wait
	transferDone
)

// direct does the next requests of q on the peer's memory as long as they are WRITEs and READs that need no packets. It
// does what packets would do, with the same checks, by what the peer has granted. The requests before them
// must be acknowledged: they may still fail, and then nothing behind them may happen. A WRITE with an immediate still needs
// a packet, without payload. After shmStretch bytes the rest waits for another turn, and if packets must do it, they do all of the request (mayStart).
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
	access, domain := b.granted(q)
	did, left := transferPackets, uint32(shmStretch)
	for q.sqNext != q.sqTail && (q.state == verbs.StateRTS || done > 0) {
		w := q.wqe(q.sqNext)
		part := min(w.length-done, left)
		t := b.directly(q, w, done, part, access, domain)
		if t == transferWait || did == transferPackets {
			did = t
		}
		if t != transferDone {
			break
		}
		if left -= part; done+part < w.length {
			q.path.moved = done + part
			q.core.lists.later.push(q)
			did = transferWait
			break
		}
		q.nic.stats.Direct++
		done, q.path.moved, b.used = 0, 0, true
		q.sqNext++
		q.sqMax++
		q.completeSend(w, verbs.StatusSuccess)
	}
	b.leave()
	return did
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

// directly does n bytes of a request from off on. It takes no PSN.
func (b *neighbor) directly(q *qp, w *sendWQE, off, n uint32, access verbs.Access, domain uint32) transfer {
	var need verbs.Access
	missed := q.path.missed
	q.path.missed = 0
	switch w.opcode {
	case verbs.OpRDMAWrite:
		need = verbs.AccessRemoteWrite
	case verbs.OpRDMAWriteWithImm:
		if b.at.IsValid() {
			return transferPackets // a datagram cannot say that the payload is at its place
		}
		need = verbs.AccessRemoteWrite
	case verbs.OpRDMARead:
		need = verbs.AccessRemoteRead
	default:
		return transferPackets
	}
	if w.length == 0 || access&need == 0 || w.numSGE > verbs.MaxSGE || q.usesDevice(w.sge[:w.numSGE]) {
		return transferPackets
	}
	r := b.reach(domain, w.rkey, w.remoteAddr, w.length, need)
	switch {
	case r == nil || (r.bytes == nil && (b.process == nil || w.length < shmKernel)):
		return transferPackets
	case q.sqHead != q.sqNext || q.dock.unplaced(ofOwn) != nil:
		return b.behind(q, w, missed)
	}
	if need == verbs.AccessRemoteRead && (q.attr.MaxRdAtomic == 0 || !q.writable()) {
		return transferPackets
	}
	if n == 0 {
		return transferDone // it has no more turn
	}
	p := &q.nic.scratch
	if !q.gather(w, off, n, p) {
		return transferWait // the request has failed
	}
	if !b.move(r, w.remoteAddr+uint64(off), p.segs[:p.numSegs], need == verbs.AccessRemoteRead) {
		return transferPackets
	}
	if w.placed = w.opcode == verbs.OpRDMAWriteWithImm && off+n == w.length; w.placed {
		q.nic.stats.Direct++
		return transferPackets
	}
	return transferDone
}

// behind decides about a request that could be done directly once those before it are acknowledged. missed is the path's before the
// request.
func (b *neighbor) behind(q *qp, w *sendWQE, missed uint32) transfer {
	long := w.length >= shmPatience
	if b.at.IsValid() {
		q.path.missed = min(missed+w.length, nearPatience)
		long = q.path.missed == nearPatience
	}
	if long {
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
			bulk.Copy(piece, there)
		} else {
			bulk.Copy(there, piece)
		}
		there = there[len(piece):]
	}
	return true
}
