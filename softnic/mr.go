package softnic

import (
	"math/rand/v2"

	"ibverbx/verbs"
)

// mr is a memory region. Its key serves as lkey and rkey.
type mr struct {
	pd     *pd
	key    uint32
	addr   uint64
	length uint64
	access verbs.Access
	bytes  []byte
	memory *verbs.Memory
	closed bool
}

var _ verbs.MR = (*mr)(nil)

func (m *mr) Addr() uint64 { return m.addr }
func (m *mr) Len() uint64  { return m.length }
func (m *mr) LKey() uint32 { return m.key }
func (m *mr) RKey() uint32 { return m.key }

// Close deregisters the region. Nothing refers to its memory between two calls into
// the NIC, so it is safe with work outstanding: whoever uses the key next fails.
func (m *mr) Close() error {
	c := m.pd.ctx.core
	c.mu.Lock()
	defer c.mu.Unlock()
	m.destroy()
	return nil
}

func (m *mr) destroy() {
	if m.closed {
		return
	}
	m.closed = true
	m.pd.ctx.nic.mrs.remove(m.key)
	m.pd.mrs.remove(m)
	m.bytes = nil
	m.memory.Release()
}

// registerMemory is PD.RegisterMemory with the lock held.
func (d *pd) registerMemory(mem *verbs.Memory, access verbs.Access) (*mr, error) {
	const remoteWrites = verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	switch {
	case mem == nil || mem.Len() == 0:
		return nil, verbs.Invalidf("no memory")
	case access&^(verbs.AccessAll|verbs.AccessRelaxedOrdering) != 0:
		return nil, verbs.Invalidf("unknown access flags %#x", uint32(access))
	case access&remoteWrites != 0 && access&verbs.AccessLocalWrite == 0:
		return nil, verbs.Invalidf("remote write and remote atomic need local write")
	}
	if err := mem.Retain(); err != nil {
		return nil, err
	}
	m := &mr{pd: d, addr: mem.Addr(), length: uint64(mem.Len()), access: access, bytes: mem.Bytes(), memory: mem}
	if !d.ctx.nic.mrs.add(m) {
		mem.Release()
		return nil, verbs.ErrLimit
	}
	d.mrs.add(m)
	return m, nil
}

// keyTable finds memory regions by key. The low half of a key is an index, the high
// half a random tag, so that a key cannot be guessed by counting: a wrong guess costs
// the guesser its QP.
//
//	31     16 | 15     0
//	   tag    |   index
type keyTable struct {
	regions []*mr
	none    *mr      // stands where there is no region: it has no PD, so it is nobody's
	free    []uint32 // indices given back, oldest first
	rng     *rand.Rand
}

const (
	keyIndexBits = 16
	keyIndexMask = 1<<keyIndexBits - 1

	// keyReuseDelay is how many indices must be free before one is used again, as
	// long as there are fresh ones.
	keyReuseDelay = 1024
)

func (t *keyTable) init(rng *rand.Rand) {
	t.rng = rng
	t.none = &mr{}
	t.regions = []*mr{t.none} // index 0 is never used, so key 0 is never valid
}

// add gives m a key that neither its index's last region nor key 0 had. It reports
// false if there is no room.
func (t *keyTable) add(m *mr) bool {
	var i uint32
	switch {
	case len(t.regions) <= maxMR && len(t.free) < keyReuseDelay:
		i = uint32(len(t.regions))
		t.regions = append(t.regions, t.none)
	case len(t.free) > 0:
		i = t.free[0] >> keyIndexBits
		// The upper half of a free entry is the index, the lower the last tag.
		last := t.free[0] & keyIndexMask
		t.free = t.free[1:]
		t.place(m, i, last)
		return true
	default:
		return false
	}
	t.place(m, i, 0)
	return true
}

// place puts m at index i under a tag other than last.
func (t *keyTable) place(m *mr, i, last uint32) {
	tag := t.rng.Uint32() >> keyIndexBits
	for tag == last {
		tag = t.rng.Uint32() >> keyIndexBits
	}
	m.key = tag<<keyIndexBits | i
	t.regions[i] = m
}

func (t *keyTable) remove(key uint32) {
	i := key & keyIndexMask
	t.regions[i] = t.none
	t.free = append(t.free, i<<keyIndexBits|key>>keyIndexBits)
}

// find returns the n bytes at addr of the region under key, if the region belongs to
// d, holds all of them and allows need. Otherwise it returns nil and false. It is small
// enough to be inlined, which an 8-byte WRITE notices.
func (t *keyTable) find(d *pd, key uint32, addr uint64, n uint32, need verbs.Access) ([]byte, bool) {
	if i := int(key & keyIndexMask); i < len(t.regions) {
		m := t.regions[i]
		off := addr - m.addr
		if m.key == key && m.pd == d && m.access&need == need && off <= m.length && uint64(n) <= m.length-off {
			return m.bytes[off : off+uint64(n)], true
		}
	}
	return nil, false
}
