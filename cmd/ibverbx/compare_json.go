package main

import (
	"math"
	"time"

	"ibverbx/internal/compare"
)

// compareReport is the object that compare --json prints.
type compareReport struct {
	// Sides are the arguments; the first one is the base.
	Sides []compareSide `json:"sides"`
	// Comparisons hold each other side against the base.
	Comparisons []comparison `json:"comparisons"`
}

type compareSide struct {
	Name    string     `json:"name"`
	Reports int        `json:"reports"`
	Time    *time.Time `json:"time,omitempty"`
	Host    string     `json:"host,omitempty"`
}

type comparison struct {
	Base        string       `json:"base"`
	Other       string       `json:"other"`
	Differences []difference `json:"differences"`
}

// difference is one row of the tables. Values have the unit of Metric.
type difference struct {
	Op     string       `json:"op"`
	Mode   string       `json:"mode"`
	Metric string       `json:"metric"`
	Size   int          `json:"size"`
	Base   compareValue `json:"base"`
	Other  compareValue `json:"other"`
	// Change is Other over Base, less 1.
	Change float64 `json:"change"`
	// P is the probability that the difference is chance.
	P           float64 `json:"p"`
	Significant bool    `json:"significant"`
	// Enough is false with fewer than 4 samples on a side; Significant is then never true.
	Enough bool `json:"enough_samples"`
}

type compareValue struct {
	Samples int     `json:"samples"`
	Median  float64 `json:"median"`
	// Spread is the 95 % confidence bound relative to Median, nil with fewer than 6 samples.
	Spread *float64 `json:"spread,omitempty"`
}

// newCompareReport compares the sides, whose first one is the base.
func newCompareReport(names []string, sets []*compare.Set) compareReport {
	r := compareReport{Comparisons: []comparison{}}
	for i, set := range sets {
		side := compareSide{Name: names[i], Reports: set.Reports, Host: set.Host}
		if !set.Time.IsZero() {
			side.Time = &set.Time
		}
		r.Sides = append(r.Sides, side)
	}
	for i := range sets[1:] {
		c := comparison{Base: names[0], Other: names[i+1], Differences: []difference{}}
		list := compare.Sets(sets[0], sets[i+1])
		for k := range list {
			d := &list[k]
			c.Differences = append(c.Differences, difference{
				Op: d.Op, Mode: d.Mode, Metric: d.Metric, Size: d.Size, Base: valueOf(&d.Old), Other: valueOf(&d.New),
				Change: d.Change, P: d.P, Significant: d.Significant(), Enough: d.Enough(),
			})
		}
		r.Comparisons = append(r.Comparisons, c)
	}
	return r
}

func valueOf(v *compare.Value) compareValue {
	to := compareValue{Samples: v.N, Median: v.Center}
	if !math.IsInf(v.Spread, 1) {
		to.Spread = &v.Spread
	}
	return to
}
