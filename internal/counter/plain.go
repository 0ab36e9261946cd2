//go:build !race && (amd64 || arm64)

package counter

import "sync/atomic"

// Counter is a number with one writer and any number of readers. The zero value is ready to use.
//
// The writer stores with plain instructions. A reader sees a value that was written, because the number has
// the size of a machine word (The Go Memory Model, "Implementation Restrictions for Programs Containing Data
// Races"). The order of stores to two Counters is not known to readers.
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
