package measure

import (
	"math"
	"slices"
)

// latencies holds the latencies of messages in nanoseconds of virtual time. It keeps all of them, so
// quantiles are exact.
type latencies []int64

// Quantiles are the median and two high quantiles, in microseconds.
type Quantiles struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
}

// quantiles sorts the latencies. Quantile q is the shortest time within which a share q of the messages
// has ended. It is 0 if there are none.
func (l latencies) quantiles() Quantiles {
	slices.Sort(l)
	us := func(q float64) float64 {
		n := len(l)
		if n == 0 {
			return 0
		}
		k := int(math.Ceil(q * float64(n)))
		return float64(l[min(max(k-1, 0), n-1)]) / 1e3
	}
	return Quantiles{P50: us(0.5), P99: us(0.99), P999: us(0.999)}
}
