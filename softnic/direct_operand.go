package softnic

import (
	"ibverbx/internal/ntcopy"
	"ibverbx/verbs"
)

// piece is a contiguous range of registered memory, or of INLINE bytes.
type piece struct {
	bytes  []byte             // nil for device memory
	device verbs.MemoryDevice // nil for host memory
	addr   uint64             // device address, 0 for host memory
	length uint32
}

// first splits off and returns the first n bytes.
func (p *piece) first(n uint32) piece {
	f := *p
	if f.length = n; p.device == nil {
		f.bytes, p.bytes = p.bytes[:n], p.bytes[n:]
	} else {
		p.addr += uint64(n)
	}
	p.length -= n
	return f
}

// operand is the memory that a request names on one side: any mix of host memory, device memory and
// INLINE bytes. Callers reuse it for all requests of a chain.
type operand struct {
	list   [verbs.MaxSGE + 1]piece // a datagram also has its GRH
	n      int
	length uint64
	device bool // some of the bytes are device memory
}

// reset removes all pieces.
func (o *operand) reset() { o.n, o.length, o.device = 0, 0, false }

// next adds a piece of n bytes. The caller sets its other fields.
func (o *operand) next(n uint32) *piece {
	p := &o.list[o.n]
	o.n++
	o.length += uint64(n)
	p.length = n
	return p
}

// addHost adds bytes that the CPU can access.
func (o *operand) addHost(b []byte) {
	p := o.next(uint32(len(b)))
	p.bytes, p.device, p.addr = b, nil, 0
}

// add adds n bytes at addr of the region under key. It returns false if the QP may not use them.
func (o *operand) add(q *qp, key uint32, addr uint64, n uint32, need verbs.Access) bool {
	return o.addSGEs(q, []verbs.SGE{{Addr: addr, Length: n, LKey: key}}, 0, n, need)
}

// addSGEs adds n bytes of SGEs, starting at offset off. It returns false if the SGEs are too short or name
// memory that the QP may not use. It does not use verbs.PartOf, which would slow an 8-byte SEND from 78
// to 110 ns.
func (o *operand) addSGEs(q *qp, sges []verbs.SGE, off, n uint32, need verbs.Access) bool {
	for k := range sges {
		e := &sges[k]
		if off >= e.Length {
			off -= e.Length
			continue
		}
		if n == 0 {
			return true
		}
		part, addr := min(e.Length-off, n), e.Addr+uint64(off)
		m, p, ok := q.nic.mrs.get(e.LKey), o.next(part), false
		if m.device == nil {
			p.device, p.addr = nil, 0
			p.bytes, ok = m.find(q.pd, addr, part, need)
		} else {
			o.device, p.bytes, p.device = true, nil, m.device
			p.addr, ok = m.onDevice(q.pd, addr, part, need)
		}
		if !ok {
			return false
		}
		n, off = n-part, 0
	}
	return n == 0
}

// addRequest adds the local bytes of wr. It returns false if wr violates a rule of enqueue or names memory
// that the QP may not use.
func (o *operand) addRequest(q *qp, wr *verbs.SendWR) bool {
	if q.legal>>wr.Opcode&1 == 0 || wr.NumSGE > q.sge.own || !wr.Flags.Valid() {
		return false
	}
	sges, length := wr.SGE[:wr.NumSGE], uint64(0)
	for k := range sges {
		length += uint64(sges[k].Length)
	}
	need := verbs.Access(0)
	if wr.Opcode >= verbs.OpRDMARead {
		need = verbs.AccessLocalWrite
	}
	if wr.Flags&verbs.SendInline != 0 {
		return need == 0 && length <= uint64(q.maxInline) && o.addInline(q, sges)
	}
	return length <= maxMsgSize && o.addSGEs(q, sges, 0, uint32(length), need)
}

// addInline adds INLINE bytes. It returns false if any of them are device memory.
func (o *operand) addInline(q *qp, sges []verbs.SGE) bool {
	for k := range sges {
		s := &sges[k]
		if q.nic.mrs.deviceOf(s.Addr, s.Length) != nil {
			return false
		}
		if s.Length > 0 {
			o.addHost(bytesAt(s.Addr, s.Length))
		}
	}
	return true
}

