// Package compare holds reports of "ibverbx perf --json" against each other. A difference comes with the probability
// that it is chance, as benchstat has it.
package compare

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// fewest is how many samples a side needs before any difference can be told from chance.
const fewest = 4

// Key names what can be compared.
type Key struct {
	Op   string
	Mode string
	Size int
	// Metric is the name of the value as in --json.
	Metric string
}

// Set is the samples of one file.
type Set struct {
	// Time is when the first report was made, and Host where.
	Time time.Time
	Host string
	// Reports is how many reports there are. If it is 1, samples of rates are the spans of its timelines.
	Reports int
	values  map[Key][]float64
}

// report is what is compared of a report of perf.
type report struct {
	Run struct {
		Time time.Time `json:"time"`
		Host string    `json:"host"`
	} `json:"run"`
	Op      string   `json:"op"`
	Mode    string   `json:"mode"`
	Results []result `json:"results"`
}

type result struct {
	Size     int      `json:"size"`
	Rate     *float64 `json:"bytes_per_second"`
	Typical  *float64 `json:"t_typical_us"`
	P99      *float64 `json:"t_p99_us"`
	Timeline []struct {
		Rate float64 `json:"bytes_per_second"`
	} `json:"timeline"`
}

// Names of metrics.
const (
	Rate    = "bytes_per_second"
	Typical = "t_typical_us"
	P99     = "t_p99_us"
)

// Read reads the reports of a file, one after the other.
func Read(r io.Reader) (*Set, error) {
	s := &Set{values: make(map[Key][]float64)}
	d := json.NewDecoder(r)
	var first report
	for {
		var rep report
		if err := d.Decode(&rep); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("report %d: %w", s.Reports+1, err)
		}
		if rep.Op == "" || len(rep.Results) == 0 {
			return nil, fmt.Errorf("report %d: this is no result of ibverbx perf --json", s.Reports+1)
		}
		if s.Reports == 0 {
			s.Time, s.Host, first = rep.Run.Time, rep.Run.Host, rep
		}
		s.Reports++
		s.take(&rep)
	}
	switch s.Reports {
	case 0:
		return nil, errors.New("there is no report in it")
	case 1:
		s.unfold(&first)
	}
	for _, list := range s.values {
		slices.Sort(list)
	}
	return s, nil
}

// take adds a sample of each value of a report.
func (s *Set) take(rep *report) {
	for i := range rep.Results {
		r := &rep.Results[i]
		for metric, value := range map[string]*float64{Rate: r.Rate, Typical: r.Typical, P99: r.P99} {
			if value != nil {
				k := Key{Op: rep.Op, Mode: rep.Mode, Size: r.Size, Metric: metric}
				s.values[k] = append(s.values[k], *value)
			}
		}
	}
}

// unfold takes the spans of the timelines of a single report as samples. The first span is left out: it may be that
// of a start.
func (s *Set) unfold(rep *report) {
	for i := range rep.Results {
		r := &rep.Results[i]
		if r.Rate == nil || len(r.Timeline) < fewest+1 {
			continue
		}
		k := Key{Op: rep.Op, Mode: rep.Mode, Size: r.Size, Metric: Rate}
		s.values[k] = s.values[k][:0]
		for _, span := range r.Timeline[1:] {
			s.values[k] = append(s.values[k], span.Rate)
		}
	}
}

// Value is the samples of one key.
type Value struct {
	N      int
	Median float64
	// Spread is by how much of the median it may be wrong, with a confidence of 95 %. It is +Inf with fewer than 6
	// samples.
	Spread float64
}

// Difference is a key that two files have.
type Difference struct {
	Key
	Old, New Value
	// Change is New over Old, less 1.
	Change float64
	// P is the probability that the difference is chance.
	P float64
}

// Significant reports whether the difference is hardly chance.
func (d *Difference) Significant() bool { return d.P < alpha }

// Enough reports whether there are enough samples to tell a difference from chance.
func (d *Difference) Enough() bool { return min(d.Old.N, d.New.N) >= fewest }

// Sets returns the differences between two files, by operation, metric and size. Values that only one has are left out.
func Sets(old, now *Set) (list []Difference) {
	for k, a := range old.values {
		b := now.values[k]
		if len(b) == 0 {
			continue
		}
		d := Difference{Key: k, Old: valueOf(a), New: valueOf(b), P: mannWhitney(a, b)}
		if d.Old.Median != 0 {
			d.Change = d.New.Median/d.Old.Median - 1
		}
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Op, b.Op), cmp.Compare(a.Mode, b.Mode), -cmp.Compare(a.Metric, b.Metric), cmp.Compare(a.Size, b.Size))
	})
	return list
}

func valueOf(sorted []float64) Value {
	v := Value{N: len(sorted), Median: median(sorted), Spread: math.Inf(1)}
	if low, high, ok := interval(sorted); ok && v.Median != 0 {
		v.Spread = max(v.Median-low, high-v.Median) / v.Median
	}
	return v
}
