package compare

import (
	"math"
	"slices"
)

// alpha is the significance level: above it, a difference counts as chance.
const alpha = 0.05

// median returns the median of sorted values, which must not be empty.
func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// interval returns a confidence interval for the median, with a confidence of at least 1-alpha. Its
// bounds are two of the sorted values, so no distribution is assumed. ok is false for fewer than 6
// values.
func interval(sorted []float64) (low, high float64, ok bool) {
	n := len(sorted)
	// The k smallest are all below the median with the probability of at most k-1 heads in n coin
	// tosses. The probability of no heads is 0 as a float64 for more than 1074 values, its logarithm is not.
	tail, logOne := 0.0, -float64(n)*math.Ln2
	k := 0
	for tail+math.Exp(logOne) <= alpha/2 {
		tail += math.Exp(logOne)
		logOne += math.Log(float64(n-k) / float64(k+1))
		k++
	}
	if k == 0 {
		return 0, 0, false
	}
	return sorted[k-1], sorted[n-k], true
}

// mannWhitney returns the probability that two samples of one distribution differ in rank at least
// as much as a and b, which must be sorted and not empty (two-sided Mann-Whitney U test). It is
// exact without ties and for up to 50 values each, otherwise a normal approximation.
func mannWhitney(a, b []float64) float64 {
	all := slices.Concat(a, b)
	slices.Sort(all)
	n, m := float64(len(a)), float64(len(b))
	u, ties := 0.0, 0.0
	for _, x := range a {
		below, _ := slices.BinarySearch(b, x)
		to := below
		for to < len(b) && b[to] == x {
			to++
		}
		u += float64(below) + float64(to-below)/2
	}
	for i := 0; i < len(all); {
		k := i
		for k < len(all) && all[k] == all[i] {
			k++
		}
		t := float64(k - i)
		ties += t*t*t - t
		i = k
	}
	if ties == 0 && len(a) <= 50 && len(b) <= 50 {
		return exact(len(a), len(b), int(min(u, n*m-u)))
	}
	sum := n + m
	variance := n * m / 12 * (sum + 1 - ties/(sum*(sum-1)))
	if variance <= 0 {
		return 1
	}
	z := max(math.Abs(u-n*m/2)-0.5, 0) / math.Sqrt(variance)
	return math.Erfc(z / math.Sqrt2)
}

// exact returns the two-sided probability of a U of at most u, for two samples of n and m distinct
// values.
func exact(n, m, u int) float64 {
	// ways[i][k] is the number of orders of i values of one sample and j of the other with U equal
	// to k.
	ways := make([][]float64, n+1)
	for i := range ways {
		ways[i] = make([]float64, n*m+1)
		ways[i][0] = 1 // for j = 0
	}
	for j := 1; j <= m; j++ {
		for i := 1; i <= n; i++ {
			next := make([]float64, n*m+1)
			for k := range i*j + 1 {
				next[k] = ways[i][k] // the largest is of the second sample, and adds 0
				if k >= j {
					next[k] += ways[i-1][k-j] // it is of the first sample, above all j of the second
				}
			}
			ways[i] = next
		}
	}
	below, total := 0.0, 0.0
	for k, w := range ways[n] {
		total += w
		if k <= u {
			below += w
		}
	}
	return min(2*below/total, 1)
}
