package softnic

import (
	"ibverbx/internal/bulk"
	"ibverbx/verbs"
)

// scatter puts the payload of p into the SGEs, off bytes after their start.
func (q *qp) scatter(sges []verbs.SGE, off uint32, p *packet) verbs.Status {
	for k := range p.numSegs {
		if s := q.scatterBytes(sges, off, p.segs[k]); s != verbs.StatusSuccess {
			return s
		}
		off += uint32(len(p.segs[k]))
	}
	return verbs.StatusSuccess
}

// scatterBytes puts b into the SGEs, off bytes after their start. It places nothing
// beyond them and nothing where the region does not allow local writes.
func (q *qp) scatterBytes(sges []verbs.SGE, off uint32, b []byte) verbs.Status {
	for k := range sges {
		s := &sges[k]
		if off >= s.Length {
			off -= s.Length
			continue
		}
		if len(b) == 0 {
			return verbs.StatusSuccess
		}
		n := min(uint64(s.Length-off), uint64(len(b)))
		dst, ok := q.nic.mrs.find(q.pd, s.LKey, s.Addr+uint64(off), uint32(n), verbs.AccessLocalWrite)
		if !ok {
			return verbs.StatusLocProtErr
		}
		if q.nic.observe != nil {
			q.touch(TouchScatter, s.Addr+uint64(off), uint32(n))
		}
		bulk.Copy(dst, b[:n])
		b, off = b[n:], 0
	}
	if len(b) > 0 {
		return verbs.StatusLocLenErr
	}
	return verbs.StatusSuccess
}
