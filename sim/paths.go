package sim

import (
	"time"

	"ibverbx/softnic"
)

// layPaths joins the hosts by the paths of the rails: as many in both directions, because a
// path is a switch that both go through. A flow and the one back need not take the same.
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

// strikePath cuts one path, or makes it slow, in both directions, for a while.
func (w *world) strikePath(f *Fault, over int64) {
	rail := f.Rail % len(w.links)
	link := w.links[rail]
	path := f.Path % w.plan.Rails[rail].Paths
	one, other := w.hosts[f.From%len(w.hosts)].nics[rail], w.hosts[f.To%len(w.hosts)].nics[rail]
	if one == other {
		return
	}
	for _, pair := range [][2]*softnic.NIC{{one, other}, {other, one}} {
		change := func(do func(*softnic.Path)) {
			p := link.Paths(pair[0], pair[1])[path]
			do(&p)
			_ = link.SetPath(pair[0], pair[1], path, p) // it is there, and valid
		}
		if f.Kind == FaultPathCut {
			change(func(p *softnic.Path) { p.Cut = true })
			w.agenda.add(over, func() { change(func(p *softnic.Path) { p.Cut = false }) })
			continue
		}
		change(func(p *softnic.Path) {
			p.Delay += slowDelay
			if p.Rate == 0 || p.Rate > slowRate {
				p.Rate, p.Queue = slowRate, 1<<20
			}
		})
		w.agenda.add(over, func() {
			change(func(p *softnic.Path) {
				// Another one may have come in the meantime, and last longer.
				if p.Delay -= slowDelay; p.Delay < slowDelay {
					p.Rate, p.Queue = w.plan.Rails[rail].PathRate, w.plan.Rails[rail].PathQueue
				}
			})
		})
	}
}

// takes reports whether a lane of the connection has a flow, in either direction, on the
// path that a fault names.
func (e *end) takes(f *Fault) bool {
	rail := f.Rail % len(e.w.links)
	link, path := e.w.links[rail], f.Path%e.w.plan.Rails[rail].Paths
	mine, theirs := e.qp.Stats().Lanes, e.peer.qp.Stats().Lanes
	a, b := e.host.nics[rail], e.peer.host.nics[rail]
	for i := range min(len(mine), len(theirs)) { // none if it is closed
		if mine[i].Rail == rail && (link.PathOf(a, b, theirs[i].QPN, 0) == path || link.PathOf(b, a, mine[i].QPN, 0) == path) {
			return true
		}
	}
	return false
}
