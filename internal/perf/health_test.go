package perf

import (
	"strings"
	"testing"

	"ibverbx"
)

// rail and lane make parts of a report.
func railOf(i int, h *Health) Rail {
	return Rail{Rail: i, Health: h}
}

func laneOf(rail int, bytes uint64) Lane {
	return Lane{Rail: rail, Role: "data", Carried: Carried{Bytes: bytes, Fragments: 1000}}
}

func TestVerdict(t *testing.T) {
	even := []Lane{laneOf(0, 1000), laneOf(1, 1000)}
	for want, rep := range map[string]*Report{
		"healthy: nothing was lost, retransmitted or dropped": {PerRail: []Rail{railOf(0, &Health{}), railOf(1, &Health{})}, PerLane: even},
		"no trouble seen; these NICs show no counters":        {PerRail: []Rail{railOf(0, nil), railOf(1, nil)}, PerLane: even},
		"rail 1 is 40 % slower than rail 0 and loses 0.3 %": {
			PerRail: []Rail{railOf(0, &Health{Sent: 1000}), railOf(1, &Health{Sent: 1000, Lost: 3})}, PerLane: []Lane{laneOf(0, 1000), laneOf(1, 600)},
		},
		// Two lanes on rail 0 and one on rail 1, each as fast.
		"healthy: nothing was lost, retransmitted or dropped ": {
			PerRail: []Rail{railOf(0, &Health{}), railOf(1, &Health{})}, PerLane: []Lane{laneOf(0, 1000), laneOf(0, 1000), laneOf(1, 990)},
		},
		// Few fragments are spread by chance.
		"no trouble seen; these NICs show no counters ": {
			PerRail: []Rail{railOf(0, nil), railOf(1, nil)}, PerLane: []Lane{{Role: "data", Carried: Carried{Bytes: 900, Fragments: 60}}, {Rail: 1, Role: "data", Carried: Carried{Bytes: 100, Fragments: 40}}},
		},
		// SENDs are on one lane: the other rail is not slow.
		"healthy: nothing was lost, retransmitted or dropped  ": {
			PerRail: []Rail{railOf(0, &Health{}), railOf(1, &Health{})}, PerLane: []Lane{laneOf(0, 0), laneOf(1, 0), {Rail: 0, Role: "message", Carried: Carried{Bytes: 9}}},
		},
		"rail 0 had 2 timeouts and found no receive 3 times (RNR) and received 4 damaged packets and dropped 5 packets": {
			PerRail: []Rail{railOf(0, &Health{Timeouts: 2, RNRs: 3, BadICRC: 4, Drops: 5})}, PerLane: even[:1],
		},
		"rail 0 loses 1 %": {
			Transport: TransportUC, PerRail: []Rail{railOf(0, &Health{Sent: 8000, Lost: 10})}, PerLane: []Lane{{Role: "data", Health: &Health{Sent: 1000}}},
		},
	} {
		if got := rep.verdict(); got != strings.TrimSpace(want) {
			t.Errorf("verdict = %q, want %q", got, want)
		}
	}
}

// TestVitalsSince: counters begin at the mark, and those of a lane that was rebuilt at zero.
func TestVitalsSince(t *testing.T) {
	before := vitals{Rails: []Health{{Sent: 100, NAKs: 1}}, Lanes: []Health{{Retransmits: 5}, {Retransmits: 7}}, qpns: []uint32{1, 2}}
	now := vitals{Rails: []Health{{Sent: 150, NAKs: 4}}, Lanes: []Health{{Retransmits: 6}, {Retransmits: 3}}, qpns: []uint32{1, 9}}
	got := now.since(&before)
	if got.Rails[0] != (Health{Sent: 50, NAKs: 3}) || got.Lanes[0].Retransmits != 1 || got.Lanes[1].Retransmits != 3 {
		t.Errorf("since = %+v, want 50 sent and 3 NAKs, and retransmits 1 and 3", got)
	}
}

// TestVitalsOfPartner: a partner cannot send counters of more rails or lanes than there can be.
func TestVitalsOfPartner(t *testing.T) {
	for _, v := range []vitals{{Rails: make([]Health, ibverbx.MaxRails+1)}, {Lanes: make([]Health, maxVitals+1)}} {
		n := note{Kind: noteOver, Over: &outcome{Vitals: v}}
		if err := n.check(); err == nil {
			t.Errorf("counters of %d rails and %d lanes are taken, want an error", len(v.Rails), len(v.Lanes))
		}
	}
	var rep Report
	rep.PerRail, rep.PerLane = make([]Rail, 1), make([]Lane, 1)
	rep.examine(&vitals{Rails: []Health{{NAKs: 1}, {NAKs: 2}}, Lanes: []Health{{NAKs: 4}, {NAKs: 8}}})
	if rep.PerRail[0].Health.NAKs != 3 || rep.PerLane[0].Health.NAKs != 4 {
		t.Errorf("%+v and %+v, want 3 NAKs of the rail and 4 of the lane", rep.PerRail[0].Health, rep.PerLane[0].Health)
	}
}

// TestPathHealth: what paths lost is that of their lane and rail, and percentiles are over paths.
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
