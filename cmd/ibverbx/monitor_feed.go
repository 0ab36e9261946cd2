package main

import (
	"cmp"
	"fmt"
	"time"

	"ibverbx"
	"ibverbx/internal/monitor"
	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// liveLanes is the maximum number of lanes shown per sample. Tests with more lanes show rails only.
const liveLanes = 64

// feed converts the snapshots of consecutive runs to samples and events in a monitor.Record. It is not safe for concurrent use.
type feed struct {
	rec *monitor.Record
	// faults returns a rail's active faults. It may be nil.
	faults func(rail int) []string
	// contexts lists the NICs of each rail in the current run, for retransmit counters.
	contexts [][]verbs.Context

	began    time.Duration  // total duration of earlier runs
	messages int64          // total of earlier runs
	bytes    int64          // total of earlier runs
	last     monitor.Sample // latest sample of the current run

	at       time.Duration       // time of the last sample
	received int64               // bytes received by then
	lanes    []ibverbx.LaneStats // counters at that time
	sent     []uint64            // retransmit baseline per rail; may wrap
}

// next starts another run.
func (f *feed) next() {
	f.began += time.Duration(f.last.At * float64(time.Second))
	f.messages, f.bytes = f.messages+f.last.Messages, f.bytes+f.last.Bytes
	f.last = monitor.Sample{}
}

// look adds a snapshot. The first snapshot of a run sets the baseline.
func (f *feed) look(shot measure.Snapshot) {
	if shot.At == 0 {
		f.follow(shot.Contexts, shot.Lanes)
		return
	}
	if shot.P50 > 0 {
		f.last.P50, f.last.P99 = shot.P50, shot.P99
	}
	f.last.At, f.last.Messages, f.last.Bytes = shot.At.Seconds(), shot.Messages, shot.Messages*int64(shot.Size)
	now := f.last
	now.Messages, now.Bytes = f.messages+now.Messages, f.bytes+now.Bytes
	f.sample(f.began+shot.At, now, shot.Lanes)
}

// follow switches to the VirtualQP of another run, with the same number of rails.
func (f *feed) follow(contexts [][]verbs.Context, lanes []ibverbx.LaneStats) {
	sent := make([]uint64, len(contexts))
	for rail := range f.contexts {
		sent[rail] = f.sent[rail] - f.retransmits(rail)
	}
	f.contexts, f.lanes, f.sent = contexts, lanes, sent
	for rail := range contexts {
		sent[rail] += f.retransmits(rail)
	}
}

// retransmits sums the retransmits of a rail's NICs and of package reliable on top of them.
func (f *feed) retransmits(rail int) (n uint64) {
	for _, ctx := range f.contexts[rail] {
		if h, ok := healthOf(ctx, 0); ok {
			n += h.Retransmits
		}
		if c, ok := ctx.(reliable.StatsReader); ok {
			n += c.Stats().Retransmitted
		}
	}
	return n
}

// sample adds a sample, and an event for each rail that lost or recovered lanes. to provides the message and byte counts
// and the latency.
func (f *feed) sample(at time.Duration, to monitor.Sample, lanes []ibverbx.LaneStats) {
	span := (at - f.at).Seconds()
	if span <= 0 {
		return
	}
	to.At = at.Seconds()
	to.Rate = float64(to.Bytes-f.received) / span
	to.Rails = make([]monitor.RailSample, len(f.contexts))
	lost, back, replayed := make([]int, len(f.contexts)), make([]int, len(f.contexts)), uint64(0)
	for i := range lanes {
		now, before := &lanes[i], &f.lanes[i]
		rate := float64(now.Bytes-before.Bytes) / span
		rail := &to.Rails[now.Rail]
		rail.Rate += rate
		replayed += now.Replayed - before.Replayed
		if now.Role == "message" || now.Role == "notify" {
			continue
		}
		rail.Lanes++
		if up(now) {
			rail.Up++
		}
		died := now.Deaths > before.Deaths // repeatedly, if rebuilding failed
		if up(before) && (died || !up(now)) {
			lost[before.Rail]++
		}
		if up(now) && (died || !up(before)) {
			back[now.Rail]++
		}
		if len(lanes) <= liveLanes {
			to.Lanes = append(to.Lanes, monitor.LaneSample{Lane: now.Lane, Rail: now.Rail, Rate: rate, State: cmp.Or(now.State, "up")})
		}
	}
	for rail := range to.Rails {
		to.Rails[rail].Retransmits = f.retransmits(rail) - f.sent[rail]
		if f.faults != nil {
			to.Rails[rail].Faults = f.faults(rail)
		}
	}
	f.at, f.received, f.lanes = at, to.Bytes, lanes
	f.changes(to.At, lost, back, replayed)
	f.rec.Sample(to)
}

// up reports whether a lane carries data. Raw UC and UD QPs have an empty state.
func up(l *ibverbx.LaneStats) bool { return l.State == "up" || l.State == "" }

// changes adds a sample's events: lost and recovered lanes per rail.
func (f *feed) changes(at float64, lost, back []int, replayed uint64) {
	for rail := range lost {
		if n := lost[rail]; n > 0 {
			f.rec.Event(monitor.Event{At: at, Rail: rail, Bad: true, Text: fmt.Sprintf(
				"rail %d lost %s; %s moved to other lanes", rail, report.Plural(n, "lane"), report.Plural(int(replayed), "request"))})
		}
		if n := back[rail]; n > 0 {
			f.rec.Event(monitor.Event{At: at, Rail: rail, Text: fmt.Sprintf("rail %d has %s in service again", rail, report.Plural(n, "lane"))})
		}
	}
}
