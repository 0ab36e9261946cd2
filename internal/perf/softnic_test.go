package perf_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"ibverbx/internal/perf"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// faulty opens two software NICs on a link that segments messages and treats packets
// badly.
func faulty(t *testing.T, imp softnic.Impairment) (link *softnic.FaultLink, nics [2]*softnic.NIC, ctxs [2]verbs.Context) {
	t.Helper()
	link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 1, Impairment: imp})
	if err != nil {
		t.Fatal(err)
	}
	for i := range nics {
		if nics[i], err = softnic.New(link, softnic.Config{Name: fmt.Sprintf("soft%d", i)}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := nics[i].Close(); err != nil {
				t.Error(err)
			}
		})
		if ctxs[i], err = nics[i].Open(); err != nil {
			t.Fatal(err)
		}
	}
	return link, nics, ctxs
}

// RC must bring every byte through a bad link, and the test must see that.
func TestCheckOverFaultyLink(t *testing.T) {
	bad := softnic.Impairment{Loss: 0.002, Duplicate: 0.002, Reorder: 0.002, Corrupt: 0.002}
	for _, op := range []perf.Op{perf.Write, perf.Read, perf.Send, perf.Atomic} {
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			_, _, ctxs := faulty(t, bad)
			cfg := perf.Config{Op: op, Sizes: []int{100, 20000}, Iterations: 40, TxDepth: 20, QPs: 2, Bidirectional: true, Check: true, MTU: 1024}
			if op == perf.Atomic {
				cfg.Sizes = nil
			}
			test, err := perf.New(ctxs[0], ctxs[1], cfg)
			if err != nil {
				t.Fatal(err)
			}
			rep, err := test.Run(t.Context(), perf.Observer{})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rep.Results {
				if r.Iterations != 160 {
					t.Errorf("size %d: %d iterations, want 160", r.Size, r.Iterations)
				}
			}
		})
	}
}

// UD loses messages; the test counts them and goes on.
func TestLossOverFaultyLink(t *testing.T) {
	_, _, ctxs := faulty(t, softnic.Impairment{Loss: 0.1})
	test, err := perf.New(ctxs[0], ctxs[1], perf.Config{Op: perf.Send, Connection: verbs.UD, Sizes: []int{64}, Iterations: 500, TxDepth: 500})
	if err != nil {
		t.Fatal(err)
	}
	rep, err := test.Run(t.Context(), perf.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if r := rep.Results[0]; r.Iterations == 0 || r.Lost == 0 {
		t.Errorf("%d messages received and %d lost", r.Iterations, r.Lost)
	}
}

// Cancelling ends a test at once, even if nothing comes through any more.
func TestCancelOverCutLink(t *testing.T) {
	link, nics, ctxs := faulty(t, softnic.Impairment{})
	test, err := perf.New(ctxs[0], ctxs[1], perf.Config{Sizes: []int{64}, Duration: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	rep, err := test.Run(ctx, perf.Observer{Progress: func(perf.Progress) {
		link.Cut(nics[0], nics[1])
		time.AfterFunc(10*time.Millisecond, cancel)
	}})
	if err != nil || !rep.Interrupted {
		t.Errorf("interrupted %v, error %v", rep.Interrupted, err)
	}
}
