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

	"github.com/HdrHistogram/hdrhistogram-go"
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

// Set is the samples of one side, from one file or several. The zero value is ready.
type Set struct {
	// Time is when the first report was made, and Host where.
	Time time.Time
	Host string
	// Reports is how many reports there are. If it is 1, samples of rates are the spans of its timelines.
	Reports int
	values  map[Key][]float64
	// spans are the rates of the timelines of the first report, without the first span of each: it may be that of a start.
	spans map[Key][]float64
	// times are all times of latency tests. The metric of the key is empty.
	times map[Key]*times
}

// times is the sum of the histograms of several reports.
type times struct {
	all     *hdrhistogram.Histogram // in nanoseconds
	reports int
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
	P999     *float64 `json:"t_p999_us"`
	HDR      string   `json:"hdr"`
	Timeline []struct {
		Rate float64 `json:"bytes_per_second"`
	} `json:"timeline"`
}

// Names of metrics.
const (
	Rate    = "bytes_per_second"
	Typical = "t_typical_us"
	P99     = "t_p99_us"
	P999    = "t_p999_us"
)

// percents are the percentiles that metrics of latency are.
var percents = map[string]float64{Typical: 50, P99: 99, P999: 99.9}

// Read adds the reports of a file, one after the other. After an error the Set is of no use.
func (s *Set) Read(r io.Reader) error {
	if s.values == nil {
		s.values, s.spans, s.times = map[Key][]float64{}, map[Key][]float64{}, map[Key]*times{}
	}
	d := json.NewDecoder(r)
	for n := 1; ; n++ {
		var rep report
		err := d.Decode(&rep)
		switch {
		case errors.Is(err, io.EOF) && n == 1:
			return errors.New("there is no report in it")
		case errors.Is(err, io.EOF):
			return nil
		case err == nil && (rep.Op == "" || len(rep.Results) == 0):
			err = errors.New("this is no result of ibverbx perf --json")
		case err == nil:
			err = s.take(&rep)
		}
		if err != nil {
			return fmt.Errorf("report %d: %w", n, err)
		}
	}
}

// take adds a sample of each value of a report.
func (s *Set) take(rep *report) error {
	s.Reports++
	if s.Reports == 1 {
		s.Time, s.Host = rep.Run.Time, rep.Run.Host
	}
	for i := range rep.Results {
		r := &rep.Results[i]
		k := Key{Op: rep.Op, Mode: rep.Mode, Size: r.Size}
		if err := s.add(k, r.HDR); err != nil {
			return fmt.Errorf("hdr of %d bytes: %w", r.Size, err)
		}
		for metric, value := range map[string]*float64{Rate: r.Rate, Typical: r.Typical, P99: r.P99, P999: r.P999} {
			if k.Metric = metric; value != nil {
				s.values[k] = append(s.values[k], *value)
			}
		}
		k.Metric = Rate
		for i, span := range r.Timeline {
			if i > 0 && s.Reports == 1 {
				s.spans[k] = append(s.spans[k], span.Rate)
			}
		}
	}
	return nil
}

// add adds up histograms of times, as --json has them. An empty text is none.
func (s *Set) add(k Key, hdr string) error {
	if hdr == "" {
		return nil
	}
	h, err := hdrhistogram.Decode([]byte(hdr))
	if err != nil {
		return err
	}
	t := s.times[k]
	if t == nil {
		s.times[k] = &times{all: h, reports: 1}
		return nil
	}
	t.reports++
	if lost := t.all.Merge(h); lost > 0 {
		return fmt.Errorf("%d times are longer than the histogram of the first report can hold", lost)
	}
	return nil
}

// samples are the values of a key in order, empty if there are none.
func (s *Set) samples(k Key) []float64 {
	list := s.values[k]
	if spans := s.spans[k]; s.Reports == 1 && len(list) > 0 && len(spans) >= fewest {
		list = spans
	}
	return slices.Sorted(slices.Values(list))
}

// Value is the samples of one key.
type Value struct {
	N int
	// Center is the median of the samples. A percentile of latency is that of all times of all reports, if each has
	// its histogram.
	Center float64
	// Spread is by how much of Center it may be wrong, with a confidence of 95 %. It is +Inf with fewer than 6
	// samples.
	Spread float64
}

// Difference is a key that both sides have.
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

// Sets returns the differences between two sides, by operation, metric and size. Values that only one has are left out.
func Sets(old, now *Set) (list []Difference) {
	for k := range old.values {
		a, b := old.samples(k), now.samples(k)
		if len(b) == 0 {
			continue
		}
		d := Difference{Key: k, Old: old.value(k, a), New: now.value(k, b), P: mannWhitney(a, b)}
		if d.Old.Center != 0 {
			d.Change = d.New.Center/d.Old.Center - 1
		}
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Op, b.Op), cmp.Compare(a.Mode, b.Mode), -cmp.Compare(a.Metric, b.Metric), cmp.Compare(a.Size, b.Size))
	})
	return list
}

func (s *Set) value(k Key, sorted []float64) Value {
	v := Value{N: len(sorted), Center: median(sorted), Spread: math.Inf(1)}
	if t := s.times[Key{Op: k.Op, Mode: k.Mode, Size: k.Size}]; t != nil && t.reports == v.N && percents[k.Metric] > 0 {
		v.Center = float64(t.all.ValueAtPercentile(percents[k.Metric])) / 1e3
	}
	if low, high, ok := interval(sorted); ok && v.Center != 0 {
		v.Spread = max(v.Center-low, high-v.Center) / v.Center
	}
	return v
}
