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
	// device holds the bytes if the CPU cannot access them; bytes is then nil. base is the region's
	// device address.
	device verbs.MemoryDevice
	base   uint64
	// stager stages the bytes for packets. It is nil for host memory and on links within one process.
	stager *stager
	// mem is the memory that may be shared with neighbors. It is nil for a dma-buf, for host memory
	// registered with a different iova, and for a key inherited from another region.
	mem *verbs.Memory
	// release releases the memory or unmaps the dma-buf.
	release func()
	closed  bool
	// received is set once a receive known to a neighbor has used the region.
	received bool
}

var _ verbs.MR = (*mr)(nil)

func (m *mr) Addr() uint64 { return m.addr }
func (m *mr) Len() uint64  { return m.length }
func (m *mr) LKey() uint32 { return m.key }
func (m *mr) RKey() uint32 { return m.key }

// Close deregisters the region. The NIC retains no reference to the memory between calls, so Close is
// safe with work outstanding: the next use of the key fails.
func (m *mr) Close() error {
	c := m.pd.ctx.core
	c.mu.hold()
	defer c.mu.Unlock()
	m.destroy()
	if m.stager != nil || m.pd.ctx.nic.hasRing() {
		c.settle() // landings and served requests leave work
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
	m.pd.ctx.core.mu.drain() // a copy may be in progress
	m.bytes = nil
	if m.stager != nil {
		m.stager.deregister()
	}
	m.release()
}

// registerMemory registers memory that work requests address from iova, or from its own address if iova
// is nil. The region replaces old and inherits its key, unless old is nil. The caller holds the lock.
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
			m.mem = nil // neighbors can access host memory at its own address only
		}
	}
	if old != nil {
		m.key, m.mem = old.key, nil // a neighbor may still map the key to old
		old.destroy()
		if d.ctx.nic.hasRing() {
			d.ctx.core.settle() // served requests leave work
		}
	}
	if err := m.enlist(); err != nil {
		return nil, err
	}
	return m, nil
}

// checkAccess enforces the rules of ibv_reg_mr(3).
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

// enlist assigns the region a key and offers it to neighbors. It releases the region and returns
// ErrLimit if the table is full.
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

// keyTable finds memory regions by key. Keys are random 32-bit numbers, redrawn until their low bits
// select a free slot. At least half of the slots are free, so a lookup indexes a slice once. A key
// reveals nothing about the others.
//
// The core's mutex guards the table. Lookups inside a gate run concurrently with changes, so they use atomics.
type keyTable struct {
	// regions has a power-of-two length.
	regions atomic.Pointer[[]atomic.Pointer[mr]]
	// none fills empty slots. Its PD is nil, so it never matches.
	none *mr
	// used counts occupied slots.
	used int
	rng  *rand.Rand
	// devices lists the regions in device memory, nil without any. The slice is replaced, never
	// modified.
	devices atomic.Pointer[[]*mr]
}

// minKeys is the initial table size.
const minKeys = 16

func (t *keyTable) init(rng *rand.Rand) {
	t.rng = rng
	t.none = &mr{}
	t.grow(minKeys)
}

// grow resizes the table to n slots.
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

// place returns the slot for a key.
func (t *keyTable) place(key uint32) *atomic.Pointer[mr] {
	regions := *t.regions.Load()
	return &regions[int(key)&(len(regions)-1)]
}

// add stores m under its key, or under a new random one if the key is 0 or its slot is occupied. It
// returns false if the table is full.
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

// get returns the region registered under key, or none.
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

// find returns the n bytes at addr if the region belongs to d, contains them all and allows need.
// Otherwise, and for device memory, it returns nil and false: see onDevice. It and get are small enough
// to be inlined, which makes an 8-byte WRITE measurably faster.
func (m *mr) find(d *pd, addr uint64, n uint32, need verbs.Access) ([]byte, bool) {
	off := addr - m.addr
	if size := uint64(len(m.bytes)); m.pd == d && m.access&need == need && off <= size && uint64(n) <= size-off {
		return m.bytes[off : off+uint64(n)], true
	}
	return nil, false
}

// registerDMABuf is PD.RegisterDMABuf with the lock held. The region has its own mapping, so fd may be
// closed afterwards. It follows the kernel's rules (uverbs, REG_DMABUF_MR).
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
