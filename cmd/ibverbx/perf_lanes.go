package main

import (
	"fmt"

	"ibverbx/internal/perf"
)

const (
	railHead = " #rail  device -> peer            share[%]  bytes              fragments      doorbells      CQEs           refusals"
	railRow  = " %-6d %-25s"
	laneHead = " #lane  rail  QPN       role      share[%]  bytes              fragments      doorbells      CQEs           refusals"
	laneRow  = " %-6d %-5d %#-9x %-9s"
	carryRow = " %-9.2f %-18d %-14d %-14d %-14d %d\n"

	pathHead = " #lane  path  QPN       state     chunks         retransmitted  lost           RTT[usec]      queue[usec]"
	pathRow  = " %-6d %-5d %#-9x %-9s %-14d %-14d %-14d %-14.1f %.1f\n"

	// foldLanes is how many lanes have their own line without --verbose: half of them are the
	// first, half the last, among them the lanes for messages and notifications.
	foldLanes = 16
)

// carried prints what each rail and each lane carried, and its share of the bytes.
func (t *perfTable) carried(r *perf.Report) {
	var total perf.Carried
	for i := range r.PerRail {
		total.Bytes += r.PerRail[i].Bytes
		total.Fragments += r.PerRail[i].Fragments
	}
	t.println(railHead)
	for i := range r.PerRail {
		rail := &r.PerRail[i]
		t.printf(railRow, rail.Rail, endsText(rail))
		t.carry(&rail.Carried, &total)
		if text := healthText(rail.Health); text != "" {
			t.println("        " + text)
		}
	}
	t.println(tableRule)
	t.println(laneHead)
	lanes := r.PerLane
	hidden := lanes[:0]
	if !t.all && len(lanes) > foldLanes {
		hidden = lanes[foldLanes/2 : len(lanes)-foldLanes/2]
	}
	for i := range lanes {
		if folded := i - foldLanes/2; folded < 0 || folded >= len(hidden) {
			t.printf(laneRow, lanes[i].Lane, lanes[i].Rail, lanes[i].QPN, lanes[i].Role)
			t.carry(&lanes[i].Carried, &total)
			if text := healthText(lanes[i].Health); text != "" && t.all {
				t.println("        " + text)
			}
		}
	}
	if len(hidden) > 0 {
		t.println(summary(hidden, &total))
	}
	t.println(tableRule)
	if t.all {
		t.perPath(lanes)
	}
	t.printf(" verdict: %s\n", r.Verdict)
	deaths := uint64(0)
	for i := range lanes {
		deaths += lanes[i].Deaths
	}
	if deaths > 0 && r.Failover == nil { // otherwise the report of the outage has it
		t.printf(" lanes were lost %d times and rebuilt\n", deaths)
	}
	t.printf(" share is of the bytes of all results; fragments are physical requests, records and notifications included\n")
}

// perPath prints what each path of the lanes carried, if lanes have paths.
func (t *perfTable) perPath(lanes []perf.Lane) {
	head := false
	for i := range lanes {
		for k := range lanes[i].Paths {
			if !head {
				t.println(pathHead)
				head = true
			}
			p := &lanes[i].Paths[k]
			t.printf(pathRow, lanes[i].Lane, k, p.QPN, p.State, p.Sent, p.Retransmitted, p.Lost, p.RTT, p.QueueDelay)
		}
	}
	if head {
		t.println(tableRule)
	}
}

// carry prints the columns that rails and lanes have in common.
func (t *perfTable) carry(c, total *perf.Carried) {
	t.printf(carryRow, share(c, total), c.Bytes, c.Fragments, c.Doorbells, c.CQEs, c.Refusals)
}

// share is the part of the bytes in percent.
func share(c, total *perf.Carried) float64 {
	if total.Bytes == 0 {
		return 0
	}
	return 100 * float64(c.Bytes) / float64(total.Bytes)
}

// summary is one line for all lanes that have no line of their own.
func summary(lanes []perf.Lane, total *perf.Carried) string {
	low, high, sum := share(&lanes[0].Carried, total), 0.0, 0.0
	for i := range lanes {
		s := share(&lanes[i].Carried, total)
		low, high, sum = min(low, s), max(high, s), sum+s
	}
	return fmt.Sprintf(" lanes %d to %d carried %.2f %%, %.2f to %.2f %% each; --verbose prints a line for every lane",
		lanes[0].Lane, lanes[len(lanes)-1].Lane, sum, low, high)
}
