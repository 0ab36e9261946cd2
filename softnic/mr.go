package softnic

import (
	"math/rand/v2"
	"sync/atomic"

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
	// release gives back what the region holds: the memory, or the mapping of a dma-buf.
	release func()
	closed  bool
}

var _ verbs.MR = (*mr)(nil)

func (m *mr) Addr() uint64 { return m.addr }
func (m *mr) Len() uint64  { return m.length }
func (m *mr) LKey() uint32 { return m.key }
func (m *mr) RKey() uint32 { return m.key }

// Close deregisters the region. Between two calls into the NIC nothing refers to the memory, so
// closing is safe with work outstanding: the next use of the key fails.
func (m *mr) Close() error {
	c := m.pd.ctx.core
	c.mu.hold()
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
	m.pd.ctx.core.mu.drain() // a copy may be under way
	m.bytes = nil
	m.release()
}

// registerMemory is PD.RegisterMemory with the lock held.
func (d *pd) registerMemory(mem *verbs.Memory, access verbs.Access) (verbs.MR, error) {
	if mem == nil || mem.Len() == 0 {
		return nil, verbs.Invalidf("no memory")
	}
	if err := checkAccess(access); err != nil {
		return nil, err
	}
	if err := mem.Retain(); err != nil {
		return nil, err
	}
	m := &mr{pd: d, addr: mem.Addr(), length: uint64(mem.Len()), access: access, bytes: mem.Bytes(), release: mem.Release}
	if err := m.enlist(); err != nil {
		return nil, err
	}
	return m, nil
}

// checkAccess checks the rules of ibv_reg_mr(3).
func checkAccess(access verbs.Access) error {
	const remoteWrites = verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	switch {
	case access&^(verbs.AccessAll|verbs.AccessRelaxedOrdering) != 0:
		return verbs.Invalidf("unknown access flags %#x", uint32(access))
	case access&remoteWrites != 0 && access&verbs.AccessLocalWrite == 0:
		return verbs.Invalidf("remote write and remote atomic need local write")
	}
	return nil
}

// enlist gives the region its key. If there is none, it releases the region.
func (m *mr) enlist() error {
	if !m.pd.ctx.nic.mrs.add(m) {
		m.release()
		return verbs.ErrLimit
	}
	m.pd.mrs.add(m)
	return nil
}

// keyTable finds memory regions by key. The low half of a key is an index, the high half a random
// tag. A peer cannot guess keys by counting, and a wrong guess ends its QP.
//
//	31     16 | 15     0
//	   tag    |   index
//
// The core's mutex guards the table. Lookups inside a gate run beside changes, so they use atomics.
type keyTable struct {
	// regions has a power of two of slots.
	regions atomic.Pointer[[]atomic.Pointer[mr]]
	// count is how many slots were ever used.
	count uint32
	// none stands where there is no region. It has no PD, so no key matches it.
	none *mr
	// free are the released indices, oldest first, each with its last tag in the low half.
	free []uint32
	rng  *rand.Rand
}

const (
	keyIndexBits = 16
	keyIndexMask = 1<<keyIndexBits - 1

	// keyReuseDelay is how many indices must be free before one is used again, as long as there
	// are fresh ones.
	keyReuseDelay = 1024
)

func (t *keyTable) init(rng *rand.Rand) {
	t.rng = rng
	t.none = &mr{}
	t.grow(1)
	t.count = 1 // index 0 is never used, so key 0 is never valid
}

// grow makes room for n regions.
func (t *keyTable) grow(n int) {
	larger := make([]atomic.Pointer[mr], n)
	for i := range larger {
		larger[i].Store(t.none)
	}
	if old := t.regions.Load(); old != nil {
		for i := range *old {
			larger[i].Store((*old)[i].Load())
		}
	}
	t.regions.Store(&larger)
}

// add gives m a key that neither its index's last region nor key 0 had. It reports false if there
// is no room.
func (t *keyTable) add(m *mr) bool {
	var i, last uint32
	switch {
	case t.count <= maxMR && len(t.free) < keyReuseDelay:
		i = t.count
		t.count++
		if n := len(*t.regions.Load()); int(i) == n {
			t.grow(2 * n)
		}
	case len(t.free) > 0:
		i, last = t.free[0]>>keyIndexBits, t.free[0]&keyIndexMask
		t.free = t.free[1:]
	default:
		return false
	}
	tag := t.rng.Uint32() >> keyIndexBits
	for tag == last {
		tag = t.rng.Uint32() >> keyIndexBits
	}
	m.key = tag<<keyIndexBits | i
	(*t.regions.Load())[i].Store(m)
	return true
}

func (t *keyTable) remove(key uint32) {
	i := key & keyIndexMask
	(*t.regions.Load())[i].Store(t.none)
	t.free = append(t.free, i<<keyIndexBits|key>>keyIndexBits)
}

// get returns the region under key, none if there is no such region.
func (t *keyTable) get(key uint32) *mr {
	regions := *t.regions.Load()
	if m := regions[int(key)&(len(regions)-1)].Load(); m.key == key {
		return m
	}
	return t.none
}

// find returns the n bytes at addr of the region if it belongs to d, holds all of them and allows need.
// Otherwise it returns nil and false. It and get are small enough to be inlined, which makes an 8-byte
// WRITE measurably faster.
func (m *mr) find(d *pd, addr uint64, n uint32, need verbs.Access) ([]byte, bool) {
	off := addr - m.addr
	if m.pd == d && m.access&need == need && off <= m.length && uint64(n) <= m.length-off {
		return m.bytes[off : off+uint64(n)], true
	}
	return nil, false
}
