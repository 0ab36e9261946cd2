package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Runner runs the worlds of many seeds in parallel.
type Runner struct {
	// Scenario is the scenario to run. It must not be nil.
	Scenario *Scenario
	// First is the first seed.
	First uint64
	// Seeds is the number of seeds. Zero means 1.
	Seeds uint64
	// Workers is the number of worlds run concurrently. Zero means one per processor.
	Workers int
	// Progress is called every 16 seeds, by one goroutine at a time. Nil disables it.
	Progress func(Summary)
	// Trace receives one line of JSON for every event. It requires Workers to be 1.
	Trace io.Writer
}

// Summary is the result of a Runner over many seeds.
type Summary struct {
	Totals
	Scenario    string         // name of the scenario
	First       uint64         // first seed
	Seeds       uint64         // completed seeds
	Of          uint64         // seeds to run
	Worlds      int            // completed worlds; a sweep has several per seed
	Faults      map[string]int // number of faults by kind
	FaultWorlds map[string]int // number of worlds with at least one fault of a kind
	Rails       map[string]int // number of worlds by kind of rails; see Plan.railKinds
	Goodput     float64        // lowest goodput of a world in bytes per second, 0 if not measured
	Share       float64        // lowest ratio of goodput to capacity of a world, 0 if not measured
	Failed      int            // worlds that violated a guarantee
	Failures    []*Report      // reports of up to maxFailures of them, by seed
}

// add counts a world.
func (s *Summary) add(r *Report) {
	s.Worlds++
	for _, kind := range r.Plan.railKinds() {
		s.Rails[kind]++
	}
	s.Totals.add(&r.Totals)
	for k, n := range r.Faults {
		if n > 0 {
			s.Faults[FaultKind(k).String()] += n
			s.FaultWorlds[FaultKind(k).String()]++
		}
	}
	if r.Capacity > 0 {
		share := r.Goodput / r.Capacity
		if s.Share == 0 || share < s.Share {
			s.Share = share
		}
		if s.Goodput == 0 || r.Goodput < s.Goodput {
			s.Goodput = r.Goodput
		}
	}
	if r.Failure == nil {
		return
	}
	if s.Failed++; len(s.Failures) < maxFailures {
		s.Failures = append(s.Failures, r)
	}
}

// maxFailures limits Summary.Failures.
const maxFailures = 10

// progressEvery is the number of seeds between two calls of Progress.
const progressEvery = 16

// Run runs all seeds until ctx is done. Violated guarantees are in the summary. An error means that
// worlds could not be run.
func (r *Runner) Run(ctx context.Context) (Summary, error) {
	seeds := max(r.Seeds, 1)
	sum := Summary{Scenario: r.Scenario.Name, First: r.First, Of: seeds, Faults: make(map[string]int), FaultWorlds: make(map[string]int), Rails: make(map[string]int)}
	workers := cmp.Or(r.Workers, runtime.GOMAXPROCS(0))
	var (
		next atomic.Uint64
		mu   sync.Mutex
		wg   sync.WaitGroup
		errs []error
	)
	for range min(uint64(workers), seeds) {
		wg.Go(func() {
			pool := NewPool()
			var err error
			for n := next.Add(1) - 1; err == nil && n < seeds && ctx.Err() == nil; n = next.Add(1) - 1 {
				var reports []*Report
				if reports, err = r.runSeed(pool, r.First+n); err == nil {
					mu.Lock()
					r.count(&sum, reports)
					mu.Unlock()
				}
			}
			mu.Lock()
			errs = append(errs, err, pool.Close())
			mu.Unlock()
		})
	}
	wg.Wait()
	// Workers end in any order.
	slices.SortStableFunc(sum.Failures, func(a, b *Report) int { return cmp.Compare(a.Plan.Seed, b.Plan.Seed) })
	return sum, errors.Join(errs...)
}

// runSeed runs the worlds of one seed.
func (r *Runner) runSeed(pool *Pool, seed uint64) (reports []*Report, err error) {
	plans, err := r.Scenario.Plans(seed)
	for _, p := range plans {
		report := p.Run(Options{Pool: pool, Trace: r.Trace})
		if report.TraceErr != nil {
			return nil, fmt.Errorf("write the trace: %w", report.TraceErr)
		}
		reports = append(reports, report)
	}
	return reports, err
}

// count adds the worlds of a seed.
func (r *Runner) count(sum *Summary, reports []*Report) {
	for _, one := range reports {
		sum.add(one)
	}
	if sum.Seeds++; r.Progress != nil && (sum.Seeds%progressEvery == 0 || sum.Seeds == sum.Of) {
		r.Progress(*sum)
	}
}
