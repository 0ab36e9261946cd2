package reliable

import "ibverbx/verbs"

// region is a memory region of a wrapped PD. The driver copies SENDs, answers and retransmitted WRITEs
// into it, and carries out atomics on it, after its own access checks.
type region struct {
	verbs.MR
	pd     *pd
	access verbs.Access  // what RegisterMemory was asked for
	mem    *verbs.Memory // the whole region
	lkey   uint32        // the local key, kept here because pd.local compares it for every element
}

var _ verbs.MR = (*region)(nil)

func (p *pd) RegisterMemory(m *verbs.Memory, access verbs.Access) (verbs.MR, error) {
	mr, err := p.inner.RegisterMemory(m, access)
	if err != nil {
		return nil, err
	}
	r := &region{MR: mr, pd: p, access: access, mem: m, lkey: mr.LKey()}
	p.ctx.mu.Lock()
	defer p.ctx.mu.Unlock()
	p.byLKey.Set(mr.LKey(), r)
	p.byRKey.Set(mr.RKey(), r)
	return r, nil
}

// Close implements verbs.MR. Nothing is copied through the region after it returns. On a second
// Close the keys may already belong to another region, which keeps them.
func (r *region) Close() error {
	p := r.pd
	p.ctx.mu.Lock()
	defer p.ctx.mu.Unlock()
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

// bytes returns n bytes at addr, or false if they are not all in the region.
func (r *region) bytes(addr uint64, n uint32) ([]byte, bool) {
	b := r.mem.Bytes()
	if addr < r.Addr() {
		return nil, false
	}
	off := addr - r.Addr()
	if off > uint64(len(b)) || uint64(n) > uint64(len(b))-off {
		return nil, false
	}
	return b[off : off+uint64(n)], true
}

// remote returns the region and the bytes that a peer names, or nil if it does not have that access to
// them.
func (p *pd) remote(rkey uint32, addr uint64, n uint32, access verbs.Access) (*region, []byte) {
	r := p.byRKey.Find(rkey)
	if r == nil || r.access&access == 0 {
		return nil, nil
	}
	b, ok := r.bytes(addr, n)
	if !ok {
		return nil, nil
	}
	return r, b
}

// covers reports whether the local keys of all elements cover their bytes; see local.
func (p *pd) covers(sges []verbs.SGE, write bool) bool {
	for k := range sges {
		if s := &sges[k]; s.Length > 0 {
			if _, ok := p.local(s, write); !ok {
				return false
			}
		}
	}
	return true
}

// local returns the bytes of an element, or false if its key does not cover them. With write the
// region must allow local writes.
func (p *pd) local(s *verbs.SGE, write bool) ([]byte, bool) {
	r := p.recent // most requests use the region of the request before
	if r == nil || r.lkey != s.LKey {
		if r = p.byLKey.Find(s.LKey); r != nil {
			p.recent = r
		}
	}
	if r == nil || (write && r.access&verbs.AccessLocalWrite == 0) {
		return nil, false
	}
	return r.bytes(s.Addr, s.Length)
}
