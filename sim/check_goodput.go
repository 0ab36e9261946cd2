package sim

// This file checks that the goodput of ends a reaches the scenario's fraction of the rails' capacity, which includes packet headers.

// meter measures the goodput of ends a, from their first request to the completion of their last.
// Learning rates, filling queues and draining them are included.
type meter struct {
	bytes int   // payload of requests that succeeded
	from  int64 // time of the first post
	to    int64 // time of the last completion
	begun bool  // from is set
}

// begin counts a posted request.
func (m *meter) begin(now int64) {
	if !m.begun {
		m.begun, m.from = true, now
	}
}

// count counts a successful request.
func (m *meter) count(now int64, r *request) {
	m.bytes += r.length
	m.to = now
}

// rate is the goodput in bytes per second.
func (m *meter) rate() float64 {
	if m.to <= m.from {
		return 0
	}
	return float64(m.bytes) / float64(m.to-m.from) * 1e9
}

// capacity is the capacity of the rails from ends a to ends b in bytes per second. Only paths with a data lane count. It is 0 if the rate
// of a rail is unlimited.
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

// pathsUsed counts the paths of a rail that carry data to ends b.
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
			if p := w.links[rail].PathOf(e.peer.host.nics[rail], e.host.nics[rail], l.QPN, 0); p >= 0 && !used[p] { // A host has no paths to itself.
				used[p] = true
				n++
			}
		}
	}
	return n
}

// checkGoodput compares the goodput with the plan.
func (w *world) checkGoodput() {
	if w.plan.Goodput == 0 {
		return
	}
	rate, of := w.meter.rate(), w.capacity()
	w.report.Goodput, w.report.Capacity = rate, of
	if of == 0 {
		w.fail("world", "", "the scenario sets goodput, but a rail has no rate")
	} else if share := rate / of; share*10000 < float64(w.plan.Goodput) {
		w.fail("goodput", "", "%.1f of %.1f Gb/s, which is %.1f%%; want %s", rate*8e-9, of*8e-9, share*100,
			formatValue(unitPercent, int64(w.plan.Goodput)))
	}
}
