package sim

import (
	"bytes"

	"ibverbx/softnic"
)

// granule is how finely a host knows whom its bytes belong to.
const granule = 256

// zone is a part of a host's memory that requests take ranges of, in turn. Ranges go back
// in the order in which they were taken, so those in use are a window that goes round.
type zone struct {
	host        *host
	at, size    int    // in granules
	head, tail  uint64 // in granules, counted without end
	live        []*span
	liveHead    int
	free        []*span
	lastRelease func(s *span) // sees every range that goes back
}

// span is a range that belongs to one request or receive.
type span struct {
	zone     *zone
	off, len int // of the host's memory
	from, to uint64
	allow    touchSet // what a NIC may do to it now
	touches  int      // what NICs did to it
	ended    bool     // its owner has ended: the range goes back in its turn
	// known says that the range holds a content, and must until it goes back.
	known   bool
	content uint32
	label   string
	id      uint64
}

// touchSet is a set of kinds of accesses.
type touchSet uint8

func setOf(kinds ...softnic.TouchKind) (s touchSet) {
	for _, k := range kinds {
		s |= 1 << k
	}
	return s
}

func (s touchSet) has(k softnic.TouchKind) bool { return s>>k&1 != 0 }

// newZone takes the next size bytes of the host's memory.
func (h *host) newZone(size int) *zone {
	z := &zone{host: h, at: h.laidOut, size: (size + granule - 1) / granule}
	h.laidOut += z.size
	return z
}

// bytes returns what a range holds.
func (s *span) bytes() []byte { return s.zone.host.memory.Bytes()[s.off:][:s.len] }

// alloc takes a range of n bytes, a few after the start of a granule and with one granule
// between it and the next. It returns nil if there is none.
func (z *zone) alloc(n, shift int) *span {
	need := uint64((n+shift+granule-1)/granule + 1)
	total := uint64(z.size)
	start := z.tail
	if start%total+need > total {
		start += total - start%total // ranges do not go round
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
	*s = span{zone: z, off: (z.at+int(start%total))*granule + shift, len: n, from: start, to: start + need}
	for i := start; i < s.to; i++ {
		z.host.owners[z.at+int(i%total)] = s
	}
	z.tail = s.to
	z.live = append(z.live, s)
	return s
}

// release gives back the oldest ranges whose owners have ended.
func (z *zone) release() {
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

// end notes that the owner of a range has ended, and whether a content is in it that must
// stay there.
func (s *span) end() {
	s.ended, s.allow = true, 0
	s.zone.release()
}

// holds reports whether the range holds n bytes of a content.
func (s *span) holds(p *Pool, content uint32) bool {
	return bytes.Equal(s.bytes(), p.content(content, s.len))
}
