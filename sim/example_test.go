package sim_test

import (
	"fmt"
	"log"

	"ibverbx/sim"
)

// Run a custom scenario: two rails, one of which is cut for 2 ms, under ten seeds.
func Example() {
	s, err := sim.Parse("cut", `
about a rail is cut while messages are in flight
rails 2
failover on
ops write imm read
fault cut rail 1 at 100us for 2ms
expect success
`)
	if err != nil {
		log.Fatal(err)
	}
	pool := sim.NewPool() // memory reused by successive worlds
	defer pool.Close()
	for seed := range uint64(10) {
		plans, err := s.Plans(seed)
		if err != nil {
			log.Fatal(err)
		}
		for _, plan := range plans {
			if report := plan.Run(sim.Options{Pool: pool}); report.Failure != nil {
				log.Fatalf("seed %d: %v", seed, report.Failure)
			}
		}
	}
	fmt.Println("all guarantees held")
	// Output:
	// all guarantees held
}
