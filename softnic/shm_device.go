package softnic

import (
	"errors"
	"slices"

	"ibverbx/verbs"
)

// Device regions are shared by handle. The requester's device opens the handle on first use, then
// copies directly between the two processes under the same grants as host memory: neighbor.epoch stays odd
// until the copies are in place. Requests that no device can execute travel as packets, with staging.

// peerDeviceMemory is device memory of the peer.
type peerDeviceMemory struct {
	handle []byte
	// mem is the memory as opened on a local device, nil while it is not open.
	mem *verbs.Memory
	// tried is core.devices at the last attempt to open it. The next attempt waits until core.devices
	// has changed.
	tried uint32
}

// open opens n bytes on a local device, preferably on first unless that is nil. It reports whether the
// memory is open.
func (f *peerDeviceMemory) open(c *core, first verbs.MemoryDevice, n uint64) bool {
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

func (f *peerDeviceMemory) openOn(d verbs.MemoryDevice, n uint64) bool {
	mem, err := d.OpenMemory(f.handle)
	if err != nil {
		return false
	}
	f.mem = mem
	if uint64(mem.Len()) != n { // the peer advertised a different size
		_ = mem.Free() // unused so far
		f.mem = nil
	}
	return f.mem != nil
}

// closeDeviceMem closes device memory of the peer, if open. f may be nil.
func (s *shmFiles) closeDeviceMem(f *peerDeviceMemory) {
	if f != nil && f.mem != nil {
		s.stuck = append(s.stuck, f.mem)
		f.mem, f.tried = nil, 0
		s.closeStuck()
	}
}

// closeStuck closes all memory that its device releases. On a lost device there is nothing left to
// close.
func (s *shmFiles) closeStuck() {
	s.stuck = slices.DeleteFunc(s.stuck, func(m *verbs.Memory) bool {
		err := m.Free()
		return err == nil || errors.Is(err, verbs.ErrDeviceFatal)
	})
}

// closeOn closes all device memory of the peer opened on d, or on any device if d is nil.
func (s *shmFiles) closeOn(d verbs.MemoryDevice) {
	for i := range s.regions {
		if f := s.regions[i].deviceMem; f != nil && f.mem != nil && (d == nil || f.mem.Device() == d) {
			s.closeDeviceMem(f)
		}
	}
	s.closeStuck()
}

// fromDevice reports whether the local data of a request is in device memory.
func (q *qp) fromDevice(w *sendWQE) bool {
	return w.flags&verbs.SendInline == 0 && q.usesDevice(w.sge[:w.numSGE])
}

// deviceReaches reports whether a device can access both ends of a request. Otherwise it travels as packets.
func (b *neighbor) deviceReaches(q *qp, w *sendWQE, r *shmRegion) bool {
	switch {
	case r.refused:
		return false
	case r.deviceMem == nil:
		return r.bytes != nil && w.length >= shmDeviceMin
	case r.deviceMem.mem != nil:
		return true
	}
	var first verbs.MemoryDevice
	if q.fromDevice(w) {
		for k := 0; first == nil; k++ {
			first = q.nic.mrs.get(w.sge[k].LKey).device
		}
	}
	return r.deviceMem.open(q.core, first, r.size)
}

// deviceBatch is a series of requests of one QP whose device copies are synchronized once.
type deviceBatch struct {
	copies copies
	// busy is set while copies are queued, for the requests from first up to, not including, end. The
	// last one may be incomplete.
	busy       bool
	first, end uint32
	// moved is the value of path.movedBytes when the first request was queued.
	moved uint32
}

// queueCopies queues the copies for n bytes, at offset off, of request sqNext. It returns false for an
// invalid local SGE, which the packet path then reports.
func (b *neighbor) queueCopies(q *qp, w *sendWQE, r *shmRegion, off, n uint32) bool {
	u := &b.batch
	near, far := &u.copies.local, &u.copies.remote
	near.reset()
	far.reset()
	read := w.opcode == verbs.OpRDMARead
	if !near.addPart(q, w, off, n, read) {
		return false
	}
	at := w.remoteAddr - r.addr + uint64(off)
	if r.deviceMem != nil {
		p := far.next(n)
		p.bytes, p.device, p.addr = nil, r.deviceMem.mem.Device(), r.deviceMem.mem.Addr()+at
	} else {
		far.addHost(r.bytes[at:][:n])
	}
	if !u.busy {
		u.busy, u.first, u.moved, u.copies.failed = true, q.sqNext, q.path.movedBytes, false
	}
	u.end = q.sqNext + 1
	if read {
		u.copies.move(near, far)
	} else {
		u.copies.move(far, near)
	}
	return true
}

// addPart adds n bytes, at offset off, of request sqNext. It returns false if an SGE names memory that the
// QP may not use.
func (o *operand) addPart(q *qp, w *sendWQE, off, n uint32, read bool) bool {
	if w.flags&verbs.SendInline != 0 {
		o.addHost(q.inlineOf(q.sqNext)[off:][:n])
		return true
	}
	need := verbs.Access(0)
	if read {
		need = verbs.AccessLocalWrite
	}
	return o.addSGEs(q, q.sges(q.sqNext), off, n, need)
}

// finishBatch waits for the queued copies and completes the requests before sqNext. If the device fails, it
// reverts the requests to unstarted, and packets execute them once no copy is running. If the device
// cannot confirm that, the first request fails.
func (b *neighbor) finishBatch(q *qp) directResult {
	u := &b.batch
	if !u.busy {
		return directDone
	}
	u.busy = false
	if u.copies.flush() {
		for q.sqHead != q.sqNext {
			q.nic.stats.Direct++
			q.completeSend(q.wqe(q.sqHead), verbs.StatusSuccess)
		}
		return directDone
	}
	q.sqMax -= q.sqNext - u.first
	q.sqNext, q.path.movedBytes = u.first, u.moved
	for seq := u.first; seq != u.end; seq++ {
		if r := b.files.lookup(q.wqe(seq).rkey); r != nil {
			r.refused = true
		}
	}
	if !u.copies.finished() {
		q.failSend(verbs.StatusGeneralErr)
		return directWait
	}
	return directAgain
}
