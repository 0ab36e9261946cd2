package reliable

import "ibverbx/verbs"

// region is a memory region of a wrapped PD. The driver copies into it what is repeated or
// sent, after its own checks.
type region struct {
	verbs.MR
	pd     *domain
	access verbs.Access
	mem    *verbs.Memory
	lkey   uint32
}

var _ verbs.MR = (*region)(nil)

// Close implements verbs.MR. Nothing is copied through the region after it returns. Its keys may
// be another's by now if it was closed before.
func (r *region) Close() error {
	r.pd.ctx.mu.Lock()
	defer r.pd.ctx.mu.Unlock()
	r.pd.byLKey.remove(r.LKey(), r)
	if r.pd.recent == r {
		r.pd.recent = nil
	}
	r.pd.byRKey.remove(r.RKey(), r)
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

// remote returns the bytes that a peer may write to, or false if it may not.
func (d *domain) remote(rkey uint32, addr uint64, n uint32) ([]byte, bool) {
	r := d.byRKey.find(rkey)
	if r == nil || r.access&verbs.AccessRemoteWrite == 0 {
		return nil, false
	}
	return r.bytes(addr, n)
}

// local returns the bytes of an element, or false if the key does not cover them; write asks
// for the right to write.
func (d *domain) local(s *verbs.SGE, write bool) ([]byte, bool) {
	r := d.recent // most requests name the region that the one before named
	if r == nil || r.lkey != s.LKey {
		if r = d.byLKey.find(s.LKey); r != nil {
			d.recent = r
		}
	}
	if r == nil || (write && r.access&verbs.AccessLocalWrite == 0) {
		return nil, false
	}
	return r.bytes(s.Addr, s.Length)
}
