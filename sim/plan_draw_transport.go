package sim

// wrapping selects the rails that package reliable wraps.
type wrapping uint8

const (
	wrapNone wrapping = iota
	wrapAll
	wrapSome // each rail may be
)

// transports draws the queueing and the QP transport of each rail.
func (d *planner) transports() {
	p := d.p
	if int64(d.IntN(10000)) < d.pick("", settingNamed(listSettings, "wrap")) {
		d.wrap = wrapAll
		if len(p.Rails) > 1 && d.IntN(2) == 0 {
			d.wrap = wrapSome
		}
	}
	for i := range p.Rails {
		d.rail = &p.Rails[i]
		place := railPlace(i)
		d.fill(place, transportSettings, d.rail.TransportPlan.fields())
		if d.rail.Wrapped && !d.rail.Datagrams {
			d.keepOrder(place)
		}
	}
	for i := len(d.s.faults); i < len(p.Faults); i++ {
		f := &p.Faults[i]
		if f.Kind == FaultCQ && p.Rails[f.Rail%len(p.Rails)].Wrapped {
			f.Kind = FaultReset // The CQ of a wrapped rail cannot fail.
		}
	}
}

// keepOrder disables reordering and duplication on a rail, unless the scenario enables them. Package reliable requires that of a UC path.
func (d *planner) keepOrder(place string) {
	i := &d.rail.Impairment
	for name, share := range map[string]*float64{"duplicate": &i.Duplicate, "reorder": &i.Reorder} {
		if _, pinned := d.pinned(place, name); !pinned {
			*share = 0
		}
	}
}

func (d *planner) wrapped() int64 {
	if d.wrap == wrapAll || (d.wrap == wrapSome && d.IntN(2) == 0) {
		return 1
	}
	return 0
}

// ucPaths draws a number of paths. Few lanes may have many.
func (d *planner) ucPaths() int64 {
	lanes := int64(0)
	for i := range d.p.Connects {
		lanes += int64(d.p.Connects[i].Lanes) + 2
	}
	return min(oneOf(1, 2, 4, 4, 8, 16, 64)(d), max(192/lanes, 1))
}

// chunk draws a length of up to 16 packets, and at most half a queue of the fabric. A chunk is one UC message, sent at once: if it exceeds
// a queue, it is lost every time.
func (d *planner) chunk() int64 {
	mtu := int64(d.rail.MTU.Bytes())
	room := int64(min(d.rail.PortQueue, d.rail.PathQueue)) / 2
	return min(mtu*oneOf(1, 4, 16)(d), max(room, mtu))
}
