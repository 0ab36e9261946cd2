// Package sim simulates VirtualQPs in a deterministic world: hosts, NICs, rails, faults and traffic, all
// derived from one seed, on virtual time. It runs the real engine over the real software NIC. Checkers
// know the expected value of every byte and every completion, and its latest time.
//
//	s, err := sim.Builtin("mixed")
//	plans, err := s.Plans(seed)
//	for _, plan := range plans {
//		report := plan.Run(sim.Options{Pool: pool})
//		if report.Failure != nil { ... }
//	}
//
// A [Scenario] is a text that fixes part of a world. A seed determines the rest and yields a [Plan]. The
// same plan gives the same run, event by event: a world uses one goroutine and no wall clock, and is
// independent of map order and memory addresses.
//
// # Checkers
//
// Each checker is a file, check_*.go: bytes, completions, notifications, writes to memory after its
// completion, the first error, completion of every request, progress after faults have healed, the
// restart of a peer, goodput, leaks, and queue bounds.
//
// # Concurrency
//
// Plans and scenarios are plain data. Several goroutines may call Run concurrently, each with its own
// Pool; [Runner] does that.
//
// # Changes
//
// [Plan.Run] builds a world and runs its loop (loop.go). Reordering the random draws (plan_draw*.go) changes
// the world of every seed. A checker may only get stricter: mutation_test.go and checker_mistakes_test.go require
// that the checkers report planted bugs. Everything else may change freely.
package sim
