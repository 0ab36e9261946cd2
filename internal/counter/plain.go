//go:build !race && (amd64 || arm64)

package counter

import "sync/atomic"

// Counter is a number with one writer and any number of readers. The zero value is ready to use.
//
// The writer uses plain stores. A reader always loads a stored value, because the number has the
// size of a machine word (The Go Memory Model, "Implementation Restrictions for Programs Containing
// Data Races"). Stores to two Counters may be observed in any order.
type Counter struct{ v uint64 }

// Add adds n. Only the writer may call it.
func (c *Counter) Add(n uint64) { c.v += n }

// Raise sets the number to n if it is less. Only the writer may call it.
func (c *Counter) Raise(n uint64) {
	if c.v < n {
		c.v = n
	}
}

// Load returns the number. Any goroutine may call it.
func (c *Counter) Load() uint64 { return atomic.LoadUint64(&c.v) }
