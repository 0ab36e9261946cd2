package sim

import (
	"time"

	"ibverbx/softnic"
)

// layPaths connects the hosts by the paths of the rails. Both directions have the same paths, because
// a path is a switch that carries both. A flow and its reverse flow may take different paths.
func (w *world) layPaths() error {
	for r := range w.plan.Rails {
		rp := &w.plan.Rails[r]
		for a := range w.hosts {
			for b := range a {
				paths := make([]softnic.Path, rp.Paths)
				for i := range paths {
					paths[i] = softnic.Path{Rate: rp.PathRate, Queue: rp.PathQueue}
					if rp.Skew > 0 {
						paths[i].Delay = time.Duration(w.rng.Int64N(int64(rp.Skew)))
					}
				}
				one, other := w.hosts[a].nics[r], w.hosts[b].nics[r]
				for _, pair := range [][2]*softnic.NIC{{one, other}, {other, one}} {
					if err := w.links[r].SetPaths(pair[0], pair[1], paths...); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// strikePath cuts one direction of a path, or makes it slow, until over.
func (w *world) injectPath(f *Fault, rail int, from, to *softnic.NIC, over int64) {
	if from == to {
		return
	}
	link, plan := w.links[rail], &w.plan.Rails[rail]
	index := f.Path % plan.Paths
	change := func(do func(*softnic.Path)) {
		p := link.Paths(from, to)[index]
		do(&p)
		_ = link.SetPath(from, to, index, p) // The path exists and is valid.
	}
	if f.Kind == FaultPathCut {
		change(func(p *softnic.Path) { p.Cut = true })
		w.eventQueue.add(over, func() { change(func(p *softnic.Path) { p.Cut = false }) })
		return
	}
	change(func(p *softnic.Path) {
		p.Delay += slowDelay
		if p.Rate == 0 || p.Rate > slowRate {
			p.Rate, p.Queue = slowRate, 1<<20
		}
	})
	w.eventQueue.add(over, func() {
		change(func(p *softnic.Path) {
			// Another fault may have made it slow, too, and last longer.
			if p.Delay -= slowDelay; p.Delay < slowDelay {
				p.Rate, p.Queue = plan.PathRate, plan.PathQueue
			}
		})
	})
}

// usesPath reports whether a lane of the connection uses the path of a fault in either direction.
func (e *end) usesPath(f *Fault) bool {
	rail := f.Rail % len(e.w.links)
	link, path := e.w.links[rail], f.Path%e.w.plan.Rails[rail].Paths
	mine, theirs := e.qp.Stats().Lanes, e.peer.qp.Stats().Lanes
	a, b := e.host.nics[rail], e.peer.host.nics[rail]
	for i := range min(len(mine), len(theirs)) { // A closed VirtualQP does not have lanes.
		if mine[i].Rail == rail && (link.PathOf(a, b, theirs[i].QPN, 0) == path || link.PathOf(b, a, mine[i].QPN, 0) == path) {
			return true
		}
	}
	return false
}
