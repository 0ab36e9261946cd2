package softnic_test

import (
	"testing"

	"ibverbx/internal/testslice"
	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// pickVariant runs one of the additional runs of the suite per test slice, and skips the
// others.
func pickVariant(t *testing.T, i int) {
	t.Helper()
	const variants = 5
	if !testslice.Of(t).Has(i, variants) {
		t.Skip("a slice runs one of the variants")
	}
}

// pickShared runs the suite over a ShmLink in one test slice and between neighbors in the next.
func pickShared(t *testing.T, i int) {
	t.Helper()
	if !testslice.Of(t).AtMost(2).Has(i, 2) {
		t.Skip("a slice runs one of the two")
	}
}

// open returns contexts on two NICs of a link. A configured seed differs between them.
func open(tb testing.TB, link softnic.Link, cfg softnic.Config) verbstest.Pair {
	tb.Helper()
	var p verbstest.Pair
	for i := range 2 {
		if i == 1 && cfg.Seed != 0 {
			cfg.Seed++
		}
		nic, err := softnic.New(link, cfg)
		must(tb, err)
		tb.Cleanup(func() { must(tb, nic.Close()) })
		ctx, err := nic.Open()
		must(tb, err)
		if i == 0 {
			p.A = ctx
		} else {
			p.B = ctx
		}
	}
	return p
}

// TestConformance runs the suite that every provider passes over the memory link.
func TestConformance(t *testing.T) {
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		return open(tb, softnic.NewMemoryLink(nil), softnic.Config{})
	})
}

// TestConformanceLoose runs the suite over a memory link whose gates open as often as possible.
func TestConformanceLoose(t *testing.T) {
	pickVariant(t, 0)
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		link := softnic.NewMemoryLink(nil)
		softnic.SetLoose(link, 0)
		return open(tb, link, softnic.Config{})
	})
}

// TestConformanceSegmented runs the suite, including UC and UD, over a link that segments
// messages and queues packets without faults.
func TestConformanceSegmented(t *testing.T) {
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		link, err := softnic.NewFaultLink(nil)
		must(tb, err)
		return open(tb, link, softnic.Config{MTU: verbs.MTU512, Seed: 1})
	})
}

// TestConformanceOverFaults runs the RC part of the suite over a network that loses, duplicates
// and reorders packets.
func TestConformanceOverFaults(t *testing.T) {
	pickVariant(t, 1)
	t.Parallel() // mostly waiting
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		link, err := softnic.NewFaultLink(&softnic.FaultConfig{
			Seed:       1,
			Impairment: softnic.Impairment{Loss: 0.02, Duplicate: 0.05, Reorder: 0.1, Corrupt: 0.005},
		})
		must(tb, err)
		p := open(tb, link, softnic.Config{MTU: verbs.MTU1024})
		p.Lossy = true
		return p
	})
}
