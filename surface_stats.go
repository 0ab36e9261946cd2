package ibverbx

import (
	"encoding/json"
	"time"

	"ibverbx/internal/counter"
)

// Counts are the counters of a lane, a rail or a whole VirtualQP. They are always enabled and cost a few
// additions per physical request.
type Counts struct {
	Fragments uint64 // physical requests accepted by NICs, including records and notifications
	Bytes     uint64 // bytes written or read by these requests
	Doorbells uint64 // posts accepted by NICs, at least in part
	CQEs      uint64 // physical completions of sends and receives
	Refusals  uint64 // posts that a NIC rejected, at least in part
	Stale     uint64 // completions from an earlier generation of a lane
	HighWater int    // maximum number of outstanding requests
}

// counters are the Counts of a lane, written by the goroutine that uses the VirtualQP.
type counters struct {
	fragments, bytes, doorbells, cqes, refusals, stale, highWater counter.Counter
}

func (c *counters) load() Counts {
	return Counts{
		Fragments: c.fragments.Load(), Bytes: c.bytes.Load(), Doorbells: c.doorbells.Load(), CQEs: c.cqes.Load(),
		Refusals: c.refusals.Load(), Stale: c.stale.Load(), HighWater: int(c.highWater.Load()),
	}
}

// add adds other to c. It keeps the higher high-water mark.
func (c *Counts) add(other *Counts) {
	c.Fragments += other.Fragments
	c.Bytes += other.Bytes
	c.Doorbells += other.Doorbells
	c.CQEs += other.CQEs
	c.Refusals += other.Refusals
	c.Stale += other.Stale
	c.HighWater = max(c.HighWater, other.HighWater)
}

// since returns the difference between c and before.
func (c Counts) since(before *Counts) Counts {
	c.Fragments -= before.Fragments
	c.Bytes -= before.Bytes
	c.Doorbells -= before.Doorbells
	c.CQEs -= before.CQEs
	c.Refusals -= before.Refusals
	c.Stale -= before.Stale
	return c
}

// LaneStats are the counters and the state of one lane.
type LaneStats struct {
	// Lane is the index of the lane.
	Lane int
	// Rail is the index of the lane's rail.
	Rail int
	// QPN is the number of the lane's current QP.
	QPN uint32
	// Role is "data", "message" or "notify".
	Role string
	// State is "up" or, while out of service and during recovery, "dying", "gone", "idle", "offered" or
	// "probing".
	State string
	// Generation is the number of earlier QPs of the lane.
	Generation int
	// Deaths is the number of times the lane was lost.
	Deaths uint64
	// Replayed is the number of requests moved to other lanes or retransmitted by the rebuilt lane.
	Replayed uint64
	// Cause is the reason why the lane is out of service. It is nil while the lane is up.
	Cause error
	Counts
}

// MarshalJSON encodes Cause as its text, because errors have no JSON encoding.
func (s LaneStats) MarshalJSON() ([]byte, error) {
	type plain LaneStats // without this method
	cause := ""
	if s.Cause != nil {
		cause = s.Cause.Error()
	}
	return json.Marshal(struct {
		plain
		Cause string `json:",omitempty"`
	}{plain(s), cause})
}

// RailStats are the summed counters of all lanes on one rail.
type RailStats struct {
	// Rail is the index of the rail.
	Rail int
	// Device is the NIC's name.
	Device string
	// Up is the number of working data lanes on the rail.
	Up int
	// Down is 1 while the rail is lost: all its data lanes are out of service. In a sum, it counts VirtualQPs.
	Down int
	// Lost counts the losses of the rail, Recovered its recoveries.
	Lost, Recovered uint64
	// FailoverTime is the time for which losses of the rail delayed requests, until other lanes or rebuilt ones took
	// them over. Each loss adds its longest delay.
	FailoverTime time.Duration
	// Sealed is set when the rail's packets are encrypted and authenticated (Config.Seal).
	Sealed bool
	Counts
}

// Stats are the counters of a VirtualQP since its creation. Its HighWater counts the user's send
// requests.
type Stats struct {
	Posted uint64 // accepted send requests
	// Completed counts the completed send requests. For a single lane without failover, it counts the
	// reported completions.
	Completed     uint64
	RecvPosted    uint64 // accepted receives of both kinds
	RecvCompleted uint64 // completed receives of both kinds
	Out           int    // lanes out of service
	Deaths        uint64 // losses of lanes
	Replayed      uint64 // requests moved to other lanes or retransmitted by rebuilt lanes
	ControlErrors uint64 // control messages that failed to send or parse
	Counts
	// Lanes are the counters by lane, in lane order. Empty after Close.
	Lanes []LaneStats
	// Rails are the counters by rail, in rail order.
	Rails []RailStats
}

// Stats returns the counters by lane and by rail. It is safe for concurrent use; counters that change
// during the call may be from slightly different moments. After Close, it has no lanes.
func (q *VirtualQP) Stats() Stats {
	send, recv, pass, u := &q.send, &q.recv, &q.pass, &q.setup
	if u.rails == nil {
		return Stats{}
	}
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
		if r := q.failover.lossReport; r != nil {
			r.losses[i].fill(&s.Rails[i])
		}
	}
	for i, l := range u.all {
		v, counts := &l.recovery, l.counts.load()
		s.Lanes = append(s.Lanes, LaneStats{
			Lane: i, Rail: int(l.rail), QPN: l.num, Role: roleNames[l.role], State: v.state.String(), Generation: int(l.generation),
			Deaths: v.deaths, Replayed: v.replayed.Load(), Counts: counts,
		})
		s.Deaths += s.Lanes[i].Deaths
		s.Replayed += s.Lanes[i].Replayed
		if v.state != laneUp {
			s.Out++
			s.Lanes[i].Cause = v.downCause()
		} else if l.role == roleData {
			s.Rails[l.rail].Up++
		}
		s.add(&counts)
		here := counts.since(&v.countsBefore)
		s.Rails[l.rail].add(&here)
	}
	s.HighWater = int(max(send.highWater.Load(), pass.highWater.Load()))
	return s
}

// Add adds the statistics of another VirtualQP, whose rails are the same devices. It skips Lanes. A nil other is
// ignored.
func (s *Stats) Add(other *Stats) {
	if other == nil {
		return
	}
	s.Posted += other.Posted
	s.Completed += other.Completed
	s.RecvPosted += other.RecvPosted
	s.RecvCompleted += other.RecvCompleted
	s.Out += other.Out
	s.Deaths += other.Deaths
	s.Replayed += other.Replayed
	s.ControlErrors += other.ControlErrors
	s.add(&other.Counts)
	for i := range other.Rails {
		from := &other.Rails[i]
		if i == len(s.Rails) {
			s.Rails = append(s.Rails, RailStats{Rail: from.Rail, Device: from.Device, Sealed: from.Sealed})
		}
		to := &s.Rails[i]
		to.Up += from.Up
		to.Down += from.Down
		to.Sealed = to.Sealed && from.Sealed
		to.Lost += from.Lost
		to.Recovered += from.Recovered
		to.FailoverTime += from.FailoverTime
		to.add(&from.Counts)
	}
}

// Past returns the counters of a VirtualQP without the state of its lanes, to be kept after Close.
func (s *Stats) Past() Stats {
	if s == nil {
		return Stats{}
	}
	past := *s
	past.Out, past.Lanes, past.Rails = 0, nil, append([]RailStats(nil), s.Rails...)
	for i := range past.Rails {
		past.Rails[i].Up, past.Rails[i].Down = 0, 0
	}
	return past
}
