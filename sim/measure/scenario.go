package measure

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// Scenario is a measured scenario.
type Scenario struct {
	Name  string // unique name
	About string // one sentence
	Aims  []Aim  // bounds that its result must reach
	// run builds a world, runs it and fills the result.
	run func(o Options, r *Result) error
}

// Options configure a run of a scenario.
type Options struct {
	// Seed determines all random choices. Zero is an ordinary seed.
	Seed uint64
	// Bytes is the payload to move. Zero means the scenario's default. The aims hold only for the
	// default.
	Bytes int
	// Done is called after each run. Nil disables it.
	Done func()
}

// bytes returns the payload to move, n by default.
func (o *Options) bytes(n int) int { return cmp.Or(o.Bytes, n) }

// Scenarios returns all scenarios, sorted by name.
func Scenarios() []Scenario {
	all := slices.Concat(lossScenarios(), datagramScenarios(), deadPathScenarios(), hardScenarios(), incastScenarios(), ecmpScenarios(), mixedScenarios(), badPathScenarios(), congestionScenarios(), mrcScenarios())
	slices.SortFunc(all, func(a, b Scenario) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Builtin returns a scenario by name, and whether it exists.
func Builtin(name string) (*Scenario, bool) {
	for _, s := range Scenarios() {
		if s.Name == name {
			return &s, true
		}
	}
	return nil, false
}

// Run runs the scenario once. Missed aims are in the result. An error means that a request failed, bytes
// were wrong, or the world hung.
func (s *Scenario) Run(o Options) (*Result, error) {
	r := &Result{Scenario: s.Name, Seed: o.Seed, Seeds: 1, Aims: s.Aims}
	if err := s.run(o, r); err != nil {
		return nil, fmt.Errorf("scenario %s, seed %d: %w", s.Name, o.Seed, err)
	}
	r.judge()
	if o.Done != nil {
		o.Done()
	}
	return r, nil
}

// RunSeeds runs consecutive seeds, starting with o.Seed, and returns the medians. It stops when ctx is
// done, and returns the medians so far, nil before the first seed is done, with the error of ctx.
func (s *Scenario) RunSeeds(ctx context.Context, o Options, seeds uint64) (*Result, error) {
	var results []*Result
	for i := range max(seeds, 1) {
		if err := ctx.Err(); err != nil {
			return median(results), fmt.Errorf("scenario %s: stopped after %d of %d seeds: %w", s.Name, i, seeds, err)
		}
		r, err := s.Run(o)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
		o.Seed++
	}
	return median(results), nil
}
