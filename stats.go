package ibverbx

import "ibverbx/internal/counter"

// Counts is what a lane, a rail or a whole VirtualQP did. It is always on, and costs a few additions per
// physical request.
type Counts struct {
	Fragments uint64 // physical requests that a NIC took, records and notifications included
	Bytes     uint64 // bytes that they wrote or read
	Doorbells uint64 // posts of which a NIC took something
	CQEs      uint64 // physical completions, of sends and receives
	Refusals  uint64 // posts that a NIC took only in part, or not at all
	Stale     uint64 // completions of an earlier generation of a lane
	HighWater int    // highest number of requests that were outstanding at once
}

// counters are the Counts of a lane, written by the goroutine that uses the VirtualQP.
type counters struct {
	fragments, bytes, doorbells, cqes, refusals, stale, highWater counter.Counter
}

// load returns the present values.
func (c *counters) load() Counts {
	return Counts{
		Fragments: c.fragments.Load(), Bytes: c.bytes.Load(), Doorbells: c.doorbells.Load(), CQEs: c.cqes.Load(),
		Refusals: c.refusals.Load(), Stale: c.stale.Load(), HighWater: int(c.highWater.Load()),
	}
}

// add adds other to c. High-water marks do not add up: the highest counts.
func (c *Counts) add(other *Counts) {
	c.Fragments += other.Fragments
	c.Bytes += other.Bytes
	c.Doorbells += other.Doorbells
	c.CQEs += other.CQEs
	c.Refusals += other.Refusals
	c.Stale += other.Stale
	c.HighWater = max(c.HighWater, other.HighWater)
}

// since returns what was counted since before.
func (c Counts) since(before *Counts) Counts {
	c.Fragments -= before.Fragments
	c.Bytes -= before.Bytes
	c.Doorbells -= before.Doorbells
	c.CQEs -= before.CQEs
	c.Refusals -= before.Refusals
	c.Stale -= before.Stale
	return c
}

// LaneStats is what one lane did.
type LaneStats struct {
	Lane int
	Rail int
	QPN  uint32
	// Role is "data", "message" or "notify".
	Role string
	// State is "up" or, on the way out of service and back, "dying", "gone", "idle", "offered" or
	// "probing".
	State string
	// Generation counts the QPs that the lane has had before.
	Generation int
	// Deaths counts how often the lane went out of service.
	Deaths uint64
	// Replayed counts the requests that other lanes took over or its next generation sent again.
	Replayed uint64
	// Cause is why the lane is out of service; nil while it is up.
	Cause error
	Counts
}

// RailStats is what the lanes on one rail did together.
type RailStats struct {
	Rail int
	// Device is the name of the NIC.
	Device string
	// Up is how many data lanes are in service on the rail.
	Up int
	// Sealed says that packets of the rail are encrypted and authenticated (Config.Seal).
	Sealed bool
	Counts
}

// Stats is what a VirtualQP did. Its own HighWater counts the user's send requests.
type Stats struct {
	Posted uint64 // send requests that were taken
	// Completed counts the send requests that have ended. If a single lane passes everything through,
	// it counts the completions that were reported.
	Completed     uint64
	RecvPosted    uint64 // receives of both kinds that were taken
	RecvCompleted uint64 // receives of both kinds that have ended
	Out           int    // lanes that are out of service
	ControlErrors uint64 // control messages that could not be sent or read
	Counts
	Lanes []LaneStats
	Rails []RailStats
}

// Stats returns what the VirtualQP has done so far, by lane and by rail. Any goroutine may call it at any
// time. Numbers that change meanwhile need not belong to the same moment. After Close there are no lanes.
func (q *VirtualQP) Stats() Stats {
	send, recv, pass, u := &q.send, &q.recv, &q.pass, &q.setup
	s := Stats{
		Completed: send.ended.Load() + pass.completed.Load(), RecvCompleted: recv.completed.Load() + pass.recvCompleted.Load(),
		ControlErrors: q.failover.link.errors.Load(), Rails: make([]RailStats, u.rails.Len()),
	}
	s.Posted = max(send.posted.Load()+pass.posted.Load(), s.Completed)
	s.RecvPosted = max(recv.posted.Load()+pass.recvPosted.Load(), s.RecvCompleted)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range s.Rails {
		s.Rails[i] = RailStats{Rail: i, Device: u.rails.rails[i].name, Sealed: u.sealed(i), Counts: q.failover.railPast[i]}
	}
	for i, l := range u.all {
		v, counts := &l.life, l.counts.load()
		s.Lanes = append(s.Lanes, LaneStats{
			Lane: i, Rail: int(l.rail), QPN: l.num, Role: roleNames[l.role], State: v.state.String(), Generation: int(l.generation),
			Deaths: v.deaths, Replayed: v.replayed.Load(), Counts: counts,
		})
		if v.state != laneUp {
			s.Out++
			s.Lanes[i].Cause = v.why()
		} else if l.role == roleData {
			s.Rails[l.rail].Up++
		}
		s.add(&counts)
		here := counts.since(&v.before)
		s.Rails[l.rail].add(&here)
	}
	s.HighWater = int(max(send.highWater.Load(), pass.highWater.Load()))
	return s
}
