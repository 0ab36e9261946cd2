// Package xorshift provides cheap random numbers: equal seeds yield equal sequences, so simulations can
// be repeated. Do not use them for secrets. Another generator changes the results in docs/reliable.md.
package xorshift

// Source is the state of a 64-bit xorshift generator (Marsaglia, 2003, the triple 13, 7, 17). It
// must not be 0, which it would never leave.
type Source uint64

// Next returns the next number, which is never 0.
func (s *Source) Next() uint64 {
	x := uint64(*s)
	x ^= x << 13
	x ^= x >> 7
	x ^= x << 17
	*s = Source(x)
	return x
}
