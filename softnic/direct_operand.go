package softnic

import (
	"ibverbx/internal/ntcopy"
	"ibverbx/verbs"
)

// piece is a piece of registered memory, or of INLINE bytes.
type piece struct {
	bytes  []byte             // nil if a device has them
	device verbs.MemoryDevice // nil if bytes has them
	addr   uint64             // address on device, 0 without one
	length uint32
}

// first returns the first n bytes, and cuts them off.
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

// operand is the memory that a request names on one side: host memory, device memory and INLINE bytes in any mixture. A
// caller fills it in place, because a chain has many requests.
type operand struct {
	list   [verbs.MaxSGE + 1]piece // a datagram has its GRH in addition
	n      int
	length uint64
	device bool // a device has some of the bytes
}

// reset removes all pieces.
func (o *operand) reset() { o.n, o.length, o.device = 0, 0, false }

// next adds a piece of n bytes, whose other fields the caller sets.
func (o *operand) next(n uint32) *piece {
	p := &o.list[o.n]
	o.n++
	o.length += uint64(n)
	p.length = n
	return p
}

// host adds bytes that the CPU can access.
func (o *operand) host(b []byte) {
	p := o.next(uint32(len(b)))
	p.bytes, p.device, p.addr = b, nil, 0
}

// add adds n bytes at addr of the region under key. It reports false if the QP may not use them, under the rules of find.
func (o *operand) add(q *qp, key uint32, addr uint64, n uint32, need verbs.Access) bool {
	return o.take(q, []verbs.SGE{{Addr: addr, Length: n, LKey: key}}, 0, n, need)
}

// take adds n bytes of SGEs, off bytes after their start. It reports false if the SGEs are shorter or name memory that
// the QP may not use. It does not use verbs.PartOf: an 8-byte SEND would take 110 ns instead of 78.
func (o *operand) take(q *qp, sges []verbs.SGE, off, n uint32, need verbs.Access) bool {
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

// request adds the local bytes of wr. It reports false if wr breaks a rule of enqueue or names memory that the
// QP may not use.
func (o *operand) request(q *qp, wr *verbs.SendWR) bool {
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
		return need == 0 && length <= uint64(q.maxInline) && o.inline(q, sges)
	}
	return length <= maxMsgSize && o.take(q, sges, 0, uint32(length), need)
}

// inline adds INLINE bytes. It reports false if a device has some of them.
func (o *operand) inline(q *qp, sges []verbs.SGE) bool {
	for k := range sges {
		s := &sges[k]
		if q.nic.mrs.deviceOf(s.Addr, s.Length) != nil {
			return false
		}
		if s.Length > 0 {
			o.host(bytesAt(s.Addr, s.Length))
		}
	}
	return true
}

// startCopies is how many copies of a batch a device begins with while the NIC collects the next ones. A GPU
// copies as many blocks of 64 KiB in 10 us, and the call that begins takes 4: fewer at a time cost more calls.
const startCopies = 256

// copies are a batch: copies that a device does together.
type copies struct {
	device verbs.MemoryDevice
	// list has those that the device has not begun.
	list []verbs.DeviceCopy
	// failed says that a device, culprit, has refused some. Those that follow are left out.
	failed  bool
	culprit verbs.MemoryDevice
	// local and remote are the operands of the request being executed.
	local, remote operand
	// word is the result of an atomic.
	word [8]byte
}

// flush waits for the copies. It reports whether they and those before them are in place.
func (c *copies) flush() bool {
	if len(c.list) > 0 { // else none has been started: hand starts copies before next adds one
		c.sync()
	}
	return !c.failed
}

// sync waits for the device.
func (c *copies) sync() { c.took(c.device.Copy(c.list)) }

// queued reports whether copies are pending, or have failed.
func (c *copies) queued() bool { return len(c.list) > 0 || c.failed }

// settle is flush at the end of a batch. The next batch starts without failures.
func (c *copies) settle() bool {
	ok := c.flush()
	c.failed = false
	return ok
}

// ended reports, after a failure, that no copy is under way.
func (c *copies) ended() bool {
	return c.culprit.Copy(nil) == nil && (c.device == c.culprit || c.device.Copy(nil) == nil)
}

// took empties the list, which the device has taken.
func (c *copies) took(err error) {
	if err != nil && !c.failed {
		c.failed, c.culprit = true, c.device
	}
	clear(c.list)
	c.list = c.list[:0]
}

// move queues copies of all of src to the first bytes of dst, which has room for them. Host memory is copied
// at once, after the copies that are queued.
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

// add queues a copy of src to dst, which have the same length.
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

// next adds a copy to the batch. The caller sets its fields, which are zero.
func (c *copies) next(device verbs.MemoryDevice) *verbs.DeviceCopy {
	if n := len(c.list); device != c.device || n == startCopies {
		c.hand(device)
	}
	n := len(c.list)
	c.list = c.list[:n+1]
	return &c.list[n]
}

// hand gives the list to the device. It waits for the batch if the next copy is one of another device.
func (c *copies) hand(device verbs.MemoryDevice) {
	if device == c.device {
		c.took(c.device.Start(c.list))
		return
	}
	c.flush()
	if c.device = device; c.list == nil {
		c.list = make([]verbs.DeviceCopy, 0, startCopies)
	}
}
