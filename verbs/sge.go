package verbs

// SGEPart iterates over a part of an SGE list: a number of bytes from an offset on. It is a value without pointers to itself, so a
// loop over it does not allocate:
//
//	for p := verbs.PartOf(list, off, n); p.Next(); {
//		use(p.SGE)
//	}
type SGEPart struct {
	// SGE is the current element, cut to the part; valid after Next has returned true.
	SGE  SGE
	list []SGE
	off  uint32 // bytes of list before the part
	left uint32 // bytes of the part from off on
}

// PartOf returns the part of list with n bytes at offset off. It is shorter if list ends before.
func PartOf(list []SGE, off, n uint32) SGEPart { return SGEPart{list: list, off: off, left: n} }

// Next advances to the next element that is not empty and reports whether there is one.
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

// CutSGE sets dst to the part of src with n bytes at offset off and returns the number of its elements. dst may begin where src does.
func CutSGE(dst, src []SGE, off, n uint32) (count int) {
	for p := PartOf(src, off, n); p.Next(); count++ {
		dst[count] = p.SGE
	}
	return count
}
