package softnic

import (
	"slices"

	"ibverbx/internal/bulk"
	"ibverbx/verbs"
)

// Memory of a device, such as a GPU, is copied by the device. find does not return it, so host memory pays
// nothing for it: what follows runs where find has failed. On links to other processes a depot stages it, unless a device reaches both ends:
// see shmRun. docs/softnic.md describes it.

// onDevices returns a copy of devices.
func (t *keyTable) onDevices() []*mr {
	if l := t.devices.Load(); l != nil {
		return slices.Clone(*l)
	}
	return nil
}

func (t *keyTable) setDevices(l []*mr) {
	if len(l) == 0 {
		t.devices.Store(nil)
	} else {
		t.devices.Store(&l)
	}
}

// onDevice returns where n bytes at addr of the region are on its device, under the rules of find.
func (m *mr) onDevice(d *pd, addr uint64, n uint32, need verbs.Access) (uint64, bool) {
	off := addr - m.addr
	if m.device == nil || m.pd != d || m.access&need != need || off > m.length || uint64(n) > m.length-off {
		return 0, false
	}
	return m.base + off, true
}

// holds reports whether the region has n bytes at addr, wherever, under the rules of find.
func (m *mr) holds(d *pd, addr uint64, n uint32, need verbs.Access) bool {
	if _, ok := m.find(d, addr, n, need); ok {
		return true
	}
	_, ok := m.onDevice(d, addr, n, need)
	return ok
}

// deviceOf returns the device that has some of n bytes at a real address, nil if none has.
func (t *keyTable) deviceOf(addr uint64, n uint32) verbs.MemoryDevice {
	l := t.devices.Load()
	if l == nil || n == 0 {
		return nil
	}
	for _, m := range *l {
		if addr < m.base+m.length && addr+uint64(n) > m.base {
			return m.device
		}
	}
	return nil
}

// checkInline refuses INLINE bytes that the CPU cannot read. Their keys do not count, so only memory that is
// registered on the NIC is recognized.
func (q *qp) checkInline(i int, sges []verbs.SGE) error {
	for k := range sges {
		if d := q.nic.mrs.deviceOf(sges[k].Addr, sges[k].Length); d != nil {
			return verbs.Invalidf("send %d of the chain: INLINE bytes are copied by the CPU, which cannot access memory of %s; send them without INLINE", i, d.Name())
		}
	}
	return nil
}

// usesDevice reports whether an SGE names memory of a device.
func (q *qp) usesDevice(sges []verbs.SGE) bool {
	if q.nic.mrs.devices.Load() == nil {
		return false
	}
	return slices.ContainsFunc(sges, func(s verbs.SGE) bool { return q.nic.mrs.get(s.LKey).device != nil })
}

// The statuses of a copy: success, no such memory, or a copy that the device refuses.
func copied(err error) verbs.Status {
	if err != nil {
		return verbs.StatusGeneralErr
	}
	return verbs.StatusSuccess
}

// load copies bytes at an address of the region's device to b.
func (m *mr) load(b []byte, from uint64) verbs.Status {
	return copied(m.device.Copy([]verbs.DeviceCopy{{From: from, Host: b, Len: uint64(len(b))}}))
}

// store copies b to addr of a region on a device, at once or soon: see land.
func (q *qp) store(key uint32, addr uint64, b []byte, whose side) verbs.Status {
	m := q.nic.mrs.get(key)
	to, ok := m.onDevice(q.pd, addr, uint32(len(b)), verbs.AccessLocalWrite)
	if !ok {
		return verbs.StatusLocProtErr
	}
	return q.land(m, to, b, whose)
}

// supply returns n bytes from off on of an SGE of request next, on a device. They are at bytes after the beginning of a packet of total
// bytes, which begins first bytes after that of the request, and valid as long as the packet. It returns nil if the
// QP must wait for them, or has failed because of them.
func (q *qp) supply(s *verbs.SGE, off, n, first, at, total uint32) []byte {
	m := q.nic.mrs.get(s.LKey)
	from, ok := m.onDevice(q.pd, s.Addr+uint64(off), n, 0)
	if !ok {
		q.failLocal(verbs.StatusLocProtErr)
		return nil
	}
	if m.depot != nil {
		if b, state := q.feeding().requests.bytes(m, q.sqNext, first, first+at, n); state != supplyRefused {
			return b
		}
	}
	b := q.nic.stage.room(total)[at:][:n]
	if status := m.load(b, from); status != verbs.StatusSuccess {
		q.failLocal(status)
		return nil
	}
	return b
}

// room returns n bytes for the payload of a packet.
func (s *staging) room(n uint32) []byte {
	b := s.gathered
	if len(b) < int(n) {
		b = make([]byte, n)
		if n <= maxGathered {
			s.gathered = b
		}
	}
	return b[:n]
}

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

// pieces are the SGEs of a request. They are filled in place, without a copy of each: a chain has many requests.
type pieces struct {
	list   [verbs.MaxSGE]piece
	n      int
	length uint64
	device bool // a device has some of the bytes
}

// reset removes all pieces.
func (s *pieces) reset() { s.n, s.length, s.device = 0, 0, false }

// next adds a piece of n bytes, whose other fields the caller sets.
func (s *pieces) next(n uint32) *piece {
	p := &s.list[s.n]
	s.n++
	s.length += uint64(n)
	p.length = n
	return p
}

// add adds n bytes at addr of the region under key, under the rules of find. It reports false if there are no such bytes.
func (s *pieces) add(q *qp, key uint32, addr uint64, n uint32, need verbs.Access) (ok bool) {
	m, p := q.nic.mrs.get(key), s.next(n)
	if p.device = m.device; m.device == nil {
		p.addr = 0
		p.bytes, ok = m.find(q.pd, addr, n, need)
		return ok
	}
	s.device, p.bytes = true, nil
	p.addr, ok = m.onDevice(q.pd, addr, n, need)
	return ok
}

// collect adds SGEs. It reports false if one names memory that it may not.
func (s *pieces) collect(q *qp, sges []verbs.SGE, need verbs.Access) bool {
	for k := range sges {
		if e := &sges[k]; e.Length > 0 && !s.add(q, e.LKey, e.Addr, e.Length, need) {
			return false
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
	// local and remote are the memory of the request that is being queued.
	local, remote pieces
}

// flush waits for the copies. It reports whether they and those before them are in place.
func (c *copies) flush() bool {
	if len(c.list) > 0 { // else none has been started: hand starts copies before next adds one
		c.took(c.device.Copy(c.list))
	}
	return !c.failed
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
func (c *copies) move(dst, src *pieces) {
	if src.n == 1 && dst.list[0].length == src.list[0].length { // nearly always
		c.add(&dst.list[0], &src.list[0])
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
			bulk.Copy(dst.bytes, src.bytes)
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
	c.device = device
}
