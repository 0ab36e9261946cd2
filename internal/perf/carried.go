package perf

import "ibverbx"

// Carried is what a lane or a rail did: proof of which QP and which NIC carried what.
type Carried struct {
	// Fragments counts physical requests, records and notifications of a scheme
	// included; Bytes is what they carried or fetched.
	Fragments uint64 `json:"fragments"`
	Bytes     uint64 `json:"bytes"`
	Doorbells uint64 `json:"doorbells"`
	// CQEs counts physical completions of sends and receives.
	CQEs uint64 `json:"cqes"`
	// Refusals counts posts that a NIC took only in part, or not at all.
	Refusals uint64 `json:"refusals"`
}

func (c *Carried) add(other Carried) {
	c.Fragments += other.Fragments
	c.Bytes += other.Bytes
	c.Doorbells += other.Doorbells
	c.CQEs += other.CQEs
	c.Refusals += other.Refusals
}

// Lane is what one lane did over all results, without warm-up. If both ends initiate it is
// what its two QPs did.
type Lane struct {
	Lane int `json:"lane"`
	Rail int `json:"rail"`
	// QPN is the number of the QP at the first end, in the last result: every result has
	// QPs of its own.
	QPN uint32 `json:"qpn"`
	// Role is "data", "message" or "notify".
	Role string `json:"role"`
	// Deaths counts how often the lane was lost in a test between processes; it came back
	// as often, or is about to.
	Deaths uint64 `json:"deaths,omitempty"`
	Carried
}

// Rail is what the lanes on one rail did together.
type Rail struct {
	Rail int `json:"rail"`
	// Device and Peer are the NICs of the two ends.
	Device string `json:"device"`
	Peer   string `json:"peer"`
	Carried
}

// lanes says what the lanes did so far, for each end that initiates.
func (r *row) lanes() (stats [][]ibverbx.LaneStats) {
	for _, f := range r.flows {
		stats = append(stats, r.pair.ends[f.index].lanes())
	}
	return stats
}

// mark says that what counts begins now, behind the warm-up.
func (r *row) mark() { r.before = r.lanes() }

// account adds to a report what the lanes did since mark, or since it was last called. A
// lane that lost its rail may come back on another: it is counted where it is now.
func (r *row) account(rep *Report) {
	lanes := r.lanes()
	for side, lanes := range lanes {
		for i, now := range lanes {
			if i == len(rep.PerLane) {
				rep.PerLane = append(rep.PerLane, Lane{Lane: now.Lane, Rail: now.Rail, Role: now.Role})
			}
			before := &r.before[side][i]
			moved := Carried{
				Fragments: now.Fragments - before.Fragments,
				Bytes:     now.Bytes - before.Bytes,
				Doorbells: now.Doorbells - before.Doorbells,
				CQEs:      now.CQEs - before.CQEs,
				Refusals:  now.Refusals - before.Refusals,
			}
			lane := &rep.PerLane[i]
			lane.add(moved)
			rep.PerRail[now.Rail].add(moved)
			if side == 0 {
				lane.QPN, lane.Rail = now.QPN, now.Rail
			}
		}
	}
	r.before = lanes
}
