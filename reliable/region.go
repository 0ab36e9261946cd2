package reliable

import (
	"errors"

	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// region is a memory region of a wrapped PD. The driver copies SENDs, answers and retransmitted WRITEs
// into it, and carries out atomics on it, after its own access checks.
type region struct {
	verbs.MR
	pd     *pd
	access verbs.Access  // what RegisterMemory or RegisterDMABuf was asked for
	mem    *verbs.Memory // the whole region, nil for a dma-buf, which only the NIC can access
	lkey   uint32        // the local key, kept here, like addr and size, because pd.find looks at every element
	addr   uint64        // the address of the first byte
	size   uint64        // the length in bytes
}

var _ verbs.MR = (*region)(nil)

func (p *pd) RegisterMemory(m *verbs.Memory, access verbs.Access) (verbs.MR, error) {
	mr, err := p.inner.RegisterMemory(m, access)
	if err != nil {
		return nil, err
	}
	p.engine.mu.Lock()
	defer p.engine.mu.Unlock()
	return p.enlist(mr, m, access), nil
}

// RegisterDMABuf implements verbs.PD. The first one makes the copier, if the PD has a QP.
func (p *pd) RegisterDMABuf(fd int, offset, length, iova uint64, access verbs.Access) (verbs.MR, error) {
	mr, err := p.inner.RegisterDMABuf(fd, offset, length, iova, access)
	if err != nil {
		return nil, err
	}
	p.engine.mu.Lock()
	defer p.engine.mu.Unlock()
	if p.dmaBufs = true; p.ready {
		if err := p.copier.open(p); err != nil {
			return nil, errors.Join(err, mr.Close())
		}
	}
	return p.enlist(mr, nil, access), nil
}

// enlist makes a region known by its keys. mem is nil for a dma-buf.
func (p *pd) enlist(mr verbs.MR, mem *verbs.Memory, access verbs.Access) *region {
	r := &region{MR: mr, pd: p, access: access, mem: mem, lkey: mr.LKey(), addr: mr.Addr(), size: mr.Len()}
	p.byLKey.Set(r.lkey, r)
	p.byRKey.Set(mr.RKey(), r)
	return r
}

// Close implements verbs.MR. Nothing is copied through the region after it returns. On a second
// Close the keys may already belong to another region, which keeps them.
func (r *region) Close() error {
	p := r.pd
	p.engine.mu.Lock()
	defer p.engine.mu.Unlock()
	if p.byLKey.Find(r.LKey()) == r {
		p.byLKey.Delete(r.LKey())
	}
	if p.byRKey.Find(r.RKey()) == r {
		p.byRKey.Delete(r.RKey())
	}
	if p.recent == r {
		p.recent = nil
	}
	return r.MR.Close()
}

// holds reports whether n bytes at addr are all in the region.
func (r *region) holds(addr uint64, n uint32) bool {
	off := addr - r.addr
	return addr >= r.addr && off <= r.size && uint64(n) <= r.size-off
}

// remote returns the region that a peer names and its bytes, or nil if the peer does not have that access to
// them. A dma-buf has no bytes.
func (p *pd) remote(rkey uint32, addr uint64, n uint32, access verbs.Access) (*region, []byte) {
	r := p.byRKey.Find(rkey)
	if r == nil || r.access&access == 0 || !r.holds(addr, n) {
		return nil, nil
	}
	if r.mem == nil {
		return r, nil
	}
	return r, r.mem.Bytes()[addr-r.addr:][:n]
}

// covers reports whether the local keys of all elements cover their bytes; see find. With write, it also
// reports whether one of them is in a dma-buf.
func (p *pd) covers(sges []verbs.SGE, write bool) (ok, dmaBuf bool) {
	for k := range sges {
		if s := &sges[k]; s.Length > 0 {
			r := p.find(s, write)
			if r == nil {
				return false, false
			}
			dmaBuf = dmaBuf || r.mem == nil
		}
	}
	return true, dmaBuf
}

// find returns the region of an element, or nil if its key does not cover it. With write the region must
// allow local writes.
func (p *pd) find(s *verbs.SGE, write bool) *region {
	r := p.recent // most requests use the region of the request before
	if r == nil || r.lkey != s.LKey {
		if r = p.byLKey.Find(s.LKey); r != nil {
			p.recent = r
		}
	}
	if r == nil || (write && r.access&verbs.AccessLocalWrite == 0) || !r.holds(s.Addr, s.Length) {
		return nil
	}
	return r
}

// placement returns the status of an EvChunk whose bytes can be placed: at once by the CPU, later by the
// copier if they go to a dma-buf, or not now.
func (p *pd) placement(dmaBuf bool) uint8 {
	switch {
	case !dmaBuf:
		return 0
	case p.copier.room():
		return core.StatusPlacing
	}
	return core.StatusNoRecv
}
