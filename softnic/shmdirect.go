package softnic

import (
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
	// shmStretch is how many bytes are moved before the peer may take back a grant.
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
// a packet, without payload.
func (b *neighbor) direct(q *qp) transfer {
	n := q.nic
	if q.typ != verbs.RC || q.state != verbs.StateRTS {
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
	did, moved := transferPackets, uint32(0)
	for q.sqNext != q.sqTail && moved < shmStretch {
		w := q.wqe(q.sqNext)
		t := b.directly(q, w, access, domain)
		if t != transferDone {
			if did == transferPackets {
				did = t
			}
			break
		}
		did, moved = transferDone, moved+w.length
		q.sqNext++
		q.sqMax++
		q.completeSend(w, verbs.StatusSuccess)
	}
	b.leave()
	return did
}

// directly does one request. It takes no PSN.
func (b *neighbor) directly(q *qp, w *sendWQE, access verbs.Access, domain uint32) transfer {
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
	case q.sqHead != q.sqNext:
		return b.behind(q, w, missed)
	}
	if need == verbs.AccessRemoteRead && (q.attr.MaxRdAtomic == 0 || !q.writable()) {
		return transferPackets
	}
	p := &q.nic.scratch
	if !q.gather(w, 0, w.length, p) {
		return transferWait // the request has failed
	}
	if !b.move(r, w.remoteAddr, p.segs[:p.numSegs], need == verbs.AccessRemoteRead) {
		return transferPackets
	}
	q.nic.stats.Direct++
	if w.placed = w.opcode == verbs.OpRDMAWriteWithImm; w.placed {
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
