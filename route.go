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
	i := t.home(l.num)
	for t.slots[i].lane != nil {
		i = (i + 1) & (len(t.slots) - 1)
	}
	t.slots[i] = route{l.num, l}
	t.count++
}

// remove takes out one lane. What follows it in its run of slots is put again.
func (t *routeTable) remove(l *lane) {
	mask := len(t.slots) - 1
	for i := t.home(l.num); t.slots[i&mask].lane != nil; i++ {
		if t.slots[i&mask].lane != l {
			continue
		}
		t.slots[i&mask] = route{}
		t.count--
		for k := i + 1; t.slots[k&mask].lane != nil; k++ {
			again := t.slots[k&mask].lane
			t.slots[k&mask] = route{}
			t.count--
			t.put(again)
		}
		return
	}
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
