package traffic_test

import (
	"cmp"
	"fmt"
	"runtime"
	"testing"

	"ibverbx/internal/enginetest"
	"ibverbx/softnic"
)

// wires is a set of links on one virtual clock: packets arrive under the test's control.
type wires struct {
	now   int64
	links []softnic.Link
}

// newWires returns fault links, one for each configuration.
func newWires(tb testing.TB, cfgs ...softnic.FaultConfig) *wires {
	tb.Helper()
	w := &wires{}
	for _, cfg := range cfgs {
		cfg.Now = func() int64 { return w.now }
		link, err := softnic.NewFaultLink(&cfg)
		enginetest.Must(tb, err)
		w.links = append(w.links, link)
	}
	return w
}

// newStill returns memory links on a virtual clock, which only timers wait for.
func newStill(n int) *wires {
	w := &wires{}
	for range n {
		w.links = append(w.links, softnic.NewMemoryLink(&softnic.MemoryConfig{Now: func() int64 { return w.now }}))
	}
	return w
}

// step moves the clock to the next event and runs it.
func (w *wires) step() {
	due, any := int64(0), false
	for _, link := range w.links {
		if next, pending := link.Step(); pending && (!any || next < due) {
			due, any = next, true
		}
	}
	if !any {
		return
	}
	w.now = max(w.now, due)
	for _, link := range w.links {
		link.Step()
	}
}

// yield is the counterpart of step for links in real time.
func yield() { runtime.Gosched() }

// stallGuard counts consecutive turns without progress, and fails the test when there are too many.
type stallGuard struct {
	// idle is the number of turns without progress.
	idle int
	// limit is the largest idle; zero means enough for the timers of links in real time and
	// for a goroutine that waits for a processor.
	limit int
}

// steps is a limit for links in virtual time, where every turn makes progress.
const steps = 200_000

func (p *stallGuard) step(progress bool) error {
	if p.idle++; progress {
		p.idle = 0
	}
	if p.idle > cmp.Or(p.limit, 5_000_000) {
		return fmt.Errorf("nothing happened in %d turns", p.idle)
	}
	return nil
}
