package verbs

// SGEPart iterates over a byte range of an SGE list. It is a value without pointers to itself, so the
// loop does not allocate:
//
//	for p := verbs.PartOf(list, off, n); p.Next(); {
//		use(p.SGE)
//	}
type SGEPart struct {
	// SGE is the current element, clipped to the range; valid after Next returns true.
	SGE  SGE
	list []SGE
	off  uint32 // bytes of list before the part
	left uint32 // bytes of the part from off on
}

// PartOf returns an iterator over n bytes of list at offset off, clipped to the list's length.
func PartOf(list []SGE, off, n uint32) SGEPart { return SGEPart{list: list, off: off, left: n} }

// Next advances to the next non-empty element. It returns false at the end.
func (p *SGEPart) Next() bool {
	for p.left > 0 && len(p.list) > 0 {
		g := &p.list[0]
		p.list = p.list[1:]
		if p.off >= g.Length {
			p.off -= g.Length
			continue
		}
		p.SGE = SGE{Addr: g.Addr + uint64(p.off), Length: min(g.Length-p.off, p.left), LKey: g.LKey}
		p.off, p.left = 0, p.left-p.SGE.Length
		return true
	}
	return false
}

// CutSGE sets dst to n bytes of src at offset off and returns the number of elements written. dst may
// start at the same element as src.
func CutSGE(dst, src []SGE, off, n uint32) (count int) {
	for p := PartOf(src, off, n); p.Next(); count++ {
		dst[count] = p.SGE
	}
	return count
}
