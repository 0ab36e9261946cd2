package ibverbx

// routeTable finds lanes by QP number: a hash table with open addressing, at most half
// full. QP numbers are unique on a rail and on no more than that.
type routeTable struct {
	slots []route
	count int
}

type route struct {
	qpn  uint32
	lane *lane // nil marks a free slot
}

func (t *routeTable) init(lanes int) {
	t.slots = make([]route, max(8, ceilPow2(2*(lanes+1))))
	t.count = 0
}

// home spreads numbers that are counted up, which QP numbers usually are.
func (t *routeTable) home(qpn uint32) int { return int(qpn*0x9e3779b1>>8) & (len(t.slots) - 1) }

func (t *routeTable) find(qpn uint32) *lane {
	slots := t.slots
	if len(slots) == 0 {
		return nil
	}
	for i := t.home(qpn); ; i++ {
		s := &slots[i&(len(slots)-1)]
		if s.qpn == qpn || s.lane == nil {
			return s.lane
		}
	}
}

func (t *routeTable) add(l *lane) {
	if 2*(t.count+1) > len(t.slots) {
		t.rebuild(nil)
	}
	t.put(l)
}

func (t *routeTable) put(l *lane) {
	qpn := l.qp.Num()
	i := t.home(qpn)
	for t.slots[i].lane != nil {
		i = (i + 1) & (len(t.slots) - 1)
	}
	t.slots[i] = route{qpn, l}
	t.count++
}

// rebuild makes the table anew, with room to grow and without the lanes of one VirtualQP.
func (t *routeTable) rebuild(without *VirtualQP) {
	old := t.slots
	t.init(2 * t.count)
	for _, s := range old {
		if s.lane != nil && s.lane.owner != without {
			t.put(s.lane)
		}
	}
}
