package measure

import (
	"net/netip"
	"strings"

	"ibverbx"
	"ibverbx/internal/roce"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// Health counts the problems of a rail or a lane over all results, without warm-up, at both sides
// if known.
type Health struct {
	// Sent counts packets sent by the NICs, 0 for a lane. With transport uc it counts chunks.
	Sent uint64 `json:"sent"`
	// Lost counts the losses that requesters noticed: go-backs on RC, lost chunks with transport uc.
	Lost uint64 `json:"lost"`
	// Retransmits counts packets sent again; with transport uc also chunks.
	Retransmits uint64 `json:"retransmits"`
	// Timeouts counts acknowledgement timers that fired.
	Timeouts uint64 `json:"timeouts"`
	// NAKs counts sequence and fatal NAKs.
	NAKs uint64 `json:"naks"`
	// RNRs counts RNR NAKs, sent by receivers without a posted receive.
	RNRs uint64 `json:"rnrs"`
	// BadICRC counts corrupted packets.
	BadICRC uint64 `json:"bad_icrc"`
	// Drops counts packets that a NIC dropped for any other reason.
	Drops uint64 `json:"drops"`
	// RTTp50 and RTTp99 are percentiles of the smoothed round-trip times, in microseconds, over the
	// paths of transport uc in the last result. They are 0 if unknown.
	RTTp50 float64 `json:"rtt_p50_us"`
	RTTp99 float64 `json:"rtt_p99_us"`
}

// counters lists all counters, none if h is nil; round-trip times are not counters.
func (h *Health) counters() []*uint64 {
	if h == nil {
		return nil
	}
	return []*uint64{&h.Sent, &h.Lost, &h.Retransmits, &h.Timeouts, &h.NAKs, &h.RNRs, &h.BadICRC, &h.Drops}
}

// add adds counters to those of a sum, if both are known.
func add(sum, more []*uint64) {
	for i := range min(len(sum), len(more)) {
		*sum[i] += *more[i]
	}
}

// subtract leaves the increments of counters since before, if both are known.
func subtract(now, before []*uint64) {
	for i := range min(len(now), len(before)) {
		*now[i] -= *before[i]
	}
}

// counters are the lanes and rails of a side with their counters at one time. Their health is nil if a NIC does not expose
// counters.
type counters struct {
	lanes []Lane
	rails []Rail
}

// counters reads the counters of a side. read is Observer.Health.
func (h *side) counters(read func(verbs.Context, uint32) (Health, bool)) (c counters) {
	s := h.stats()
	for i := range s.Lanes {
		l := &s.Lanes[i]
		c.lanes = append(c.lanes, Lane{Lane: l.Lane, Rail: l.Rail, QPN: l.QPN, Role: l.Role, Deaths: l.Deaths, Carried: carriedOf(&l.Counts)})
	}
	var known []*Health
	for i := range s.Rails {
		c.rails = append(c.rails, Rail{Rail: i, Carried: carriedOf(&s.Rails[i].Counts)})
		if read != nil {
			if health, ok := read(h.rails[i].Context, 0); ok {
				known = append(known, &health)
			}
		}
	}
	if len(known) < len(c.rails) {
		return c
	}
	for i := range c.rails {
		c.rails[i].Health = known[i]
	}
	for i := range c.lanes {
		l := &c.lanes[i]
		health, _ := read(h.rails[l.Rail].Context, l.QPN)
		l.Health = &health
	}
	return c
}

// since returns the increments of lanes and rails since before. A rebuilt lane has a new QP whose health starts at zero.
func (c *counters) since(before *counters) (lanes []Lane, rails []Rail) {
	lanes, rails = []Lane{}, []Rail{}
	for i, lane := range c.lanes[:min(len(c.lanes), len(before.lanes))] {
		was := &before.lanes[i]
		lane.Deaths -= was.Deaths
		subtract(lane.counters(), was.counters())
		if lane.QPN == was.QPN {
			subtract(lane.Health.counters(), was.Health.counters())
		}
		lanes = append(lanes, lane)
	}
	for i, rail := range c.rails[:min(len(c.rails), len(before.rails))] {
		was := &before.rails[i]
		subtract(rail.counters(), was.counters())
		subtract(rail.Health.counters(), was.Health.counters())
		rails = append(rails, rail)
	}
	return lanes, rails
}

// mark reads the counters before the measurement.
func (r *SizeRun) mark() {
	for _, h := range r.sides {
		if h.here() {
			h.before = h.counters(r.observer.Health)
		}
	}
}

// count stores the increments of this process's counters since mark. The traffic of a side is zero if it does not
// initiate, and before the measurement.
func (r *SizeRun) count(found *[2]*Outcome) {
	for side, h := range r.sides {
		if !h.here() {
			continue
		}
		now, o := h.counters(r.observer.Health), found[side]
		o.Lanes, o.Rails = now.since(&h.before)
		if h.out != nil && r.pace.began > 0 {
			continue
		}
		for i := range o.Lanes {
			o.Lanes[i].Deaths, o.Lanes[i].Carried = 0, Carried{}
		}
		for i := range o.Rails {
			o.Rails[i].Carried = Carried{}
		}
	}
}

// more adds the counters of other, if any, to the health of a rail or a lane.
func (h *Health) more(other *Health) *Health {
	if h == nil && other != nil {
		h = &Health{}
	}
	add(h.counters(), other.counters())
	return h
}

// examinePaths fills in the paths of the lanes, adds their losses to lanes and rails, and sets round-trip times. rails are
// the first side's rails; its QPs must still be open.
func (rep *Report) examinePaths(rails []ibverbx.RailConfig, paths func(verbs.Context, uint32) []Path) {
	times := make([][]float64, len(rep.PerRail))
	for i := range rep.PerLane {
		l := &rep.PerLane[i]
		if l.Rail < len(rails) {
			l.Paths = paths(rails[l.Rail].Context, l.QPN)
		}
		if len(l.Paths) == 0 {
			continue
		}
		rail := &rep.PerRail[l.Rail%len(rep.PerRail)]
		var sum Health
		var own []float64
		for k := range l.Paths {
			p := &l.Paths[k]
			sum.Sent, sum.Lost, sum.Retransmits = sum.Sent+p.Sent, sum.Lost+p.Lost, sum.Retransmits+p.Retransmitted
			if p.RTT > 0 {
				own = append(own, p.RTT)
			}
		}
		times[rail.Rail] = append(times[rail.Rail], own...)
		l.Health = l.Health.more(&sum)
		l.Health.RTTp50, l.Health.RTTp99 = quantiles(own, 1, 1)
		sum.Sent = 0 // already counted in NIC packets
		add(rail.Health.counters(), sum.counters())
	}
	for i := range rep.PerRail {
		if h := rep.PerRail[i].Health; h != nil && len(times[i]) > 0 {
			h.RTTp50, h.RTTp99 = quantiles(times[i], 1, 1)
		}
	}
}

// locate fills in the addresses of rails with Ethernet NICs. side is this process's side.
func (rep *Report) locate(s *peer.Session, side int) error {
	if s.Link == peer.LinkShm {
		return nil
	}
	paths, err := s.QP.Paths()
	for i := range paths {
		p := &paths[i]
		if p.Rail >= len(rep.PerRail) {
			continue
		}
		ends := [2]string{rep.address(p.Endpoint.GID, p.Endpoint.LID), rep.address(p.QP.AH.DGID, p.QP.AH.DLID)}
		if ends[0] != "" && ends[1] != "" {
			rail := &rep.PerRail[p.Rail]
			rail.Addr, rail.PeerAddr = ends[side], ends[1-side]
		}
	}
	return err
}

// address returns a NIC's IP address and UDP port. A software NIC stores its port in the LID.
func (rep *Report) address(gid verbs.GID, lid uint16) string {
	if gid == (verbs.GID{}) || rep.Table.LinkLayer != verbs.LinkLayerEthernet.String() {
		return ""
	}
	port := uint16(roce.Port)
	if strings.HasSuffix(rep.Provider, "softnic") && lid != 0 {
		port = lid
	}
	return netip.AddrPortFrom(netip.AddrFrom16(gid).Unmap(), port).String()
}
