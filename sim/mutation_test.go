package sim

import (
	"strings"
	"testing"

	"ibverbx/internal/mutant"
	"ibverbx/internal/testslice"
)

// engineMistakes are planted in the engine. Each has the scenario that must show it and the checkers that may
// report it first.
var engineMistakes = []struct {
	mistake  mutant.Change
	scenario string
	checks   []string
}{
	{
		// A message is reported twice, or memory is written again after its completion.
		mutant.Change{
			Name: "replay before Down",
			File: "../*.go", Old: "if v.reports.peerDown {", New: "if true {",
			Also: []mutant.Edit{{
				File: "../*.go", Old: "if int32(arrived) < 0 ||",
				New: "if !v.reports.peerDown {\n arrived = 0\n}\nif int32(arrived) < 0 ||",
			}},
		},
		"failover",
		[]string{"notifications", "first error", "touch", "bytes", "completions"},
	},
	{
		// A counter has a wrong value.
		mutant.Change{Name: "replay an atomic", File: "../*.go", Old: "e.kind() == kindAtomic &&", New: "e.kind() == kindAtomic && false &&"},
		"failover-atomics",
		[]string{"bytes", "notifications"},
	},
	{
		// The bytes have not arrived, are touched after their completion, or a completion
		// belongs to no request in flight.
		mutant.Change{
			Name: "complete before the data", File: "../*.go",
			Old: "s.retire(l, before+1)", New: "s.retire(l, min(before+2, l.posted-l.head))",
		},
		"mixed",
		[]string{"bytes", "touch", "notifications", "leaks", "first error"},
	},
	{
		// The peer repeats a message that this side has reported.
		mutant.Change{
			Name: "a receive of the pool is missing in Down", File: "../recv_shared.go",
			Old: "l.recovery.received++\n\t\tr.completePooled(slot, wc)", New: "r.completePooled(slot, wc)",
		},
		"shared-data-failover",
		[]string{"notifications", "bytes", "first error", "progress"},
	},
	{
		// The pool shrinks, and senders wait forever or until their deadline.
		mutant.Change{
			Name: "receives of an SRQ that was left are lost", File: "../recv_shared.go",
			Old: "\t\t\tp.unpost(uint32(slot))\n\t\t\tp.restore(uint32(slot))\n", New: "\t\t\tp.unpost(uint32(slot))\n",
		},
		"shared-data-failover",
		[]string{"progress", "first error", "deadline"},
	},
	{
		// The receiver waits for the number forever, or its window overflows.
		mutant.Change{
			Name: "DQPLB loses a number", File: "../scheme_dqplb.go",
			Old: "n := d.seq\n", New: "if d.seq%64 == 63 {\n d.seq++\n}\nn := d.seq\n",
		},
		"mixed",
		[]string{"progress", "first error"},
	},
	{
		// As above.
		mutant.Change{
			Name: "Tally loses a number", File: "../scheme_tally.go",
			Old: "s *sendSlot, n int) {\n", New: "s *sendSlot, n int) {\nif t.seq%16 == 15 {\n t.seq++\n}\n",
		},
		"mixed",
		[]string{"progress", "first error"},
	},
	{
		// The new lane counts on from another number.
		mutant.Change{
			Name: "Tally moves a message without its record", File: "../scheme_tally.go",
			Old: "if e.kind() > kindData || !e.consumes() {", New: "if true {",
		},
		"failover",
		[]string{"progress", "first error", "notifications"},
	},
	{
		// The receiver is notified before the data before it, on other lanes, has arrived.
		mutant.Change{
			Name: "a run of Tally covers no data before it", File: "../scheme_tally.go",
			Old: "if t.send.uncovered.first() >= 0 {", New: "if false {",
		},
		"failover-atomics",
		[]string{"notifications"},
	},
	{
		// Both ends disagree on how many messages have arrived.
		mutant.Change{
			Name: "a run does not count its messages", File: "../send_dispatch.go",
			Old: "consumes, passed = entryConsumes,", New: "consumes, passed = 0,",
		},
		"failover",
		[]string{"first error", "notifications"},
	},
	{
		// The receiver gets the immediate of another message.
		mutant.Change{
			Name: "a run of Spray has one immediate", File: "../scheme_notifier.go",
			Old: "one.imm, one.notifyDue = wrs[i].Imm,", New: "one.imm, one.notifyDue = wrs[i&^1].Imm,",
		},
		"mixed",
		[]string{"notifications"},
	},
	{
		// The receiver is notified before the data before it, on other lanes, has arrived.
		mutant.Change{
			Name: "a run of DQPLB covers no data before it", File: "../scheme_dqplb.go",
			Old: "if d.send.uncovered.first() >= 0 {", New: "if false {",
		},
		"mixed",
		[]string{"notifications"},
	},
	{
		// As above.
		mutant.Change{
			Name: "a stripe does not count its messages", File: "../send_dispatch.go",
			Old: "s.send(l, chain[:n], bytes, consuming)", New: "s.send(l, chain[:n], bytes, 0*consuming)",
		},
		"failover-atomics",
		[]string{"first error", "notifications", "bytes"},
	},
	{
		// The receiver is notified after the first fragment.
		mutant.Change{
			Name: "a stripe of DQPLB ends a message early", File: "../send_dispatch.go",
			Old: "if at == cuts-1 {", New: "if at == 0 {",
		},
		"mixed",
		[]string{"notifications"},
	},
	{
		// The request never ends, or ends without its bytes.
		mutant.Change{
			Name: "drop a refused fragment", File: "../*.go",
			Old: "l.blocked |= blockRefused | blockJustRefused\n", New: "l.posted++\nl.blocked |= blockRefused | blockJustRefused\n",
		},
		"mixed",
		[]string{"progress", "bytes", "notifications", "first error", "leaks"},
	},
}

// TestPlantedInEngine breaks the engine in one way at a time. TestSoundEngine must fail, and a
// checker that is responsible for the violated guarantee must report it.
func TestPlantedInEngine(t *testing.T) {
	var changes []mutant.Change
	for _, s := range engineMistakes {
		s.mistake.Tests = "^TestSoundEngine$/^" + s.scenario + "$"
		s.mistake.Report = `seed \d+: (` + strings.Join(s.checks, "|") + "): .*"
		changes = append(changes, s.mistake)
	}
	mutant.Run(t, changes)
}

// TestSoundEngine runs the worlds of the planted mistakes without a mistake: they violate no guarantee.
// It stops at the first failure, because a broken engine may not survive the next seed.
func TestSoundEngine(t *testing.T) {
	names := []string{"failover", "failover-atomics", "mixed", "shared-data-failover"}
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			if part := testslice.Of(t).AtMost(2); !part.Has(i, len(names)) || (name == "mixed" && !part.Whole()) {
				t.Skip("TestMixed runs more seeds of mixed, and another slice those of other scenarios")
			}
			s, err := Builtin(name)
			if err != nil {
				t.Fatal(err)
			}
			pool := NewPool() // It is not closed, because a mistake may leave memory registered.
			first := firstSeed(t, 600)
			for i := range seeds(t, 600) {
				seed := first + i
				plans, err := s.Plans(seed)
				if err != nil {
					t.Fatal(err)
				}
				if f := plans[0].Run(Options{Pool: pool}).Failure; f != nil {
					t.Fatalf("seed %d: %v", seed, f)
				}
			}
		})
	}
}
