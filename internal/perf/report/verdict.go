package report

import (
	"fmt"
	"strings"

	"ibverbx/internal/perf/measure"
)

const (
	// slowRail is the fraction of the fastest rail's bytes per lane below which a rail is called
	// slow.
	slowRail = 0.9
	// verdictFragments is the minimum average number of fragments per data lane before speeds are
	// judged. Fewer are spread by chance.
	verdictFragments = 64
)

// Verdict describes the health of the rails: which rail is slow, or loses or drops packets.
func Verdict(rep *measure.Report) string {
	var said []string
	known, speed, best := len(rep.PerRail) > 0, speeds(rep), 0
	for i := range speed {
		if speed[i] > speed[best] {
			best = i
		}
	}
	for i := range rep.PerRail {
		rail := &rep.PerRail[i]
		known = known && rail.Health != nil
		var wrong []string
		if speed != nil && speed[i]/speed[best] < slowRail {
			wrong = append(wrong, fmt.Sprintf("is %.0f %% slower than rail %d", 100*(1-speed[i]/speed[best]), best))
		}
		if rail.Health != nil {
			wrong = append(wrong, troubles(rep, rail)...)
		}
		if len(wrong) > 0 {
			said = append(said, fmt.Sprintf("rail %d %s", i, strings.Join(wrong, " and ")))
		}
	}
	switch {
	case len(said) > 0:
		return strings.Join(said, "; ")
	case !known:
		return "no trouble seen; these NICs show no counters"
	}
	return "healthy: nothing was lost or dropped"
}

// troubles returns the clauses of a verdict that are based on counters.
func troubles(rep *measure.Report, rail *measure.Rail) (wrong []string) {
	h := rail.Health
	// A requester notices one loss and sends all packets behind it again, whether they were lost or not.
	sent := h.Sent - min(h.Retransmits, h.Sent)
	if rep.Transport.Carrier() != 0 {
		sent = 0
		for i := range rep.PerLane {
			if l := &rep.PerLane[i]; l.Rail == rail.Rail && l.Health != nil {
				sent += l.Health.Sent
			}
		}
	}
	if h.Lost > 0 && sent > 0 {
		wrong = append(wrong, fmt.Sprintf("loses %.2g %%", 100*float64(h.Lost)/float64(max(sent, h.Lost))))
	}
	for _, c := range []struct {
		n    uint64
		text string
	}{
		{h.Timeouts, "had %d timeouts"},
		{h.RNRs, "found no receive %d times (RNR)"},
		{h.BadICRC, "received %d damaged packets"},
		{h.Drops, "dropped %d packets"},
	} {
		if c.n > 0 {
			wrong = append(wrong, fmt.Sprintf(c.text, c.n))
		}
	}
	return wrong
}

// speeds returns the bytes per data lane of each rail. It returns nil if they cannot be compared:
// with one rail, after an outage, with too little traffic, or if a rail carried no traffic.
func speeds(rep *measure.Report) []float64 {
	if len(rep.PerRail) < 2 || rep.Failover != nil || !Judged(rep) {
		return nil
	}
	lanes, speed := make([]float64, len(rep.PerRail)), make([]float64, len(rep.PerRail))
	for i := range rep.PerLane {
		if l := &rep.PerLane[i]; l.Role == "data" && l.Rail < len(speed) {
			lanes[l.Rail]++
			speed[l.Rail] += float64(l.Bytes)
		}
	}
	for i := range speed {
		if speed[i] == 0 {
			return nil
		}
		speed[i] /= lanes[i]
	}
	return speed
}

// Judged reports whether lanes carried enough traffic to be compared.
func Judged(rep *measure.Report) bool {
	lanes, fragments := uint64(0), uint64(0)
	for i := range rep.PerLane {
		if l := &rep.PerLane[i]; l.Role == "data" {
			lanes++
			fragments += l.Fragments
		}
	}
	return lanes > 0 && fragments >= verdictFragments*lanes
}
