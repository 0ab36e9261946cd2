package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/sim"
	"ibverbx/sim/measure"
)

func TestSim(t *testing.T) {
	out := succeed(t, "sim", "--seeds", "5")
	says(t, out, "scenario mixed: 5 seeds from 1", "all guarantees held", "faults: ")
	v := object(t, "sim", "--seed", "3", "--seeds", "2", "--scenario", "loss")
	if v["seeds"] != 2.0 || v["seed"] != 3.0 || v["messages"].(float64) == 0 {
		t.Errorf("seeds, seed and messages = %v, %v, %v; want 2, 3 and some", v["seeds"], v["seed"], v["messages"])
	}
	if failures, ok := v["failures"].([]any); !ok || len(failures) != 0 {
		t.Errorf("failures = %v, want an empty list", v["failures"])
	}
	if faults, ok := v["faults"].(map[string]any); !ok || len(faults) != 0 {
		t.Errorf("faults = %v, want none in scenario loss", v["faults"])
	}
	v = object(t, "sim", "--scenario", "path-loss", "--seeds", "2")
	faults, worlds := v["faults"].(map[string]any), v["fault_worlds"].(map[string]any)
	if faults["path-cut"] != 2.0 || worlds["path-cut"] != 2.0 || len(faults) != 1 {
		t.Errorf("faults = %v and fault_worlds = %v, want path-cut twice, in two worlds", faults, worlds)
	}
	metrics := object(t, "sim", "--scenario", "ecmp-collision")["metrics"].(map[string]any)
	if gbps, ratio := metrics["goodput_gbps"].(float64), metrics["ratio_to_sum"].(float64); ratio < 0.95 || ratio > 1 || gbps < 90 {
		t.Errorf("goodput_gbps = %v and ratio_to_sum = %v, want at least 95%% of one or two paths of 100 Gb/s", gbps, ratio)
	}
}

func TestSimList(t *testing.T) {
	out := succeed(t, "sim", "--list")
	for _, name := range sim.Names() {
		if line := lineWith(out, name+" "); len(strings.Fields(line)) < 3 {
			t.Errorf("sim --list does not say what %s is: %q", name, line)
		}
	}
	for _, m := range measure.Scenarios() {
		if line := lineWith(out, m.Name+" "); strings.Index(line, "Measured: ") != 30 {
			t.Errorf("sim --list does not say in column 30 that %s is measured: %q", m.Name, line)
		}
	}
}

// TestSimMeasured: the results of a measured scenario meet its guarantees and are reproducible.
func TestSimMeasured(t *testing.T) {
	v := object(t, "sim", "--scenario", "reliable-400g-loss-0.1", "--seed", "7")
	if ratio, ok := v["goodput_ratio"].(float64); !ok || ratio < 0.9 || ratio > 1 {
		t.Errorf("goodput_ratio = %v, want at least 0.9", v["goodput_ratio"])
	}
	latency, ok := v["latency_us"].(map[string]any)
	if !ok {
		t.Fatalf("latency_us = %v, want an object", v["latency_us"])
	}
	p50, p99, p999 := latency["p50"].(float64), latency["p99"].(float64), latency["p999"].(float64)
	if !(20 < p50 && p50 <= p99 && p99 <= p999) {
		t.Errorf("latency_us = %v, want p50 above a round trip of 20 us, and p99 and p999 not below it", latency)
	}
	if v["bytes"].(float64) < 256<<20 {
		t.Errorf("bytes = %v, want at least 256 MiB", v["bytes"])
	}
	args := []string{"sim", "--scenario", "reliable-400g-rtt-step"} // a short scenario
	first := succeed(t, append(args, "--json")...)
	if second := succeed(t, append(args, "--json")...); first != second {
		t.Errorf("two runs of one seed differ:\n%s\n%s", first, second)
	}
	out := succeed(t, args...)
	says(t, out, "goodput ", "p99.9", "aim: retransmit_ratio below 0.02: reached")
}

// TestSimTrace: a trace consists of JSON lines and is reproducible.
func TestSimTrace(t *testing.T) {
	read := func(name string) string {
		file := filepath.Join(t.TempDir(), name)
		succeed(t, "sim", "--seed", "4", "--trace", file)
		b, err := os.ReadFile(file)
		enginetest.WantOK(t, "ReadFile", err)
		return string(b)
	}
	first := read("a")
	for line := range strings.Lines(first) {
		if !json.Valid([]byte(line)) {
			t.Fatalf("not a line of JSON: %q", line)
		}
	}
	if second := read("b"); first == "" || first != second {
		t.Errorf("two traces of one seed have %d and %d bytes, want the same ones", len(first), len(second))
	}
}

