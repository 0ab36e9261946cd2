package ibverbx

// Counts is what a lane, a rail or a whole VirtualQP did. It costs a few additions per
// physical request and is always on.
type Counts struct {
	Fragments uint64 // physical requests that a NIC took, records and notifications included
	Bytes     uint64 // that they carried, or fetched
	Doorbells uint64 // posts of which a NIC took something
	CQEs      uint64 // physical completions, of sends and receives
	Refusals  uint64 // posts that a NIC took only in part, or not at all
	Stale     uint64 // completions of a lane as it was before
	HighWater int    // the most requests that were outstanding at once
}

// add counts other into c. Marks of several queues do not add up: the highest stands.
func (c *Counts) add(other *Counts) {
	c.Fragments += other.Fragments
	c.Bytes += other.Bytes
	c.Doorbells += other.Doorbells
	c.CQEs += other.CQEs
	c.Refusals += other.Refusals
	c.Stale += other.Stale
	c.HighWater = max(c.HighWater, other.HighWater)
}

// since returns what was counted after before was.
func (c Counts) since(before *Counts) Counts {
	c.Fragments -= before.Fragments
	c.Bytes -= before.Bytes
	c.Doorbells -= before.Doorbells
	c.CQEs -= before.CQEs
	c.Refusals -= before.Refusals
	c.Stale -= before.Stale
	return c
}

// LaneStats is what one lane did: proof of which QP carried what.
type LaneStats struct {
	Lane int
	Rail int
	QPN  uint32
	// Role is "data", "message" or "notify".
	Role string
	// State is "up", or where the lane is on its way out of service and back: "dying",
	// "gone", "idle", "offered", "probing". Generation counts its QPs.
	State      string
	Generation int
	// Deaths counts how often it went out of service, and Replayed the requests that
	// others took over from it or that its next generation sent again.
	Deaths, Replayed uint64
	// Cause is why it is out of service; nil while it is up.
	Cause error
	Counts
}

// RailStats is what the lanes on one rail did together.
type RailStats struct {
	Rail int
	// Device is the name of the NIC.
	Device string
	// Up is how many data lanes are in service on it.
	Up int
	Counts
}

// Stats is what a VirtualQP did. Its own HighWater counts the user's send requests. A
// VirtualQP that passes everything through knows of requests what the NIC tells: Completed
// counts the completions that it reported.
type Stats struct {
	Posted, Completed         uint64 // send requests taken, and ended
	RecvPosted, RecvCompleted uint64 // receives, of both kinds
	// Out is how many lanes are out of service.
	Out int
	Counts
	Lanes []LaneStats
	Rails []RailStats
}

// Stats returns what the VirtualQP did so far, by lane and by rail. It may be called at
// any time by the goroutine that uses the VirtualQP.
func (q *VirtualQP) Stats() Stats {
	send, recv, pass, f, u := &q.send, &q.recv, &q.pass, &q.failover, &q.setup
	s := Stats{
		Posted: send.posted + pass.posted, Completed: send.posted - uint64(send.sends.posted-send.sends.reported) + pass.completed,
		RecvPosted: recv.posted + pass.recvPosted, RecvCompleted: recv.completed + pass.recvCompleted, Out: f.out,
	}
	s.Rails = make([]RailStats, u.rails.Len())
	for i := range s.Rails {
		s.Rails[i].Rail, s.Rails[i].Device, s.Rails[i].Counts = i, u.rails.rails[i].name, f.railPast[i]
	}
	for i, l := range u.all {
		s.Lanes = append(s.Lanes, LaneStats{
			Lane: i, Rail: int(l.rail), QPN: l.qp.Num(), Role: roleNames[l.role], State: l.life.state.String(), Generation: int(l.generation),
			Deaths: l.life.deaths, Replayed: l.life.replayed, Counts: l.counts,
		})
		if l.life.state != laneUp {
			s.Lanes[i].Cause = l.life.cause
		} else if l.role == roleData {
			s.Rails[l.rail].Up++
		}
		s.add(&l.counts)
		here := l.counts.since(&l.life.before)
		s.Rails[l.rail].add(&here)
	}
	s.HighWater = max(send.highWater, pass.highWater)
	return s
}
