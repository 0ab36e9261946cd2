// Package sim is a deterministic world for VirtualQPs: hosts, NICs, rails, faults and
// traffic, all made of one seed, on virtual time. It runs the real engine over the real
// software NIC and holds the contract of the engine with checkers that know, for every
// byte and every completion, what must be there and when.
//
//	s, err := sim.Named("mixed")
//	for _, plan := range s.Plans(seed) {
//		report := plan.Run(sim.Options{Pool: pool})
//		if report.Failure != nil { ... }
//	}
//
// A [Scenario] is a text that says what is fixed; a seed decides the rest and gives a
// [Plan], in which nothing is open any more. The same plan gives the same run, event by
// event: there is one goroutine per world, no wall clock, and nothing that depends on the
// order of a map or on an address.
//
// # Checkers
//
// Each is a file of its own, check_*.go: bytes, completions, notifications, touches of
// memory after its completion, the first error, the end of every request, progress after
// faults have healed, leaks, and bounds of queues.
//
// # Concurrency
//
// Run may be called from several goroutines, each with a Pool of its own. [Runner] does so.
package sim