// TestSimTraceOnFullDisk: a failed trace write is reported as a disk error, not as a violated guarantee.
func TestSimTraceOnFullDisk(t *testing.T) {
	const full = "/dev/full"
	if _, err := os.Stat(full); err != nil {
		t.Skipf("%v: only Linux has a disk that is always full", err)
	}
	status, out, stderr := command(t.Context(), "sim", "--seed", "4", "--trace", full)
	if status != exitFailure || !strings.Contains(stderr, "no space left") || strings.Contains(out+stderr, "promise") {
		t.Errorf("status %d, stdout %q, stderr %q; want %d, the error of the disk, and no promise", status, out, stderr, exitFailure)
	}
}

// TestSimFailure: a scenario that violates a guarantee exits with status 1 and prints the seed, a smaller failing
// scenario and the command.
func TestSimFailure(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "wrong.txt")
	text := "about It wants success and brings a failure.\nfailover off\nconnections 1\nhosts 2\ngap 5us\n" +
		"end 0a messages 60\nfault bad-key end 0a at 0s\nfault slow at 1us for 1ms\nexpect success\n"
	enginetest.WantOK(t, "WriteFile", os.WriteFile(file, []byte(text), 0o600))
	status, out, stderr := command(t.Context(), "sim", "--seed", "5", "--scenario", file)
	if status != exitFailure || !strings.Contains(stderr, "violated a guarantee") {
		t.Fatalf("status %d, stderr %q; want %d and what happened", status, stderr, exitFailure)
	}
	says(t, out, "seed 5 violated a guarantee: expectation", "ibverbx sim --seed 5 --scenario "+file, "fault bad-key end 0a")
	if strings.Contains(out, "fault slow") {
		t.Errorf("the smaller scenario has a fault that it does not need:\n%s", out)
	}
	var small strings.Builder
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(line, "    "); ok {
			small.WriteString(rest)
		}
	}
	enginetest.WantOK(t, "WriteFile", os.WriteFile(file, []byte(small.String()), 0o600))
	if status, _, stderr := command(t.Context(), "sim", "--seed", "5", "--scenario", file); status != exitFailure {
		t.Errorf("the smaller scenario: status %d, stderr %q; want %d", status, stderr, exitFailure)
	}
}

// countedContext is canceled from the second look at Err on.
type countedContext struct {
	context.Context
	looks *int
}

func (c countedContext) Err() error {
	if *c.looks++; *c.looks > 1 {
		return context.Canceled
	}
	return nil
}

// TestSimMeasuredInterrupted: measured scenarios that are interrupted print the results they have.
func TestSimMeasuredInterrupted(t *testing.T) {
	ctx := countedContext{t.Context(), new(int)}
	status, out, stderr := command(ctx, "sim", "--scenario", "reliable-400g-rtt-step", "--seeds", "5", "--json")
	list := objects(t, out)
	if status != exitInterrupted || !strings.Contains(stderr, "1 of 5 seeds") || len(list) != 1 || list[0]["seeds"] != 1.0 {
		t.Errorf("status %d, stderr %q, stdout %q; want %d and the result of one seed", status, stderr, out, exitInterrupted)
	}
}

func TestSimInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if status, _, stderr := command(ctx, "sim", "--seeds", "1000"); status != exitInterrupted || !strings.Contains(stderr, "0 of 1000") {
		t.Errorf("status %d, stderr %q; want %d and how far it came", status, stderr, exitInterrupted)
	}
	if status, _, stderr := command(ctx, "sim", "--measured"); status != exitInterrupted || !strings.Contains(stderr, "0 of 1 seeds") {
		t.Errorf("--measured: status %d, stderr %q; want %d and how far it came", status, stderr, exitInterrupted)
	}
}

func TestSimUsage(t *testing.T) {
	for args, want := range map[string]string{
		"sim --seeds 0":                                 "at least 1",
		"sim --scenario nothing":                        "no scenario \"nothing\"",
		"sim --scenario reliable-400g-loss-2":           "or one of the measured ones of --list",
		"sim --scenario reliable-400g-loss-0.2":         "nor a scenario of --list",
		"sim --scenario ./none.txt":                     "none.txt",
		"sim --seeds 2 --trace file":                    "one seed",
		"sim now":                                       "no arguments",
		"sim --measured --trace x":                      "drop --scenario and --trace",
		"sim --scenario reliable-400g-loss-0 --trace x": "is measured",
	} {
		refused(t, args, want)
	}
}

func TestSimProgress(t *testing.T) {
	got := simProgress(sim.Summary{Seeds: 50, Of: 200}, 5*time.Second)
	says(t, got, "50/200", "25%", "10 seeds/s", "15s left")
}
