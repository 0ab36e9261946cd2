package measure_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/perf/measure"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// device returns fake GPU memory. All of it must be freed by the end of the test.
func device(t *testing.T) (*verbstest.MemoryDevice, measure.Memory) {
	t.Helper()
	d := new(verbstest.MemoryDevice)
	return d, measure.Memory{Device: d.Name(), Alloc: enginetest.CountedAlloc(t, d.Alloc)}
}

// names returns the buffer locations in a report.
func names(r *measure.Report) [2]string {
	return [2]string{r.Run.Options.Memory[0].String(), r.Run.Options.Memory[1].String()}
}

// memoryTest creates a test between two ends in this process.
func memoryTest(t *testing.T, cfg measure.Config) (*measure.Test, error) {
	t.Helper()
	cfg, err := cfg.Complete()
	if err != nil {
		return nil, err
	}
	_, ends := enginetest.OpenEnds(t, enginetest.MemoryLinks(cfg.Rails))
	return measure.New(ends[0], ends[1], cfg)
}

// TestDeviceMemory runs every operation with device memory at either end and at both. Every byte is
// compared, the report names the memory, and the device performs the reference copy.
func TestDeviceMemory(t *testing.T) {
	for name, on := range map[string][2]bool{"from": {true, false}, "to": {false, true}, "both": {true, true}} {
		for _, cfg := range []measure.Config{
			{},
			{QPs: 1},
			{Bidirectional: true},
			{Imm: true},
			{Imm: true, Scheme: ibverbx.Spray},
			{Op: measure.Read},
			{Op: measure.Send},
			{Mode: measure.Latency},
			{Mode: measure.Latency, Imm: true},
			{Mode: measure.Latency, Op: measure.Read},
			{Connection: verbs.UC, QPs: 2},
			{Connection: verbs.UD, Op: measure.Send},
			{Op: measure.Atomic},
			{Op: measure.Atomic, Mode: measure.Latency},
			{QPs: 4, Rails: 2, Duration: 30 * time.Millisecond, Kill: measure.Kill{On: true, At: 10 * time.Millisecond, Back: 10 * time.Millisecond}},
		} {
			if cfg.Op == measure.Atomic && on[1] {
				continue // TestDeviceMemoryRefused
			}
			t.Run(fmt.Sprintf("%s/%s/%s/imm=%v/%s/lanes=%d", name, cfg.Op, cfg.Mode, cfg.Imm, cfg.Connection, cfg.QPs), func(t *testing.T) {
				d, memory := device(t)
				want := [2]string{measure.HostMemory, measure.HostMemory}
				for side := range on {
					if on[side] {
						cfg.Memory[side], want[side] = memory, d.Name()
					}
				}
				cfg.Check = true
				switch {
				case cfg.Kill.On:
					cfg.Sizes = []int{10_000}
				case cfg.Op == measure.Atomic:
					cfg.Iterations = 70
				default:
					cfg.Sizes, cfg.Iterations = []int{8, 4000}, 70
				}
				test, err := memoryTest(t, cfg)
				enginetest.WantOK(t, "New", err)
				rep, err := test.Run(t.Context(), measure.Observer{})
				enginetest.WantOK(t, "Run", err)
				if got := names(&rep); got != want {
					t.Errorf("the report has memory of %v, want %v", got, want)
				}
				for _, r := range rep.Results {
					if r.BandwidthResult != nil && r.CopyBytesPerSecond == 0 {
						t.Errorf("size %d has no rate of copies", r.Size)
					}
				}
				if d.Count().Copies == 0 {
					t.Error("the device has copied nothing")
				}
			})
		}
	}
}

// TestDeviceChains: without --cq-mod a chain is a batch for the device, with a slot for each of its
// messages. The reference copy uses batches of the same size.
func TestDeviceChains(t *testing.T) {
	d, memory := device(t)
	test, err := memoryTest(t, measure.Config{QPs: 1, Sizes: []int{16 << 10}, Iterations: 640, Memory: [2]measure.Memory{memory, memory}})
	enginetest.WantOK(t, "New", err)
	if _, err := test.Run(t.Context(), measure.Observer{}); err != nil {
		t.Fatalf("Run: got %v, want no error", err)
	}
	const clearing = 2 // each side clears its buffer with one copy
	if c := d.Count(); c.Copies-clearing != 64*(c.Calls-clearing) || c.Calls == clearing {
		t.Errorf("%d copies in %d calls, want 64 in each", c.Copies-clearing, c.Calls-clearing)
	}
}

// TestDeviceMemoryFails: a device error fails the test, whichever copy fails: the transfer, a
// pattern, the comparison or the reference copy.
func TestDeviceMemoryFails(t *testing.T) {
	for _, check := range []bool{false, true} {
		for after := range 40 {
			d, memory := device(t)
			test, err := memoryTest(t, measure.Config{QPs: 1, Sizes: []int{100}, Iterations: 4, TxDepth: 2, Check: check, Memory: [2]measure.Memory{memory, memory}})
			enginetest.WantOK(t, "New", err)
			d.FailAfter(after)
			_, err = test.Run(t.Context(), measure.Observer{})
			var wc *verbs.WCError
			if done := d.Count().Calls; done < after {
				t.Fatalf("%d calls succeeded of %d that may: %v", done, after, err)
			} else if err == nil || !errors.Is(err, verbstest.ErrCopy) && !errors.As(err, &wc) {
				t.Errorf("check %v, failure after %d copies: got %v, want an error of the device", check, after, err)
			}
		}
	}
}

// TestDeviceMemoryRefused: atomics on device memory are rejected before any resource is opened.
func TestDeviceMemoryRefused(t *testing.T) {
	_, memory := device(t)
	for _, cfg := range []measure.Config{{Memory: [2]measure.Memory{{}, memory}}, {Memory: [2]measure.Memory{memory}, Bidirectional: true}} {
		cfg.Op = measure.Atomic
		_, err := memoryTest(t, cfg)
		var config *measure.ConfigError
		if !errors.As(err, &config) || config.Where != "--memory fake:0" || !strings.Contains(err.Error(), "--memory host at the target") {
			t.Errorf("%+v: got %v, want it refused", cfg.Memory, err)
		}
	}
}
