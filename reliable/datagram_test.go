package reliable_test

import (
	"os"
	"os/exec"
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// onlyUD is a NIC with UD alone.
var onlyUD = []verbs.QPType{verbs.UD}

// newDatagramSide is newSide on a NIC with UD alone.
func newDatagramSide(tb testing.TB, link softnic.Link, cfg reliable.Config, size int) *side {
	tb.Helper()
	if cfg.GiveUp == 0 && cfg.Now == nil {
		cfg.GiveUp = int64(patience)
	}
	nic, err := softnic.New(link, softnic.Config{QPTypes: onlyUD})
	must(tb, err)
	tb.Cleanup(func() { must(tb, nic.Close()) })
	inner, err := nic.Open()
	must(tb, err)
	s := newSideOn(tb, nic, inner, cfg, size)
	if c := s.ctx.(reliable.TransportReporter); c.Transport() != verbs.UD || c.Carrier() != "ud" {
		tb.Fatalf("a NIC with UD alone has the carrier %v, %q, want UD", c.Transport(), c.Carrier())
	}
	return s
}

// TestDatagramTransfer moves every kind of message over UD alone, without and with loss.
func TestDatagramTransfer(t *testing.T) {
	for _, loss := range []float64{0, 0.01, 0.1} {
		link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 1, Impairment: softnic.Impairment{Loss: loss}})
		must(t, err)
		a := newDatagramSide(t, link, reliable.Config{}, 1<<20)
		b := newDatagramSide(t, link, reliable.Config{}, 1<<20)
		connect(t, a, b)
		for _, n := range []int{1, 4096, 100_000, 1 << 20} {
			for op := verbs.OpRDMAWrite; op <= verbs.OpRDMARead; op++ {
				transfer(t, a, b, op, n)
				transfer(t, b, a, op, n)
			}
		}
		if s := a.ctx.(reliable.StatsReader).Stats(); (s.Retransmitted == 0 && loss > 0) || s.Malformed > 0 {
			t.Errorf("loss %v: %+v", loss, s)
		}
	}
}

// TestDatagramConformance runs the conformance suite on NICs with UD alone.
func TestDatagramConformance(t *testing.T) {
	pickVariant(t, 6)
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		return openOn(tb, softnic.NewMemoryLink(nil), reliable.Config{}, onlyUD)
	})
}

// TestSuiteOverDatagrams runs the other tests of the package on NICs with UD alone, in another process.
func TestSuiteOverDatagrams(t *testing.T) {
	if os.Getenv(reliable.CarrierEnv) != "" {
		t.Skip("this is that process")
	}
	pickVariant(t, 7)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.skip", "Datagram|Mutations|Alloc", "-test.timeout", "10m")
	cmd.Env = append(os.Environ(), reliable.CarrierEnv+"=ud")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
