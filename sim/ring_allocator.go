package sim

import (
	"bytes"

	"ibverbx/softnic"
)

// granule is the unit of memory ownership in bytes.
const granule = 256

// ringAllocator allocates ranges of a part of a host's memory. Ranges are released in allocation order, so the part is a ring.
type ringAllocator struct {
	host        *host
	at          int           // first granule
	size        int           // granules
	head        uint64        // first granule in use, not reduced modulo size
	tail        uint64        // first free granule, not reduced modulo size
	live        []*span       // ranges in use from index liveHead on, oldest first
	liveHead    int           // index of the oldest range in live
	free        []*span       // spans that can be used again
	lastRelease func(s *span) // called for every released range
}

// holds reports whether n bytes at an offset of the host's memory are in the ring.
func (z *ringAllocator) holds(off, n int) bool {
	return off >= z.at*granule && off+n <= (z.at+z.size)*granule
}

// span is a range that belongs to one request or receive.
type span struct {
	ring    *ringAllocator
	off     int      // offset in the host's memory in bytes
	len     int      // bytes
	from    uint64   // first granule, counted as ring.head
	to      uint64   // first granule after it, counted as ring.head
	allow   touchSet // accesses that NICs may make now
	touches int      // accesses that NICs have made
	ended   bool     // its owner has ended; the range is released after all earlier ones
	known   bool     // the range must hold content until it is released
	content uint32
	label   string // end of the owner
	id      uint64 // number of the owner
}

// touchSet is a set of kinds of access.
type touchSet uint8

func setOf(kinds ...softnic.AccessKind) (s touchSet) {
	for _, k := range kinds {
		s |= 1 << k
	}
	return s
}

func (s touchSet) has(k softnic.AccessKind) bool { return s>>k&1 != 0 }

// newRing creates a ring of the next size bytes of the host's memory.
func (h *host) newRing(size int) *ringAllocator {
	z := &ringAllocator{host: h, at: h.allocated, size: (size + granule - 1) / granule}
	h.allocated += z.size
	return z
}

// bytes returns the memory of a range.
func (s *span) bytes() []byte { return s.ring.host.memory.Bytes()[s.off:][:s.len] }

// alloc allocates n bytes, shift bytes after the start of a granule. A free granule follows them. It returns nil if the ring is full.
func (z *ringAllocator) alloc(n, shift int) *span {
	need := uint64((n+shift+granule-1)/granule + 1)
	total := uint64(z.size)
	start := z.tail
	if start%total+need > total {
		start += total - start%total // A range does not wrap.
	}
	if start+need-z.head > total {
		return nil
	}
	var s *span
	if k := len(z.free); k > 0 {
		s, z.free = z.free[k-1], z.free[:k-1]
	} else {
		s = &span{}
	}
	*s = span{ring: z, off: (z.at+int(start%total))*granule + shift, len: n, from: start, to: start + need}
	for i := start; i < s.to; i++ {
		z.host.owners[z.at+int(i%total)] = s
	}
	z.tail = s.to
	z.live = append(z.live, s)
	return s
}

// release releases the oldest ranges whose owners have ended.
func (z *ringAllocator) release() {
	for z.liveHead < len(z.live) && z.live[z.liveHead].ended {
		s := z.live[z.liveHead]
		z.lastRelease(s)
		for i := s.from; i < s.to; i++ {
			z.host.owners[z.at+int(i%uint64(z.size))] = nil
		}
		z.head = s.to
		z.free = append(z.free, s)
		z.live[z.liveHead] = nil
		z.liveHead++
	}
	switch {
	case z.liveHead == len(z.live):
		z.live, z.liveHead = z.live[:0], 0
		z.head = z.tail
	case z.liveHead > 64:
		z.live = append(z.live[:0], z.live[z.liveHead:]...)
		z.liveHead = 0
	}
}

// end records that the owner of a range has ended.
func (s *span) end() {
	s.ended, s.allow = true, 0
	s.ring.release()
}

// holds reports whether the range holds a content.
func (s *span) holds(p *Pool, content uint32) bool {
	return bytes.Equal(s.bytes(), p.content(content, s.len))
}
