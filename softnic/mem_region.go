package softnic

import (
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"slices"
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
	// device has the bytes, and bytes is nil, if the CPU cannot access them. Their addresses on it begin with base.
	device verbs.MemoryDevice
	base   uint64
	// stager stages the region's data for packets. It is nil for host memory, and on links within the process.
	stager *stager
	// mem is the memory that neighbors may get. It is nil for a dma-buf, for host memory with other addresses than its own,
	// and for a key that was that of another region.
	mem *verbs.Memory
	// release gives back what the region holds: the memory, or the mapping of a dma-buf.
	release func()
	closed  bool
	// received is set once a receive that a neighbor knows of has used the region.
	received bool
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
	if m.stager != nil || m.pd.ctx.nic.hasRing() {
		c.settle() // its last bytes have landed, or requests of the peer were served
	}
	return nil
}

func (m *mr) destroy() {
	if m.closed {
		return
	}
	m.closed = true
	if m.received {
		m.pd.ctx.nic.invalidateCredits(m)
	}
	for _, b := range m.pd.ctx.core.neighbors {
		b.recall(m)
	}
	m.pd.ctx.nic.mrs.remove(m)
	m.pd.mrs.remove(m)
	m.pd.ctx.core.mu.drain() // a copy may be under way
	m.bytes = nil
	if m.stager != nil {
		m.stager.deregister()
	}
	m.release()
}

// registerMemory registers memory that work requests address from iova, or from its own address if iova is nil. The region takes the
// place and the key of old, unless that is nil. The lock is held.
func (d *pd) registerMemory(mem *verbs.Memory, iova *uint64, access verbs.Access, old *mr) (verbs.MR, error) {
	if mem == nil || mem.Len() == 0 {
		return nil, verbs.Invalidf("no memory")
	}
	if err := checkAccess(access); err != nil {
		return nil, err
	}
	if err := mem.Retain(); err != nil {
		return nil, err
	}
	m := &mr{pd: d, addr: mem.Addr(), length: uint64(mem.Len()), access: access, bytes: mem.Bytes(), mem: mem, release: mem.Release}
	if m.device = mem.Device(); m.device != nil {
		m.base = m.addr
	}
	if iova != nil && *iova != m.addr {
		if m.length-1 > math.MaxUint64-*iova {
			mem.Release()
			return nil, verbs.Invalidf("%d bytes from address %#x on are more than can be addressed", m.length, *iova)
		}
		if m.addr = *iova; m.device == nil {
			m.mem = nil // a neighbor reaches host memory by its own address only
		}
	}
	if old != nil {
		m.key, m.mem = old.key, nil // a neighbor may still have the key as that of old
		old.destroy()
		if d.ctx.nic.hasRing() {
			d.ctx.core.settle() // requests of the peer were served
		}
	}
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
	if m.device != nil && m.pd.ctx.nic.hasRing() {
		m.pd.ctx.nic.revoke() // a line cannot wait for a device: see startCredits
		m.pd.ctx.nic.grantAll()
		m.pd.ctx.core.settle()
	}
	m.stager = m.pd.ctx.nic.stagerFor(m.device)
	for _, b := range m.pd.ctx.core.neighbors {
		b.offer(m)
	}
	return nil
}

// keyTable finds memory regions by key. A key is 32 random bits, drawn until its low bits name a free place,
// of which at least half are free. A lookup is therefore one index into a slice. A peer learns nothing of
// one key from others.
//
// The core's mutex guards the table. Lookups inside a gate run beside changes, so they use atomics.
type keyTable struct {
	// regions has a power of two of places.
	regions atomic.Pointer[[]atomic.Pointer[mr]]
	// none stands where there is no region. It has no PD, so no key matches it.
	none *mr
	// used is how many places have a region.
	used int
	rng  *rand.Rand
	// devices are the regions whose bytes a device has; nil without any. The slice is replaced, never changed.
	devices atomic.Pointer[[]*mr]
}

