package transfers_test

import (
	"context"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ibverbx/internal/testslice"
	"ibverbx/sim/transfers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestWorldOfTransfers runs worlds of transfers and checks every guarantee.
func TestWorldOfTransfers(t *testing.T) {
	const full = 24
	first, n := 1+testslice.Of(t).First(full), testslice.Of(t).Count(full)
	if s := os.Getenv("IBVERBX_TEST_SIM_SEEDS"); s != "" {
		v, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("IBVERBX_TEST_SIM_SEEDS is %q: want a number", s)
		}
		first, n = 1, v
	}
	seeds := make(chan uint64, n)
	for i := range n {
		seeds <- uint64(first + i)
	}
	close(seeds)
	var mu sync.Mutex
	var all transfers.Summary
	var worlds sync.WaitGroup
	for range 4 {
		worlds.Go(func() {
			for seed := range seeds {
				plan := transfers.NewPlan(seed)
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
				sum, err := transfers.Run(ctx, plan)
				cancel()
				if err != nil {
					t.Errorf("%v\nthe world: %+v", err, plan)
				}
				mu.Lock()
				all.Add(sum)
				mu.Unlock()
			}
		})
	}
	worlds.Wait()
	t.Logf("%d worlds: %v", n, all)
}
