package reliable_test

import (
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// corked is a context that counts the doorbells of its paths between Cork and Uncork, and outside.
type corked struct {
	*counted
	open          bool
	inside, corks int
	rung          int // doorbells before the last Cork
}

func (c *corked) doorbells() (n int) {
	for _, q := range c.paths {
		n += q.doorbells
	}
	return n
}

func (c *corked) Cork() {
	c.corks++
	c.open, c.rung = true, c.doorbells()
}

func (c *corked) Uncork() {
	c.open = false
	c.inside += c.doorbells() - c.rung
}

// TestCork: packets that several paths send together are batched, if the device supports it, and flushed at
// the end.
func TestCork(t *testing.T) {
	reliable.OverUC(t, "QPs of its own to count")
	const size = 1 << 20
	now := int64(0)
	clock := func() int64 { now += 100; return now }
	link := softnic.NewMemoryLink(&softnic.MemoryConfig{Now: clock})
	c := &corked{counted: newCounted()}
	x := newSideOver(t, link, reliable.Config{Now: clock}, size, func(inner verbs.Context) verbs.Context {
		c.Context = inner
		return c
	})
	y := newSide(t, link, reliable.Config{Now: clock}, size)
	connect(t, x, y)
	stream(t, x, y, size, 4)
	if c.open || c.corks == 0 || c.inside != c.doorbells() || c.inside < 2*c.corks {
		t.Errorf("%d doorbells, %d of them in %d corks, the last open: %v; want all, several in each, and false", c.doorbells(), c.inside, c.corks, c.open)
	}
}