// minKeys is the size of an empty table.
const minKeys = 16

func (t *keyTable) init(rng *rand.Rand) {
	t.rng = rng
	t.none = &mr{}
	t.grow(minKeys)
}

// grow gives the table n places.
func (t *keyTable) grow(n int) {
	larger := make([]atomic.Pointer[mr], n)
	for i := range larger {
		larger[i].Store(t.none)
	}
	if old := t.regions.Load(); old != nil {
		for i := range *old {
			if m := (*old)[i].Load(); m != t.none {
				larger[int(m.key)&(n-1)].Store(m)
			}
		}
	}
	t.regions.Store(&larger)
}

// place is where the region of a key is, if there is one.
func (t *keyTable) place(key uint32) *atomic.Pointer[mr] {
	regions := *t.regions.Load()
	return &regions[int(key)&(len(regions)-1)]
}

// add gives m a key, which is not 0, unless it has one whose place is free. It reports false if there is no room.
func (t *keyTable) add(m *mr) bool {
	if t.used == maxMR {
		return false
	}
	if n := len(*t.regions.Load()); 2*t.used >= n {
		t.grow(2 * n)
	}
	for m.key == 0 || t.place(m.key).Load() != t.none {
		m.key = t.rng.Uint32()
	}
	t.place(m.key).Store(m)
	t.used++
	if m.device != nil {
		t.setDevices(append(t.onDevices(), m))
	}
	return true
}

func (t *keyTable) remove(m *mr) {
	t.place(m.key).Store(t.none)
	t.used--
	if m.device != nil {
		t.setDevices(slices.DeleteFunc(t.onDevices(), func(d *mr) bool { return d == m }))
	}
}

// get returns the region under key, none if there is no such region.
func (t *keyTable) get(key uint32) *mr {
	if m := t.place(key).Load(); m.key == key {
		return m
	}
	return t.none
}

// all returns all regions.
func (t *keyTable) all() iter.Seq[*mr] {
	return func(yield func(*mr) bool) {
		regions := *t.regions.Load()
		for i := range regions {
			if m := regions[i].Load(); m != t.none && !yield(m) {
				return
			}
		}
	}
}

// find returns the n bytes at addr of the region if it belongs to d, holds all of them and allows need.
// Otherwise it returns nil and false, and so it does if a device has the bytes: see onDevice. It and get are
// small enough to be inlined, which makes an 8-byte WRITE measurably faster.
func (m *mr) find(d *pd, addr uint64, n uint32, need verbs.Access) ([]byte, bool) {
	off := addr - m.addr
	if size := uint64(len(m.bytes)); m.pd == d && m.access&need == need && off <= size && uint64(n) <= size-off {
		return m.bytes[off : off+uint64(n)], true
	}
	return nil, false
}

// registerDMABuf is PD.RegisterDMABuf with the lock held. The region is a mapping of its own, so fd may be
// closed afterwards. The rules are those of the kernel (uverbs, REG_DMABUF_MR).
func (d *pd) registerDMABuf(fd int, offset, length, iova uint64, access verbs.Access) (verbs.MR, error) {
	if err := checkAccess(access); err != nil {
		return nil, err
	}
	switch page := uint64(os.Getpagesize()); {
	case length == 0:
		return nil, verbs.Invalidf("no bytes of the dma-buf")
	case offset+length < offset || iova+length < iova:
		return nil, verbs.Invalidf("%d bytes at %d, with the iova %#x, exceed 64 bits", length, offset, iova)
	case offset%page != iova%page:
		return nil, verbs.Invalidf("the offset %#x and the iova %#x have different places in a page of %d bytes", offset, iova, page)
	}
	b, unmap, err := mapDMABuf(fd, offset, length, access&verbs.AccessLocalWrite != 0)
	if err != nil {
		return nil, err
	}
	m := &mr{pd: d, addr: iova, length: length, access: access, bytes: b, release: unmap}
	if err := m.enlist(); err != nil {
		return nil, err
	}
	return m, nil
}
