package measure

import (
	"net/netip"
	"strings"

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

// counters lists all counters; round-trip times are not counters.
func (h *Health) counters() [8]*uint64 {
	return [...]*uint64{&h.Sent, &h.Lost, &h.Retransmits, &h.Timeouts, &h.NAKs, &h.RNRs, &h.BadICRC, &h.Drops}
}

// add adds the counters of other.
func (h *Health) add(other *Health) {
	more := other.counters()
	for i, c := range h.counters() {
		*c += *more[i]
	}
}

// since returns the increments since before.
func (h Health) since(before *Health) (d Health) {
	now, then := h.counters(), before.counters()
	for i, c := range d.counters() {
		*c = *now[i] - *then[i]
	}
	return d
}

// SideHealth is the health of one side's rails and lanes. Lists are empty if unknown.
type SideHealth struct {
	Rails []Health `json:"rails"`
	Lanes []Health `json:"lanes"`
	qpns  []uint32 // QP numbers of Lanes
}

// health reads the counters of a side.
func (h *side) health(read func(verbs.Context, uint32) (Health, bool)) (v SideHealth) {
	if read == nil || h.sideQPs == nil {
		return v
	}
	for i := range h.rails {
		health, ok := read(h.rails[i].Context, 0)
		if !ok {
			return SideHealth{}
		}
		v.Rails = append(v.Rails, health)
	}
	for _, l := range h.lanes() {
		if l.Rail >= len(h.rails) {
			return v
		}
		health, _ := read(h.rails[l.Rail].Context, l.QPN)
		v.Lanes, v.qpns = append(v.Lanes, health), append(v.qpns, l.QPN)
	}
	return v
}

// since returns the increments since before. A rebuilt lane has a new QP whose counters start at
// zero.
func (v *SideHealth) since(before *SideHealth) SideHealth {
	d := SideHealth{Rails: []Health{}, Lanes: []Health{}}
	for i := range v.Rails[:min(len(v.Rails), len(before.Rails))] {
		d.Rails = append(d.Rails, v.Rails[i].since(&before.Rails[i]))
	}
	for i := range v.Lanes {
		was := Health{}
		if i < len(before.qpns) && before.qpns[i] == v.qpns[i] {
			was = before.Lanes[i]
		}
		d.Lanes = append(d.Lanes, v.Lanes[i].since(&was))
	}
	return d
}

// examine adds the health of a side to the report.
func (rep *Report) examine(v *SideHealth) {
	for i := range v.Rails {
		rail := &rep.PerRail[i%len(rep.PerRail)]
		if rail.Health == nil {
			rail.Health = &Health{}
		}
		rail.Health.add(&v.Rails[i])
	}
	for i := range v.Lanes[:min(len(v.Lanes), len(rep.PerLane))] {
		lane := &rep.PerLane[i]
		if lane.Health == nil {
			lane.Health = &Health{}
		}
		lane.Health.add(&v.Lanes[i])
	}
}

// examinePaths adds path losses to their lanes and rails, and sets round-trip times.
func (rep *Report) examinePaths() {
	times := make([][]float64, len(rep.PerRail))
	for i := range rep.PerLane {
		l := &rep.PerLane[i]
		if len(l.Paths) == 0 {
			continue
		}
		rail := &rep.PerRail[l.Rail%len(rep.PerRail)]
		var sum Health
		var own []float64
		for k := range l.Paths {
			p := &l.Paths[k]
			sum.add(&Health{Sent: p.Sent, Lost: p.Lost, Retransmits: p.Retransmitted})
			if p.RTT > 0 {
				own = append(own, p.RTT)
			}
		}
		times[rail.Rail] = append(times[rail.Rail], own...)
		if l.Health == nil {
			l.Health = &Health{}
		}
		l.Health.add(&sum)
		l.Health.RTTp50, l.Health.RTTp99 = quantiles(own, 1, 1)
		if rail.Health != nil {
			sum.Sent = 0 // already counted in NIC packets
			rail.Health.add(&sum)
		}
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
