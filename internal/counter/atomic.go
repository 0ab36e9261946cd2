//go:build race || !(amd64 || arm64)

package counter

import "sync/atomic"

// Counter is a number with one writer and any number of readers. The zero value is ready to use. Under the
// race detector, and on processors whose words may be smaller than the number, stores are atomic.
type Counter struct{ v atomic.Uint64 }

// Add adds n. Only the writer may call it.
func (c *Counter) Add(n uint64) { c.v.Store(c.v.Load() + n) }

// Raise sets the number to n if it is less. Only the writer may call it.
func (c *Counter) Raise(n uint64) {
	if c.v.Load() < n {
		c.v.Store(n)
	}
}

// Load returns the number. Any goroutine may call it.
func (c *Counter) Load() uint64 { return c.v.Load() }
