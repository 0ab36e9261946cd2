package sim

import (
	"cmp"
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Runner runs the worlds of many seeds, on several processors.
type Runner struct {
	Scenario *Scenario
	// First is the first seed, and Seeds how many there are. Zero means 1.
	First, Seeds uint64
	// Workers is how many worlds run at once. Zero means one per processor.
	Workers int
	// Progress is called now and then, by one goroutine at a time. Nil means never.
	Progress func(Summary)
	// Trace gets everything that happens, as lines of JSON. It needs one worker.
	Trace io.Writer
}

// Summary is what the worlds of many seeds were.
type Summary struct {
	Scenario string
	First    uint64
	// Seeds counts those that are done, of Of.
	Seeds, Of uint64
	Worlds    int
	Messages  int
	Bytes     int
	Faults    map[string]int // how often each kind happened,
	Struck    map[string]int // and in how many worlds
	FailedQPs int
	Virtual   time.Duration
	Packets   uint64
	Resent    uint64
	Timeouts  uint64
	RNRs      uint64
	Deaths    uint64 // lanes that were lost
	Replayed  uint64 // requests of theirs that left over another lane
	// Goodput is the least that a world carried, in bytes per second, and Share the least
	// of what its rails could; both are 0 if no scenario asked for them.
	Goodput, Share float64
	// Failed counts the worlds that broke a promise; Failures are the first of them, by
	// seed.
	Failed   int
	Failures []*Report
}

// add counts a world.
func (s *Summary) add(r *Report) {
	s.Worlds++
	s.Messages += r.Messages
	s.Bytes += r.Bytes
	for k, n := range r.Faults {
		if n > 0 {
			s.Faults[FaultKind(k).String()] += n
			s.Struck[FaultKind(k).String()]++
		}
	}
	s.FailedQPs += r.FailedQPs
	s.Virtual += r.Virtual
	s.Packets += r.NICs.PacketsSent
	s.Resent += r.NICs.Retransmits
	s.Timeouts += r.NICs.Timeouts
	s.RNRs += r.NICs.RNRNAKsSent
	s.Deaths += r.Deaths
	s.Replayed += r.Replayed
	if r.Capacity > 0 {
		share := r.Goodput / r.Capacity
		if s.Share == 0 || share < s.Share {
			s.Share = share
		}
		if s.Goodput == 0 || r.Goodput < s.Goodput {
			s.Goodput = r.Goodput
		}
	}
}

// maxFailures is how many failures are kept: one is enough to act on.
const maxFailures = 10

// progressEvery is how many seeds lie between two calls of Progress.
const progressEvery = 16

// Run runs all seeds, until ctx ends. An error means that the scenario or the machine is
// not fit for it; broken promises are in the summary.
func (r *Runner) Run(ctx context.Context) (Summary, error) {
	seeds := max(r.Seeds, 1)
	sum := Summary{Scenario: r.Scenario.Name, First: r.First, Of: seeds, Faults: make(map[string]int), Struck: make(map[string]int)}
	workers := r.Workers
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var (
		next atomic.Uint64
		mu   sync.Mutex
		wg   sync.WaitGroup
		errs []error
	)
	for range min(uint64(workers), seeds) {
		wg.Go(func() {
			err := work(func() (uint64, bool) {
				n := next.Add(1) - 1
				return r.First + n, n < seeds && ctx.Err() == nil
			}, r, func(reports []*Report) {
				mu.Lock()
				defer mu.Unlock()
				r.count(&sum, reports)
			})
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		})
	}
	wg.Wait()
	sum.sort()
	return sum, errors.Join(errs...)
}

// work runs seeds, with a pool of its own, as long as there are any.
func work(take func() (uint64, bool), r *Runner, done func([]*Report)) (err error) {
	pool := NewPool()
	defer func() { err = errors.Join(err, pool.Close()) }()
	for seed, ok := take(); ok; seed, ok = take() {
		plans, err := r.Scenario.Plans(seed)
		if err != nil {
			return err
		}
		var reports []*Report
		for _, p := range plans {
			reports = append(reports, p.Run(Options{Pool: pool, Trace: r.Trace}))
		}
		done(reports)
	}
	return nil
}

// count adds the worlds of a seed.
func (r *Runner) count(sum *Summary, reports []*Report) {
	for _, one := range reports {
		sum.add(one)
		if one.Failure == nil {
			continue
		}
		if sum.Failed++; len(sum.Failures) < maxFailures {
			sum.Failures = append(sum.Failures, one)
		}
	}
	if sum.Seeds++; r.Progress != nil && (sum.Seeds%progressEvery == 0 || sum.Seeds == sum.Of) {
		r.Progress(*sum)
	}
}

// sort puts failures in the order of their seeds: workers end in any order.
func (s *Summary) sort() {
	slices.SortStableFunc(s.Failures, func(a, b *Report) int { return cmp.Compare(a.Plan.Seed, b.Plan.Seed) })
}
