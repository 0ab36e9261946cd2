package measure

import "testing"

// railOf returns a rail of a report.
func railOf(i int, h *Health) Rail {
	return Rail{Rail: i, Health: h}
}

// TestHealthSince: counters start at the mark; counters of a rebuilt lane start at zero.
func TestHealthSince(t *testing.T) {
	laneOf := func(qpn uint32, retransmits, fragments uint64) Lane {
		return Lane{QPN: qpn, Health: &Health{Retransmits: retransmits}, Carried: Carried{Fragments: fragments}}
	}
	before := counters{rails: []Rail{railOf(0, &Health{Sent: 100, NAKs: 1})}, lanes: []Lane{laneOf(1, 5, 10), laneOf(2, 7, 20)}}
	now := counters{rails: []Rail{railOf(0, &Health{Sent: 150, NAKs: 4})}, lanes: []Lane{laneOf(1, 6, 13), laneOf(9, 3, 24)}}
	got, rails := now.since(&before)
	if got[0].Fragments != 3 || got[1].Fragments != 4 {
		t.Errorf("since has %d and %d fragments, want 3 and 4", got[0].Fragments, got[1].Fragments)
	}
	if *rails[0].Health != (Health{Sent: 50, NAKs: 3}) || got[0].Health.Retransmits != 1 || got[1].Health.Retransmits != 3 {
		t.Errorf("since = %+v and %+v, want 50 sent and 3 NAKs, and retransmits 1 and 3", rails, got)
	}
}

// TestHealthOfOtherRails: counters of rails that this side lacks are added to existing ones. The lane counters of both
// sides are added up.
func TestHealthOfOtherRails(t *testing.T) {
	var rep Report
	rep.PerRail = make([]Rail, 1)
	for side := range 2 {
		rep.add(side, &Outcome{Lanes: []Lane{{Health: &Health{NAKs: 4}}}, Rails: []Rail{railOf(0, &Health{NAKs: 1}), railOf(1, &Health{NAKs: 2})}})
	}
	if rep.PerRail[0].Health.NAKs != 6 || rep.PerLane[0].Health.NAKs != 8 {
		t.Errorf("%+v and %+v, want 6 NAKs of the rail and 8 of the lane", rep.PerRail[0].Health, rep.PerLane[0].Health)
	}
}

// TestPathHealth: path losses count for their lane and rail, and percentiles are over paths.
func TestPathHealth(t *testing.T) {
	rep := Report{
		PerRail: []Rail{railOf(0, &Health{Sent: 70}), railOf(1, &Health{})},
		PerLane: []Lane{
			{Rail: 0, Paths: []Path{{Sent: 10, Lost: 1, Retransmitted: 2, RTT: 10}, {Sent: 20, RTT: 30}, {}}},
			{Rail: 0, Paths: []Path{{Sent: 5, Lost: 3, RTT: 50}}},
		},
	}
	rep.examinePaths(nil, nil)
	if got := *rep.PerLane[0].Health; got != (Health{Sent: 30, Lost: 1, Retransmits: 2, RTTp50: 20, RTTp99: 30}) {
		t.Errorf("lane 0: %+v, want 30 sent, 1 lost, 2 retransmits, round trips of 20 and 30", got)
	}
	if got := *rep.PerRail[0].Health; got != (Health{Sent: 70, Lost: 4, Retransmits: 2, RTTp50: 30, RTTp99: 50}) {
		t.Errorf("rail 0: %+v, want 70 sent, 4 lost, 2 retransmits, round trips of 30 and 50", got)
	}
}
