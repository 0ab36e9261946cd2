package reliable

// routes finds what a QP number belongs to: a table with open addressing, at most
// half full. A slot whose number is 0 is free.
type routes struct {
	slots []routeSlot
	used  int
}

// routeSlot is a path of a link, or a control QP.
type routeSlot struct {
	qpn     uint32
	path    uint16
	link    *link
	control *controlQP
}

func (r *routes) home(qpn uint32) int {
	return int(qpn*0x9e3779b1>>8) & (len(r.slots) - 1)
}

// find returns the slot of a number, or nil.
func (r *routes) find(qpn uint32) *routeSlot {
	if len(r.slots) == 0 || qpn == 0 {
		return nil
	}
	for i := r.home(qpn); ; i = (i + 1) & (len(r.slots) - 1) {
		switch s := &r.slots[i]; s.qpn {
		case qpn:
			return s
		case 0:
			return nil
		}
	}
}

func (r *routes) add(s routeSlot) {
	if 2*(r.used+1) > len(r.slots) {
		old := r.slots
		r.slots = make([]routeSlot, max(64, 2*len(old)))
		for _, o := range old {
			if o.qpn != 0 {
				r.put(o)
			}
		}
	}
	r.put(s)
	r.used++
}

func (r *routes) put(s routeSlot) {
	i := r.home(s.qpn)
	for r.slots[i].qpn != 0 {
		i = (i + 1) & (len(r.slots) - 1)
	}
	r.slots[i] = s
}

// remove takes a number out and moves up what stands behind it.
func (r *routes) remove(qpn uint32) {
	if r.find(qpn) == nil {
		return
	}
	mask := len(r.slots) - 1
	i := r.home(qpn)
	for r.slots[i].qpn != qpn {
		i = (i + 1) & mask
	}
	r.slots[i] = routeSlot{}
	r.used--
	for i = (i + 1) & mask; r.slots[i].qpn != 0; i = (i + 1) & mask {
		s := r.slots[i]
		r.slots[i] = routeSlot{}
		r.put(s)
	}
}
