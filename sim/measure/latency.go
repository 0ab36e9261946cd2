package measure

import "slices"

// Latency collects how long messages took, in nanoseconds of virtual time. It keeps them all:
// quantiles are exact.
type Latency struct {
	values []int64
	sorted bool
}

func (l *Latency) add(ns int64) {
	l.values = append(l.values, ns)
	l.sorted = false
}

// Merge adds what others have collected.
func (l *Latency) Merge(others ...*Latency) {
	for _, o := range others {
		l.values = append(l.values, o.values...)
	}
	l.sorted = false
}

// Quantile is the least time within which a share q of the messages has ended, in
// nanoseconds; 0 if there are none.
func (l *Latency) Quantile(q float64) int64 {
	n := len(l.values)
	if n == 0 {
		return 0
	}
	if !l.sorted {
		slices.Sort(l.values)
		l.sorted = true
	}
	k := int(q * float64(n))
	if float64(k) < q*float64(n) {
		k++
	}
	return l.values[min(max(k-1, 0), n-1)]
}

// Quantiles are the usual ones, in microseconds.
type Quantiles struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
}

// Quantiles returns the usual quantiles.
func (l *Latency) Quantiles() Quantiles {
	us := func(q float64) float64 { return float64(l.Quantile(q)) / 1e3 }
	return Quantiles{P50: us(0.5), P99: us(0.99), P999: us(0.999)}
}
