package measure

import "ibverbx"

// Carried counts the traffic of a lane or a rail. It shows the load of each QP and NIC.
type Carried struct {
	// Fragments counts physical requests, including records and notifications of a scheme.
	Fragments uint64 `json:"fragments"`
	// Bytes is the payload of these requests.
	Bytes uint64 `json:"bytes"`
	// Doorbells counts posts.
	Doorbells uint64 `json:"doorbells"`
	// CQEs counts physical completions of sends and receives.
	CQEs uint64 `json:"cqes"`
	// Refusals counts posts that a NIC accepted only in part, or not at all.
	Refusals uint64 `json:"refusals"`
	// Share is the fraction of the bytes of all rails, 0 to 1.
	Share float64 `json:"share"`
}

func carriedOf(c *ibverbx.Counts) Carried {
	return Carried{Fragments: c.Fragments, Bytes: c.Bytes, Doorbells: c.Doorbells, CQEs: c.CQEs, Refusals: c.Refusals}
}

func (c *Carried) counters() []*uint64 {
	return []*uint64{&c.Fragments, &c.Bytes, &c.Doorbells, &c.CQEs, &c.Refusals}
}

func (c *Carried) add(other Carried) { add(c.counters(), other.counters()) }

// Lane reports the traffic of one lane over all results, without warm-up. If both sides initiate,
// it is the sum over both of the lane's QPs.
type Lane struct {
	// Lane is the index of the lane.
	Lane int `json:"lane"`
	// Rail is the rail that the lane is on.
	Rail int `json:"rail"`
	// QPN is the QP number at the first side in the last result. Each result uses new QPs.
	QPN uint32 `json:"qpn"`
	// Role is "data", "message" or "notify".
	Role string `json:"role"`
	// Deaths counts the losses of the lane. It was rebuilt after each, or is being rebuilt.
	Deaths uint64 `json:"deaths,omitempty"`
	// Paths are the UC QPs behind the lane's QP at the first side, in the last result. Empty unless
	// the transport is uc.
	Paths []Path `json:"paths,omitempty"`
	Carried
	// Health is nil if the NIC does not count by QP.
	Health *Health `json:"health,omitempty"`
}

// Path reports the traffic of one UC QP of a lane, including warm-up. A path with more loss or
// delay than the other paths of its lane is faulty.
type Path struct {
	// QPN is the number of the UC QP, 0 while the path is out of service.
	QPN uint32 `json:"qpn"`
	// State is "UP", or the step the path is waiting for.
	State string `json:"state"`
	// Sent counts chunks.
	Sent uint64 `json:"sent"`
	// Retransmitted counts the retransmitted chunks among Sent.
	Retransmitted uint64 `json:"retransmitted"`
	// Lost counts the lost chunks among Sent.
	Lost uint64 `json:"lost"`
	// RTT is the smoothed round-trip time in microseconds, 0 if unknown.
	RTT float64 `json:"rtt_us"`
	// QueueDelay is the excess of RTT over the path's minimum round-trip time, in microseconds.
	QueueDelay float64 `json:"queue_delay_us"`
}

// Rail reports the combined traffic of the lanes on one rail.
type Rail struct {
	// Rail is the index of the rail.
	Rail int `json:"rail"`
	// Device is the NIC of the first side.
	Device string `json:"device"`
	// Peer is the NIC of the second side.
	Peer string `json:"peer"`
	// Addr is the IP address and UDP port of Device, empty if the link does not use them.
	Addr string `json:"addr,omitempty"`
	// PeerAddr is the address of Peer.
	PeerAddr string `json:"peer_addr,omitempty"`
	Carried
	// Health is nil if the NICs do not expose counters.
	Health *Health `json:"health,omitempty"`
}

// shares fills in the shares of rails and lanes.
func (rep *Report) shares() {
	total := uint64(0)
	for i := range rep.PerRail {
		total += rep.PerRail[i].Bytes
	}
	of := func(c *Carried) { c.Share = round(float64(c.Bytes)/float64(max(total, 1)), 6) }
	for i := range rep.PerRail {
		of(&rep.PerRail[i].Carried)
	}
	for i := range rep.PerLane {
		of(&rep.PerLane[i].Carried)
	}
}

// add adds a side's increments to the report. A rail index beyond PerRail wraps around.
func (rep *Report) add(side int, o *Outcome) {
	for i := range o.Lanes {
		l := &o.Lanes[i]
		if i == len(rep.PerLane) {
			rep.PerLane = append(rep.PerLane, Lane{Lane: l.Lane, Rail: l.Rail, QPN: l.QPN, Role: l.Role})
		}
		sum := &rep.PerLane[i]
		sum.add(l.Carried)
		sum.Deaths += l.Deaths
		sum.Health = sum.Health.more(l.Health)
		if side == 0 {
			sum.QPN, sum.Rail = l.QPN, l.Rail
		}
	}
	for i := range o.Rails {
		rail := &rep.PerRail[i%len(rep.PerRail)]
		rail.add(o.Rails[i].Carried)
		rail.Health = rail.Health.more(o.Rails[i].Health)
	}
}
