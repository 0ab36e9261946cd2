package softnic

import (
	"errors"
	"slices"

	"ibverbx/verbs"
)

// A region on a device is lent with a handle. The requester's device opens it when it is first needed, and then copies directly between the two
// processes, under the same grants as host memory: neighbor.in is odd until the copies are in place. Packets, with staging, do
// whatever no device can do.

// farMemory is memory on a device of the peer.
type farMemory struct {
	handle []byte
	// mem is the memory as a device of this side has it, nil if it is not open.
	mem *verbs.Memory
	// tried is core.devices at the last attempt to open it. The next attempt waits for another device.
	tried uint32
}

// open opens n bytes on one of the devices of this side, on first if it can and if that is not nil. It reports whether they are open.
func (f *farMemory) open(c *core, first verbs.MemoryDevice, n uint64) bool {
	if f.mem != nil {
		return true
	}
	if f.tried == c.devices {
		return false
	}
	f.tried = c.devices
	if first != nil && f.openOn(first, n) {
		return true
	}
	return slices.ContainsFunc(c.stagers, func(d *stager) bool { return d.device != first && f.openOn(d.device, n) })
}

func (f *farMemory) openOn(d verbs.MemoryDevice, n uint64) bool {
	mem, err := d.OpenMemory(f.handle)
	if err != nil {
		return false
	}
	f.mem = mem
	if uint64(mem.Len()) != n { // the peer has named another size
		_ = mem.Free() // nothing has used it
		f.mem = nil
	}
	return f.mem != nil
}

// closeFar closes memory of the peer, if it is open. f may be nil.
func (s *shmFiles) closeFar(f *farMemory) {
	if f != nil && f.mem != nil {
		s.stuck = append(s.stuck, f.mem)
		f.mem, f.tried = nil, 0
		s.closeStuck()
	}
}

// closeStuck closes what can be closed. A lost device has nothing to close.
func (s *shmFiles) closeStuck() {
	s.stuck = slices.DeleteFunc(s.stuck, func(m *verbs.Memory) bool {
		err := m.Free()
		return err == nil || errors.Is(err, verbs.ErrDeviceFatal)
	})
}

// closeOn closes all memory of the peer that is open on a device, or on any if that is nil.
func (s *shmFiles) closeOn(d verbs.MemoryDevice) {
	for i := range s.regions {
		if f := s.regions[i].far; f != nil && f.mem != nil && (d == nil || f.mem.Device() == d) {
			s.closeFar(f)
		}
	}
	s.closeStuck()
}

// fromDevice reports whether bytes of this side of a request are on a device.
func (q *qp) fromDevice(w *sendWQE) bool {
	return w.flags&verbs.SendInline == 0 && q.usesDevice(w.sge[:w.numSGE])
}

// opened reports whether a device reaches both ends of a request. If not, packets do it.
func (b *neighbor) opened(q *qp, w *sendWQE, r *shmRegion) bool {
	switch {
	case r.refused:
		return false
	case r.far == nil:
		return r.bytes != nil && w.length >= shmDevice
	case r.far.mem != nil:
		return true
	}
	var first verbs.MemoryDevice
	if q.fromDevice(w) {
		for k := 0; first == nil; k++ {
			first = q.nic.mrs.get(w.sge[k].LKey).device
		}
	}
	return r.far.open(q.core, first, r.size)
}

// shmRun is requests of one QP that a device does together: its copies are synchronized once.
type shmRun struct {
	copies copies
	// busy says that copies are queued. Then those of first up to end, before sqNext or at it, wait for them.
	busy       bool
	first, end uint32
	// moved is path.moved when the first one was queued.
	moved uint32
}

// queue queues the copies of n bytes of request next from off on. It reports false if packets must find out what is wrong with the request.
func (b *neighbor) queue(q *qp, w *sendWQE, r *shmRegion, off, n uint32) bool {
	u := &b.run
	near, far := &u.copies.local, &u.copies.remote
	near.reset()
	far.reset()
	read := w.opcode == verbs.OpRDMARead
	if !near.part(q, w, off, n, read) {
		return false
	}
	at := w.remoteAddr - r.addr + uint64(off)
	if r.far != nil {
		p := far.next(n)
		p.bytes, p.device, p.addr = nil, r.far.mem.Device(), r.far.mem.Addr()+at
	} else {
		far.host(r.bytes[at:][:n])
	}
	if !u.busy {
		u.busy, u.first, u.moved, u.copies.failed = true, q.sqNext, q.path.moved, false
	}
	u.end = q.sqNext + 1
	if read {
		u.copies.move(near, far)
	} else {
		u.copies.move(far, near)
	}
	return true
}

// part adds n bytes of request next from off on. It reports false if an SGE names memory that it may not.
func (o *operand) part(q *qp, w *sendWQE, off, n uint32, read bool) bool {
	if w.flags&verbs.SendInline != 0 {
		o.host(q.inlineOf(q.sqNext)[off:][:n])
		return true
	}
	need := verbs.Access(0)
	if read {
		need = verbs.AccessLocalWrite
	}
	return o.take(q, q.sges(q.sqNext), off, n, need)
}

// finish does the copies that are queued, and completes the requests before sqNext. If the device has failed, the requests are as if they had
// not begun. Packets do them once no copy is under way. If the device cannot tell, the first of them fails.
func (b *neighbor) finish(q *qp) transfer {
	u := &b.run
	if !u.busy {
		return transferDone
	}
	u.busy = false
	if u.copies.flush() {
		for q.sqHead != q.sqNext {
			q.nic.stats.Direct++
			q.completeSend(q.wqe(q.sqHead), verbs.StatusSuccess)
		}
		return transferDone
	}
	q.sqMax -= q.sqNext - u.first
	q.sqNext, q.path.moved = u.first, u.moved
	for seq := u.first; seq != u.end; seq++ {
		if r := b.files.under(q.wqe(seq).rkey); r != nil {
			r.refused = true
		}
	}
	if !u.copies.ended() {
		q.failSend(verbs.StatusGeneralErr)
		return transferWait
	}
	return transferAgain
}
