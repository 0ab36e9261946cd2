// Package compare compares reports of "ibverbx perf --json". [Set.Read] reads the reports of one side, and
// [Sets] compares two sides. As in benchstat, each difference has a p-value.
//
// "ibverbx compare --json" prints [Difference] and [Set], and reads reports of other versions: add JSON
// fields, but do not rename them.
package compare

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// fewest is the minimum number of samples per side for a significant difference.
const fewest = 4

// Key identifies a comparable value.
type Key struct {
	Op   string `json:"op"`
	Mode string `json:"mode"`
	// Metric is the name of the value in perf --json.
	Metric string `json:"metric"`
	Size   int    `json:"size"`
}

// Set holds the samples of one side, from one file or several. The zero value is ready.
type Set struct {
	// Reports is the number of reports. If it is 1, rates are sampled by the spans of its
	// timelines.
	Reports int `json:"reports"`
	// Time and Host are the time and the host of the first report.
	Time   time.Time `json:"time,omitzero"`
	Host   string    `json:"host,omitempty"`
	values map[Key][]float64
	// spans holds the timeline rates of the first report, except each first span, which may include
	// the startup.
	spans map[Key][]float64
	// times holds all times of latency tests. The key's metric is empty.
	times map[Key]*times
}

// times is the merged histogram of several reports.
type times struct {
	all     *hdrhistogram.Histogram // in nanoseconds
	reports int
}

// report holds the compared fields of a perf report.
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

// Metric names.
const (
	Rate    = "bytes_per_second"
	Typical = "t_typical_us"
	P99     = "t_p99_us"
	P999    = "t_p999_us"
)

// percents maps latency metrics to percentiles.
var percents = map[string]float64{Typical: 50, P99: 99, P999: 99.9}

// Read adds all reports in a file. After an error the Set is unusable.
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
			err = errors.New("there is no report in it")
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

// take adds a sample of each value in a report.
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

// add merges a histogram of times in the format of --json. An empty text is ignored.
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

// samples returns the sorted values of a key.
func (s *Set) samples(k Key) []float64 {
	list := s.values[k]
	if spans := s.spans[k]; s.Reports == 1 && len(list) > 0 && len(spans) >= fewest {
		list = spans
	}
	return slices.Sorted(slices.Values(list))
}

// Value summarizes the samples of one key, in the unit of its metric.
type Value struct {
	N int `json:"samples"`
	// Center is the median of the samples. For a latency percentile, it is the percentile over the
	// times of all reports, if each has its histogram.
	Center float64 `json:"median"`
	// Spread is the uncertainty relative to Center, at 95 % confidence. It is nil with fewer than
	// 6 samples.
	Spread *float64 `json:"spread,omitempty"`
}

// Difference compares a key that both sides have.
type Difference struct {
	Key
	Old Value `json:"base"`
	New Value `json:"other"`
	// Change is New/Old - 1.
	Change float64 `json:"change"`
	// P is the probability that the difference is due to chance.
	P float64 `json:"p"`
	// Significant is set if the difference is unlikely to be chance.
	Significant bool `json:"significant"`
	// Enough is set if both sides have enough samples for a significant difference.
	Enough bool `json:"enough_samples"`
}

// Sets returns the differences between two sides, by operation, metric and size. Keys that only one
// side has are omitted.
func Sets(old, now *Set) (list []Difference) {
	for k := range old.values {
		a, b := old.samples(k), now.samples(k)
		if len(b) == 0 {
			continue
		}
		d := Difference{Key: k, Old: old.value(k, a), New: now.value(k, b), P: mannWhitney(a, b), Enough: min(len(a), len(b)) >= fewest}
		d.Significant = d.P < alpha
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
	v := Value{N: len(sorted), Center: median(sorted)}
	if t := s.times[Key{Op: k.Op, Mode: k.Mode, Size: k.Size}]; t != nil && t.reports == v.N && percents[k.Metric] > 0 {
		v.Center = float64(t.all.ValueAtPercentile(percents[k.Metric])) / 1e3
	}
	if low, high, ok := interval(sorted); ok && v.Center != 0 {
		spread := max(v.Center-low, high-v.Center) / v.Center
		v.Spread = &spread
	}
	return v
}
