// Package xorshift provides random numbers that are cheap and the same in every run. They are not
// secret.
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
