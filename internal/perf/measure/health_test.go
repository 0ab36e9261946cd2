package measure

import (
	"testing"
)

// railOf returns a rail of a report.
func railOf(i int, h *Health) Rail {
	return Rail{Rail: i, Health: h}
}

// TestHealthSince: counters start at the mark; counters of a rebuilt lane start at zero.
func TestHealthSince(t *testing.T) {
	before := SideHealth{Rails: []Health{{Sent: 100, NAKs: 1}}, Lanes: []Health{{Retransmits: 5}, {Retransmits: 7}}, qpns: []uint32{1, 2}}
	now := SideHealth{Rails: []Health{{Sent: 150, NAKs: 4}}, Lanes: []Health{{Retransmits: 6}, {Retransmits: 3}}, qpns: []uint32{1, 9}}
	got := now.since(&before)
	if got.Rails[0] != (Health{Sent: 50, NAKs: 3}) || got.Lanes[0].Retransmits != 1 || got.Lanes[1].Retransmits != 3 {
		t.Errorf("since = %+v, want 50 sent and 3 NAKs, and retransmits 1 and 3", got)
	}
}

// TestHealthOfOtherRails: counters of rails and lanes that this side lacks are added to existing
// ones.
func TestHealthOfOtherRails(t *testing.T) {
	var rep Report
	rep.PerRail, rep.PerLane = make([]Rail, 1), make([]Lane, 1)
	rep.examine(&SideHealth{Rails: []Health{{NAKs: 1}, {NAKs: 2}}, Lanes: []Health{{NAKs: 4}, {NAKs: 8}}})
	if rep.PerRail[0].Health.NAKs != 3 || rep.PerLane[0].Health.NAKs != 4 {
		t.Errorf("%+v and %+v, want 3 NAKs of the rail and 4 of the lane", rep.PerRail[0].Health, rep.PerLane[0].Health)
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
	rep.examinePaths()
	if got := *rep.PerLane[0].Health; got != (Health{Sent: 30, Lost: 1, Retransmits: 2, RTTp50: 20, RTTp99: 30}) {
		t.Errorf("lane 0: %+v, want 30 sent, 1 lost, 2 retransmits, round trips of 20 and 30", got)
	}
	if got := *rep.PerRail[0].Health; got != (Health{Sent: 70, Lost: 4, Retransmits: 2, RTTp50: 30, RTTp99: 50}) {
		t.Errorf("rail 0: %+v, want 70 sent, 4 lost, 2 retransmits, round trips of 30 and 50", got)
	}
}
