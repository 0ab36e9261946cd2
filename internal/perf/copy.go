package perf

import "time"

// place is where a message is at the source and at the target.
type place struct{ source, target []byte }

// places returns the places of the messages in the order in which a round of posting uses them:
// chain by chain, QP by QP. They are built ahead so that nothing but the copy is timed.
func (r *row) places() []place {
	var places []place
	for first := 0; first < r.plan.slots; first += r.plan.chain {
		for _, f := range r.flows {
			for q := range r.plan.qps {
				for m := first; m < first+r.plan.chain; m++ {
					places = append(places, place{f.source.message(q, int64(m)), f.target.message(q, int64(m))})
				}
			}
		}
	}
	return places
}

// copyRate returns how many bytes per second Go's copy moves between the places. It runs for at
// least d and at least one batch, and reads the clock once per batch. The flows must be idle, or
// have failed.
func (r *row) copyRate(places []place, d time.Duration) float64 {
	batch := max(1, min(maxChain, chainBytes/r.plan.stride))
	start := r.now()
	for copied, at := 0, 0; ; {
		for range batch {
			p := &places[at]
			copied += copy(p.target, p.source)
			if at++; at == len(places) {
				at = 0
			}
		}
		if t := r.now() - start; t >= d && t > 0 {
			r.pace.copying += t
			return float64(copied) / t.Seconds()
		}
	}
}
