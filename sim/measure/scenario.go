package measure

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Scenario is something that is measured.
type Scenario struct {
	Name string
	// About is one sentence.
	About string
	// Aims are what its result has to reach.
	Aims []Aim
	// run builds a world, runs it and fills the result.
	run func(o Options, r *Result) error
}

// Options are how a scenario is run.
type Options struct {
	// Seed decides what is random. Zero is a seed like any other.
	Seed uint64
	// Bytes is what is moved. Zero means what the scenario is about: then, and only then,
	// its aims count.
	Bytes int
}

// bytes returns what is to be moved, n unless the options say otherwise.
func (o *Options) bytes(n int) int {
	if o.Bytes > 0 {
		return o.Bytes
	}
	return n
}

// Scenarios returns all scenarios, by name.
func Scenarios() []Scenario {
	all := slices.Concat(lossScenarios(), deadPathScenarios(), hardScenarios(), incastScenarios(), ecmpScenarios())
	slices.SortFunc(all, func(a, b Scenario) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Named returns a scenario.
func Named(name string) (*Scenario, bool) {
	for _, s := range Scenarios() {
		if s.Name == name {
			return &s, true
		}
	}
	return nil, false
}

// Run runs the scenario once. An error means that it could not be measured: something was lost
// for good, wrong, or hung. Aims that were missed are in the result.
func (s *Scenario) Run(o Options) (*Result, error) {
	r := &Result{Scenario: s.Name, Seed: o.Seed, Seeds: 1, Aims: s.Aims}
	if err := s.run(o, r); err != nil {
		return nil, fmt.Errorf("scenario %s, seed %d: %w", s.Name, o.Seed, err)
	}
	r.judge()
	return r, nil
}

// RunSeeds runs seeds from o.Seed on and returns the medians. It stops when ctx ends.
func (s *Scenario) RunSeeds(ctx context.Context, o Options, seeds uint64) (*Result, error) {
	var results []*Result
	for i := range max(seeds, 1) {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("scenario %s: %d of %d seeds were run: %w", s.Name, i, seeds, err)
		}
		r, err := s.Run(o)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
		o.Seed++
	}
	return Median(results), nil
}
