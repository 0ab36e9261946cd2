package measure_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// RC must deliver every byte over a bad link, and the test must verify that.
func TestCheckOverFaultyLink(t *testing.T) {
	bad := softnic.Impairment{Loss: 0.002, Duplicate: 0.002, Reorder: 0.002, Corrupt: 0.002}
	for _, cfg := range []measure.Config{
		{},
		{QPs: 1},
		{QPs: 1, Imm: true},
		{Imm: true},
		{Imm: true, Scheme: ibverbx.DQPLB},
		{Imm: true, Scheme: ibverbx.Spray},
		{Op: measure.Read},
		{Op: measure.Send},
		{Op: measure.Atomic},
	} {
		t.Run(fmt.Sprintf("op=%s/imm=%v/%s/lanes=%d", cfg.Op, cfg.Imm, cfg.Scheme, cfg.QPs), func(t *testing.T) {
			t.Parallel()
			_, ends := enginetest.OpenEnds(t, enginetest.FaultLinks(t, 2, bad))
			cfg.Rails, cfg.Iterations, cfg.TxDepth, cfg.Bidirectional, cfg.Check, cfg.MTU = 2, 40, 20, true, true, 1024
			if cfg.Op != measure.Atomic {
				cfg.Sizes = []int{100, 70000}
			}
			test, err := measure.New(ends[0], ends[1], cfg)
			enginetest.WantOK(t, "New", err)
			rep, err := test.Run(t.Context(), measure.Observer{})
			enginetest.WantOK(t, "Run", err)
			for _, r := range rep.Results {
				if r.Iterations != 80 {
					t.Errorf("size %d: %d iterations, want 80", r.Size, r.Iterations)
				}
			}
		})
	}
}

// UD loses messages; the test counts them and continues.
func TestLossOverFaultyLink(t *testing.T) {
	_, ends := enginetest.OpenEnds(t, enginetest.FaultLinks(t, 1, softnic.Impairment{Loss: 0.1}))
	test, err := measure.New(ends[0], ends[1], measure.Config{Op: measure.Send, Connection: verbs.UD, Sizes: []int{64}, Iterations: 500, TxDepth: 500})
	enginetest.WantOK(t, "New", err)
	rep, err := test.Run(t.Context(), measure.Observer{})
	enginetest.WantOK(t, "Run", err)
	if r := rep.Results[0]; r.Iterations == 0 || r.Lost == 0 {
		t.Errorf("%d messages received and %d lost, want both above 0", r.Iterations, r.Lost)
	}
}

// Cancelling stops a test immediately, even if the link is cut.
func TestCancelOverCutLink(t *testing.T) {
	for _, lanes := range []int{1, 4} {
		links := enginetest.FaultLinks(t, 2, softnic.Impairment{})
		nics, ends := enginetest.OpenEnds(t, links)
		test, err := measure.New(ends[0], ends[1], measure.Config{Rails: 2, QPs: lanes, Sizes: []int{64}, Duration: time.Hour})
		enginetest.WantOK(t, "New", err)
		ctx, cancel := context.WithCancel(t.Context())
		rep, err := test.Run(ctx, measure.Observer{Progress: func(measure.Progress) {
			for i, link := range links {
				link.(*softnic.FaultLink).Cut(nics[0][i], nics[1][i])
			}
			time.AfterFunc(10*time.Millisecond, cancel)
		}})
		if err != nil || !rep.Interrupted {
			t.Errorf("%d lanes: interrupted %v, error %v; want true and nil", lanes, rep.Interrupted, err)
		}
	}
}

// A sender never gets an RNR NAK: a test must measure the NICs, not their timers. On a memory link
// everything happens inside the test's calls, so the count is exact.
func TestReceiverIsReady(t *testing.T) {
	for _, cfg := range []measure.Config{
		{Op: measure.Send},
		{Op: measure.Send, QPs: 1},
		{Imm: true, QPs: 1},
		{Imm: true, QPs: 2},
		{Imm: true},
		{Imm: true, Policy: ibverbx.TwoChoices},
		{Imm: true, Fragment: 1000, QPs: 3},
		{Imm: true, Bidirectional: true, TxDepth: 1000, CQMod: 500},
	} {
		for _, scheme := range []ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB, ibverbx.Spray} {
			cfg.Scheme, cfg.Sizes, cfg.Iterations = scheme, []int{8, 40000}, 400
			cfg, err := cfg.Complete()
			if err != nil {
				t.Fatalf("Complete(%+v): got %v, want no error", cfg, err)
			}
			nics, ends := enginetest.OpenEnds(t, enginetest.MemoryLinks(cfg.Rails))
			test, err := measure.New(ends[0], ends[1], cfg)
			enginetest.WantOK(t, "New", err)
			if _, err := test.Run(t.Context(), measure.Observer{}); err != nil {
				t.Fatalf("Run(%+v): got %v, want no error", cfg, err)
			}
			for i := range nics[0] {
				if a, b := nics[0][i].Stats().RNRNAKsSent, nics[1][i].Stats().RNRNAKsSent; a != 0 || b != 0 {
					t.Errorf("%+v: the NICs of rail %d were not ready %d and %d times, want 0", cfg, i, a, b)
				}
			}
		}
	}
}

// TestHealth: the lossy rail and its lanes show retransmits, and the verdict names the rail.
func TestHealth(t *testing.T) {
	_, ends := enginetest.OpenEnds(t, append(enginetest.FaultLinks(t, 1, softnic.Impairment{}), enginetest.FaultLinks(t, 1, softnic.Impairment{Loss: 0.02})...))
	test, err := measure.New(ends[0], ends[1], measure.Config{Rails: 2, QPs: 2, Iterations: 100, Sizes: []int{64 << 10}, Policy: ibverbx.RoundRobin})
	enginetest.WantOK(t, "New", err)
	read := func(ctx verbs.Context, qpn uint32) (measure.Health, bool) {
		nic := ctx.Device().(*softnic.NIC)
		if qpn != 0 {
			s, ok := nic.QPStats(qpn)
			return measure.Health{Retransmits: s.Retransmits, NAKs: s.NAKsSent}, ok
		}
		s := nic.Stats()
		return measure.Health{Sent: s.PacketsSent, Lost: s.GoBacks, Retransmits: s.Retransmits, NAKs: s.NAKsSent}, true
	}
	rep, err := test.Run(t.Context(), measure.Observer{Health: read})
	enginetest.WantOK(t, "Run", err)
	good, bad := rep.PerRail[0].Health, rep.PerRail[1].Health
	// A descheduled process retransmits without a loss.
	if good.NAKs != 0 || bad.Retransmits <= good.Retransmits || bad.NAKs == 0 || good.Sent == 0 {
		t.Errorf("the rails have %+v and %+v, want NAKs of the second only, and more retransmits", good, bad)
	}
	if lanes := rep.PerLane; lanes[0].Health.Retransmits != good.Retransmits || lanes[1].Health.Retransmits != bad.Retransmits || lanes[1].Health.NAKs != bad.NAKs {
		t.Errorf("the lanes have %+v and %+v, want those of the rails", lanes[0].Health, lanes[1].Health)
	}
	if verdict := report.Verdict(&rep); !strings.Contains(verdict, "rail 1 ") || !strings.Contains(verdict, "loses ") {
		t.Errorf("the verdict is %q, want that rail 1 loses packets", verdict)
	}
}
