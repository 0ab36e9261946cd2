package softnic

import (
	"slices"

	"ibverbx/verbs"
)

// Device memory, such as GPU memory, is copied by the device. find does not return it, so requests on host memory pay nothing for it:
// the code below runs only after find has failed. On links to other processes, a stager copies it to host memory and back, unless a
// device can access both ends (see deviceBatch and docs/softnic.md).

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

// onDevice returns the device address of n bytes at addr of the region, under the rules of find.
func (m *mr) onDevice(d *pd, addr uint64, n uint32, need verbs.Access) (uint64, bool) {
	off := addr - m.addr
	if m.device == nil || m.pd != d || m.access&need != need || off > m.length || uint64(n) > m.length-off {
		return 0, false
	}
	return m.base + off, true
}

// holds reports whether the region has n bytes at addr, in host or device memory, under the rules of find.
func (m *mr) holds(d *pd, addr uint64, n uint32, need verbs.Access) bool {
	if _, ok := m.find(d, addr, n, need); ok {
		return true
	}
	_, ok := m.onDevice(d, addr, n, need)
	return ok
}

// deviceOf returns the device that holds any of n bytes at a real address, nil for host memory.
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

// checkInline rejects INLINE data that the CPU cannot read. INLINE data has no keys, so only memory registered on the
// NIC is recognized.
func (q *qp) checkInline(i int, sges []verbs.SGE) error {
	for k := range sges {
		if d := q.nic.mrs.deviceOf(sges[k].Addr, sges[k].Length); d != nil {
			return verbs.Invalidf("send %d of the chain: INLINE bytes are copied by the CPU, which cannot access memory of %s; send them without INLINE", i, d.Name())
		}
	}
	return nil
}

// usesDevice reports whether an SGE refers to device memory.
func (q *qp) usesDevice(sges []verbs.SGE) bool {
	if q.nic.mrs.devices.Load() == nil {
		return false
	}
	return slices.ContainsFunc(sges, func(s verbs.SGE) bool { return q.nic.mrs.get(s.LKey).device != nil })
}

// copied converts the result of a device copy to a status.
func copied(err error) verbs.Status {
	if err != nil {
		return verbs.StatusGeneralErr
	}
	return verbs.StatusSuccess
}

// load copies from an address on the region's device to b.
func (m *mr) load(b []byte, from uint64) verbs.Status {
	return copied(m.device.Copy([]verbs.DeviceCopy{{From: from, Host: b, Len: uint64(len(b))}}))
}

// store copies b to addr of a device region, now or later: see land.
func (q *qp) store(key uint32, addr uint64, b []byte, whose role) verbs.Status {
	m := q.nic.mrs.get(key)
	to, ok := m.onDevice(q.pd, addr, uint32(len(b)), verbs.AccessLocalWrite)
	if !ok {
		return verbs.StatusLocProtErr
	}
	return q.land(m, to, b, whose)
}

// prefetched returns the bytes of s, which is device memory, for a packet of request next. The packet has total bytes
// from offset first of the request on, and s starts at bytes later. The bytes stay valid until the packet is sent. The
// result is nil if the QP must wait for the fetch, or has failed because of it.
func (q *qp) prefetched(s verbs.SGE, first, at, total uint32) []byte {
	m := q.nic.mrs.get(s.LKey)
	from, ok := m.onDevice(q.pd, s.Addr, s.Length, 0)
	if !ok {
		q.failLocal(verbs.StatusLocProtErr)
		return nil
	}
	if m.stager != nil {
		if b, state := q.prefetching().requests.bytes(m, q.sqNext, first, first+at, s.Length); state != fetchRefused {
			return b
		}
	}
	b := q.nic.stage.room(total)[at:][:s.Length]
	if status := m.load(b, from); status != verbs.StatusSuccess {
		q.failLocal(status)
		return nil
	}
	return b
}

// room returns an n-byte buffer for the payload of a packet.
func (s *scratchMemory) room(n uint32) []byte {
	b := s.gathered
	if len(b) < int(n) {
		b = make([]byte, n)
		if n <= maxGathered {
			s.gathered = b
		}
	}
	return b[:n]
}
