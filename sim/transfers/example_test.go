package transfers_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"ibverbx/sim/transfers"
)

// Derive a world from a seed and run it. An error names the violated guarantee.
func Example() {
	plan := transfers.NewPlan(7)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	sum, err := transfers.Run(ctx, plan)
	if err != nil {
		log.Fatalf("seed %d: %v", plan.Seed, err)
	}
	fmt.Println(sum)
}

// The same seed gives the same plan.
func ExampleNewPlan() {
	a, b := transfers.NewPlan(7), transfers.NewPlan(7)
	fmt.Println(a.Hosts == b.Hosts, len(a.Faults) == len(b.Faults))
	// Output: true true
}
