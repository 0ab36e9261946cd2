// Package sim simulates VirtualQPs in a deterministic world: hosts, NICs, rails, faults and
// traffic, all drawn from one seed, on virtual time. It runs the real engine over the real
// software NIC. Checkers know what every byte and every completion must be, and when.
//
//	s, err := sim.Builtin("mixed")
//	plans, err := s.Plans(seed)
//	for _, plan := range plans {
//		report := plan.Run(sim.Options{Pool: pool})
//		if report.Failure != nil { ... }
//	}
//
// A [Scenario] is a text with everything that is fixed. The seed decides the rest and gives a
// [Plan]. The same plan gives the same run, event by event: a world has one goroutine and no
// wall clock, and nothing depends on the order of a map or on an address.
//
// # Checkers
//
// Each checker is a file, check_*.go: bytes, completions, notifications, writes to memory
// after its completion, the first error, the end of every request, progress after faults
// have healed, leaks, and the bounds of queues.
//
// # Concurrency
//
// Several goroutines may call Run, each with its own Pool. [Runner] does.
package sim
