package reliable_test

import (
	"testing"

	"ibverbx/internal/testslice"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// open returns wrapped contexts on two NICs of one link.
func open(tb testing.TB, link softnic.Link, cfg reliable.Config) verbstest.Pair {
	tb.Helper()
	return openOn(tb, link, cfg, reliable.NICConfig().QPTypes)
}

// openOn is open on NICs that have only some types of QP.
func openOn(tb testing.TB, link softnic.Link, cfg reliable.Config, types []verbs.QPType) verbstest.Pair {
	tb.Helper()
	cfg.Paths, cfg.ChunkBytes = 4, 4096
	var ctx [2]verbs.Context
	for i := range ctx {
		nic, err := softnic.New(link, softnic.Config{Seed: uint64(i) + 1, QPTypes: types})
		must(tb, err)
		tb.Cleanup(func() { must(tb, nic.Close()) })
		inner, err := nic.Open()
		must(tb, err)
		ctx[i], err = reliable.Wrap(inner, cfg)
		must(tb, err)
		tb.Cleanup(func() { must(tb, ctx[i].Close()) })
	}
	return verbstest.Pair{A: ctx[0], B: ctx[1], Departures: departures()}
}

// departures are the tests of the suite that a wrapped QP does not pass, and why.
func departures() map[string]string {
	const spread = "requests travel on many paths: others are under way when one turns out to be wrong"
	return map[string]string{
		"remoteerror/LongWriteChecksWholeRange": spread,
		"remoteerror/EarlierRequestsSucceed":    spread,
		"write/LastOneWins":                     "WRITEs of different requests travel on different paths and are not ordered among themselves",
	}
}

// pickVariant skips all but one run of the whole suite in a slice. The remaining ones run in parallel.
func pickVariant(t *testing.T, i int) {
	t.Helper()
	const variants = 8
	if !testslice.Of(t).Has(i, variants) {
		t.Skip("a slice runs one of the variants")
	}
	t.Parallel() // they wait most of the time
}

// TestConformance runs the suite that every provider passes on a wrapped context.
func TestConformance(t *testing.T) {
	pickVariant(t, 0)
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair { return open(tb, softnic.NewMemoryLink(nil), reliable.Config{}) })
}

// TestConformanceOverLoss runs its RC part over a network that loses packets.
func TestConformanceOverLoss(t *testing.T) {
	pickVariant(t, 1)
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 1, Impairment: softnic.Impairment{Loss: 0.01}})
		must(tb, err)
		p := open(tb, link, reliable.Config{})
		p.Lossy = true
		return p
	})
}

// TestConformanceWithoutCredits runs the RC part of the suite with peers that do not wait for credit.
func TestConformanceWithoutCredits(t *testing.T) {
	pickVariant(t, 2)
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		p := open(tb, softnic.NewMemoryLink(nil), reliable.Config{NoCredits: true})
		p.Lossy = true // skips UC and UD, which do not use credits
		return p
	})
}
