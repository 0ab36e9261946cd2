package sim

// This file holds: if a scenario asks for it, ends a reach a share of what the rails can
// carry, headers of packets included.

// meter measures what ends a get done, from their first request to the end of their last:
// what it costs to learn, to fill the queues and to drain them is part of it.
type meter struct {
	bytes    int
	from, to int64
	begun    bool
}

// begin takes note of a request that is posted.
func (m *meter) begin(now int64) {
	if !m.begun {
		m.begun, m.from = true, now
	}
}

// count takes note of a request that succeeded.
func (m *meter) count(now int64, r *request) {
	m.bytes += r.length
	m.to = now
}

// rate is in bytes per second.
func (m *meter) rate() float64 {
	if m.to <= m.from {
		return 0
	}
	return float64(m.bytes) / float64(m.to-m.from) * 1e9
}

// capacity is what the rails can carry from ends a to ends b, in bytes per second: of equal
// paths, those that a data lane is pinned to. It is 0 if there is a rail without a rate.
func (w *world) capacity() (sum float64) {
	for i := range w.plan.Rails {
		r := &w.plan.Rails[i]
		least := r.Impairment.Rate
		for _, rate := range []float64{r.PortRate, float64(w.pathsUsed(i)) * r.PathRate} {
			if rate > 0 && (least == 0 || rate < least) {
				least = rate
			}
		}
		if least == 0 {
			return 0
		}
		sum += least
	}
	return sum
}

// pathsUsed counts the paths of a rail that flows of data to an end b take.
func (w *world) pathsUsed(rail int) (n int) {
	used := make([]bool, w.plan.Rails[rail].Paths)
	for _, e := range w.ends {
		if e.index%2 == 0 {
			continue
		}
		for _, l := range e.qp.Stats().Lanes {
			if l.Rail != rail || l.Role != "data" {
				continue
			}
			if p := w.links[rail].PathOf(e.peer.host.nics[rail], e.host.nics[rail], l.QPN, 0); !used[p] {
				used[p] = true
				n++
			}
		}
	}
	return n
}

// checkGoodput looks at what was measured.
func (w *world) checkGoodput() {
	if w.plan.Goodput == 0 {
		return
	}
	of := w.capacity()
	w.capable = of
	if of == 0 {
		w.fail("world", "", "the goodput is to be measured, and a rail has no rate")
		return
	}
	if share := w.meter.rate() / of; share*10000 < float64(w.plan.Goodput) {
		w.fail("goodput", "", "%.1f of %.1f Gb/s, that is %.1f%%; want %s", w.meter.rate()*8e-9, of*8e-9, share*100,
			formatValue(unitPercent, int64(w.plan.Goodput)))
	}
}
