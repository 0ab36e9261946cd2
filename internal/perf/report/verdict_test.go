package report

import (
	"strings"
	"testing"

	"ibverbx/internal/perf/measure"
	"ibverbx/peer"
)

// rail and lane return parts of a report.
func railOf(i int, h *measure.Health) measure.Rail {
	return measure.Rail{Rail: i, Health: h}
}

func laneOf(rail int, bytes uint64) measure.Lane {
	return measure.Lane{Rail: rail, Role: "data", Carried: measure.Carried{Bytes: bytes, Fragments: 1000}}
}

func TestVerdict(t *testing.T) {
	even := []measure.Lane{laneOf(0, 1000), laneOf(1, 1000)}
	for want, rep := range map[string]*measure.Report{
		"healthy: nothing was lost or dropped":         {PerRail: []measure.Rail{railOf(0, &measure.Health{}), railOf(1, &measure.Health{})}, PerLane: even},
		"no trouble seen; these NICs show no counters": {PerRail: []measure.Rail{railOf(0, nil), railOf(1, nil)}, PerLane: even},
		"rail 1 is 40 % slower than rail 0 and loses 0.3 %": {
			PerRail: []measure.Rail{railOf(0, &measure.Health{Sent: 1000}), railOf(1, &measure.Health{Sent: 1000, Lost: 3})}, PerLane: []measure.Lane{laneOf(0, 1000), laneOf(1, 600)},
		},
		// Two lanes on rail 0 and one on rail 1, each as fast.
		"healthy: nothing was lost or dropped ": {
			PerRail: []measure.Rail{railOf(0, &measure.Health{}), railOf(1, &measure.Health{})}, PerLane: []measure.Lane{laneOf(0, 1000), laneOf(0, 1000), laneOf(1, 990)},
		},
		// Few fragments are spread by chance.
		"no trouble seen; these NICs show no counters ": {
			PerRail: []measure.Rail{railOf(0, nil), railOf(1, nil)}, PerLane: []measure.Lane{{Role: "data", Carried: measure.Carried{Bytes: 900, Fragments: 60}}, {Rail: 1, Role: "data", Carried: measure.Carried{Bytes: 100, Fragments: 40}}},
		},
		// SENDs are on one lane: the other rail is not slow.
		"healthy: nothing was lost or dropped  ": {
			PerRail: []measure.Rail{railOf(0, &measure.Health{}), railOf(1, &measure.Health{})}, PerLane: []measure.Lane{laneOf(0, 0), laneOf(1, 0), {Rail: 0, Role: "message", Carried: measure.Carried{Bytes: 9}}},
		},
		"rail 0 had 2 timeouts and found no receive 3 times (RNR) and received 4 damaged packets and dropped 5 packets": {
			PerRail: []measure.Rail{railOf(0, &measure.Health{Timeouts: 2, RNRs: 3, BadICRC: 4, Drops: 5})}, PerLane: even[:1],
		},
		// One loss of RC retransmits many packets. They neither count as lost nor hide the loss.
		"rail 0 loses 1 % ": {PerRail: []measure.Rail{railOf(0, &measure.Health{Sent: 3000, Lost: 10, Retransmits: 2000})}, PerLane: even[:1]},
		"rail 0 loses 1 %": {
			Transport: peer.TransportUC, PerRail: []measure.Rail{railOf(0, &measure.Health{Sent: 8000, Lost: 10})}, PerLane: []measure.Lane{{Role: "data", Health: &measure.Health{Sent: 1000}}},
		},
	} {
		if got := Verdict(rep); got != strings.TrimSpace(want) {
			t.Errorf("verdict = %q, want %q", got, want)
		}
	}
}
