package reliable

import (
	"errors"
	"slices"

	"ibverbx/internal/u32map"
	"ibverbx/verbs"
)

// region is a memory region of a wrapped PD. The driver copies SENDs, responses and retransmitted WRITEs
// into it and executes atomics on it, after its own access checks.
type region struct {
	verbs.MR
	pd     *pd
	access verbs.Access  // the access passed to RegisterMemory or RegisterDMABuf
	mem    *verbs.Memory // the memory, nil for a dma-buf and for device memory, which only the NIC can access
	device string        // the name of the device of device memory, otherwise ""
	lkey   uint32        // the local key, cached for find, like addr and size
	addr   uint64        // the address of the first byte
	size   uint64        // the length in bytes
}

var _ verbs.MR = (*region)(nil)

// regions finds the open regions of a PD by their keys.
type regions struct {
	byLKey u32map.Map[*region]
	byRKey u32map.Map[*region]
	recent *region   // the region last found by its local key, or nil
	device []*region // the regions of device memory
}

func (p *pd) RegisterMemory(m *verbs.Memory, access verbs.Access) (verbs.MR, error) {
	mr, err := p.inner.RegisterMemory(m, access)
	if err != nil {
		return nil, err
	}
	p.ctx.mu.Lock()
	defer p.ctx.mu.Unlock()
	r := &region{MR: mr, access: access, mem: m}
	if d := m.Device(); d != nil {
		r.mem, r.device = nil, d.Name()
	}
	return p.enlist(r)
}

// RegisterDMABuf implements verbs.PD.
func (p *pd) RegisterDMABuf(fd int, offset, length, iova uint64, access verbs.Access) (verbs.MR, error) {
	mr, err := p.inner.RegisterDMABuf(fd, offset, length, iova, access)
	if err != nil {
		return nil, err
	}
	p.ctx.mu.Lock()
	defer p.ctx.mu.Unlock()
	return p.enlist(&region{MR: mr, access: access})
}

// enlist adds a region to the tables. The first one that only the NIC can access opens the copiers of
// engines with QPs. If that fails, the region is closed.
func (p *pd) enlist(r *region) (verbs.MR, error) {
	r.pd, r.lkey, r.addr, r.size = p, r.LKey(), r.Addr(), r.Len()
	if r.mem == nil {
		var err error
		p.dmaBufs = true
		p.each(func(e *engine) { err = errors.Join(err, e.resources.enableDMABufs()) })
		if err != nil {
			return nil, errors.Join(err, r.MR.Close())
		}
	}
	p.regions.add(r)
	p.each(func(e *engine) { e.regions.add(r) })
	return r, nil
}

// Close implements verbs.MR. No copy uses the region afterwards.
func (r *region) Close() error {
	p := r.pd
	p.ctx.mu.Lock()
	defer p.ctx.mu.Unlock()
	p.regions.remove(r)
	p.each(func(e *engine) { e.regions.remove(r) })
	return r.MR.Close()
}

// clone returns a copy.
func (s *regions) clone() regions {
	return regions{byLKey: s.byLKey.Clone(), byRKey: s.byRKey.Clone(), device: slices.Clone(s.device)}
}

// add adds a region.
func (s *regions) add(r *region) {
	s.byLKey.Set(r.lkey, r)
	s.byRKey.Set(r.RKey(), r)
	if r.device != "" {
		s.device = append(s.device, r)
	}
}

// remove removes a region. If it was closed before, its keys may already belong to another region, which
// keeps them.
func (s *regions) remove(r *region) {
	if s.byLKey.Find(r.lkey) == r {
		s.byLKey.Delete(r.lkey)
	}
	if s.byRKey.Find(r.RKey()) == r {
		s.byRKey.Delete(r.RKey())
	}
	if s.recent == r {
		s.recent = nil
	}
	s.device = slices.DeleteFunc(s.device, func(d *region) bool { return d == r })
}

// deviceOf returns the name of a device that holds bytes of the elements, whatever their keys, or "".
func (s *regions) deviceOf(sges []verbs.SGE) string {
	for _, r := range s.device {
		for k := range sges {
			if g := &sges[k]; g.Length > 0 && g.Addr < r.addr+r.size && g.Addr+uint64(g.Length) > r.addr {
				return r.device
			}
		}
	}
	return ""
}

// holds reports whether n bytes at addr are all in the region.
func (r *region) holds(addr uint64, n uint32) bool {
	off := addr - r.addr
	return addr >= r.addr && off <= r.size && uint64(n) <= r.size-off
}

// remote returns the region that a peer addresses and its bytes, or nil if the peer does not have that access to
// them. A region that only the NIC can access has no bytes.
func (s *regions) remote(rkey uint32, addr uint64, n uint32, access verbs.Access) (*region, []byte) {
	r := s.byRKey.Find(rkey)
	if r == nil || r.access&access == 0 || !r.holds(addr, n) {
		return nil, nil
	}
	if r.mem == nil {
		return r, nil
	}
	return r, r.mem.Bytes()[addr-r.addr:][:n]
}

// covers reports whether the local keys of all elements cover their bytes; see find. With write, it also
// reports whether one of them is in a region that only the NIC can access.
func (s *regions) covers(sges []verbs.SGE, write bool) (ok, dmaBuf bool) {
	for k := range sges {
		if g := &sges[k]; g.Length > 0 {
			r := s.find(g, write)
			if r == nil {
				return false, false
			}
			dmaBuf = dmaBuf || r.mem == nil
		}
	}
	return true, dmaBuf
}

// find returns the region of an element, or nil if its key does not cover it. With write, the region must
// allow local writes.
func (s *regions) find(g *verbs.SGE, write bool) *region {
	r := s.recent // most requests use the region of the previous one
	if r == nil || r.lkey != g.LKey {
		if r = s.byLKey.Find(g.LKey); r != nil {
			s.recent = r
		}
	}
	if r == nil || (write && r.access&verbs.AccessLocalWrite == 0) || !r.holds(g.Addr, g.Length) {
		return nil
	}
	return r
}