// startCopies is the number of copies that start a device while the NIC collects the rest of a batch. A
// GPU copies 256 blocks of 64 KiB in 10 us, and starting them takes 4 us; smaller groups would spend
// more time in calls.
const startCopies = 256

// copies is a batch of copies executed by one device.
type copies struct {
	device verbs.MemoryDevice
	// list holds the copies not yet started.
	list []verbs.DeviceCopy
	// failed is set when a device, culprit, has refused a copy. Later copies are skipped.
	failed  bool
	culprit verbs.MemoryDevice
	// local and remote are the operands of the current request.
	local, remote operand
	// word is the result of an atomic.
	word [8]byte
}

// flush waits for the copies. It reports whether they and all earlier ones are in place.
func (c *copies) flush() bool {
	if len(c.list) > 0 { // if empty, the device is idle: next adds a copy whenever it has started others
		c.sync()
	}
	return !c.failed
}

// sync waits for the device.
func (c *copies) sync() { c.submitted(c.device.Copy(c.list)) }

// queued reports whether copies are pending or have failed.
func (c *copies) queued() bool { return len(c.list) > 0 || c.failed }

// flushAndClear flushes the batch and clears its failure.
func (c *copies) flushAndClear() bool {
	ok := c.flush()
	c.failed = false
	return ok
}

// finished reports, after a failure, whether all copies have finished.
func (c *copies) finished() bool {
	return c.culprit.Copy(nil) == nil && (c.device == c.culprit || c.device.Copy(nil) == nil)
}

// submitted empties the list after Start or Copy, and records the failure if err is not nil.
func (c *copies) submitted(err error) {
	if err != nil && !c.failed {
		c.failed, c.culprit = true, c.device
	}
	clear(c.list)
	c.list = c.list[:0]
}

// move queues copies of all of src to the start of dst, which must be large enough. Host memory is
// copied immediately, after the queued copies.
func (c *copies) move(dst, src *operand) {
	if src.n == 1 && dst.list[0].length == src.list[0].length { // nearly always
		if d, s := &dst.list[0], &src.list[0]; d.device != nil || s.device != nil {
			c.add(d, s)
		} else if c.flush() {
			ntcopy.Copy(d.bytes, s.bytes)
		}
		return
	}
	for to, from := 0, 0; from < src.n; {
		d, s := &dst.list[to], &src.list[from]
		n := min(d.length, s.length)
		x, y := d.first(n), s.first(n)
		c.add(&x, &y)
		to += index(d.length == 0)
		from += index(s.length == 0)
	}
}

// add queues a copy of src to dst. Their lengths must be equal.
func (c *copies) add(dst, src *piece) {
	if c.failed {
		return
	}
	device, host := dst.device, src.bytes
	if device == nil {
		device, host = src.device, dst.bytes
	}
	if device == nil {
		if c.flush() {
			ntcopy.Copy(dst.bytes, src.bytes)
		}
		return
	}
	one := c.next(device)
	one.To, one.From, one.Host, one.Len = dst.addr, src.addr, host, uint64(dst.length)
}

// next adds a zeroed copy to the batch. The caller sets its fields.
func (c *copies) next(device verbs.MemoryDevice) *verbs.DeviceCopy {
	if n := len(c.list); device != c.device || n == startCopies {
		c.makeRoom(device)
	}
	n := len(c.list)
	c.list = c.list[:n+1]
	return &c.list[n]
}

// makeRoom starts the listed copies. If the next copy belongs to another device, it waits for the whole
// batch instead.
func (c *copies) makeRoom(device verbs.MemoryDevice) {
	if device == c.device {
		c.submitted(c.device.Start(c.list))
		return
	}
	c.flush()
	if c.device = device; c.list == nil {
		c.list = make([]verbs.DeviceCopy, 0, startCopies)
	}
}
