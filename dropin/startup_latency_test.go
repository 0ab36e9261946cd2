//go:build linux

package dropin_test

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"ibverbx/dropin"
)

// TestStartUp: a program gets its devices within 10 ms, even after an exec. A loaded machine is
// slow most of the time, so the shortest time counts.
func TestStartUp(t *testing.T) {
	l := library(t)
	start := filepath.Join(filepath.Dir(l.Dir), "start")
	if out, err := exec.CommandContext(t.Context(), "cc", "-O2", "-o", start, "testdata/start.c", "-libverbs").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, args := range [][]string{nil, {"exec"}} {
		best := math.MaxInt
		for range 20 {
			cmd, out := command(t, l, dropin.Options{}, start, args...)
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			us, err := strconv.Atoi(strings.TrimSpace(out.String()))
			if err != nil {
				t.Fatal(err)
			}
			best = min(best, us)
		}
		if t.Logf("start-up %v: %d us", args, best); best >= 10_000 {
			t.Errorf("the first list of devices took at least %d us, want less than 10,000", best)
		}
	}
}

// typical returns the median latency printed by perftest, in microseconds.
func typical(t *testing.T, out string) float64 {
	t.Helper()
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 5 && f[0] == "2" {
			us, err := strconv.ParseFloat(f[4], 64)
			if err != nil {
				t.Fatal(err)
			}
			return us
		}
	}
	t.Fatalf("no median in\n%s", out)
	return 0
}

// TestWriteLatency: a program that spins on memory without polling, such as ib_write_lat, gets its
// data within three times the latency of a polling program, if the NICs have their own cores. With
// fewer cores it only has to complete. Other load disturbs most runs, so the best of each counts.
func TestWriteLatency(t *testing.T) {
	send, write := math.Inf(1), math.Inf(1)
	for range 5 {
		_, out := between(t, dropin.Options{}, "ib_send_lat", "-n", "1000")
		send = min(send, typical(t, out))
		_, out = between(t, dropin.Options{}, "ib_write_lat", "-n", "1000")
		write = min(write, typical(t, out))
	}
	t.Logf("medians: ib_send_lat %.2f us, ib_write_lat %.2f us", send, write)
	if runtime.NumCPU() >= 4 && write > 3*send {
		t.Errorf("the median of ib_write_lat is %.1f times that of ib_send_lat, want at most 3", write/send)
	}
}

// TestOtherABI: a program linked with the private symbols of another rdma-core fails to start, and
// the error names the missing version.
func TestOtherABI(t *testing.T) {
	l := library(t)
	dir, err := os.MkdirTemp(filepath.Dir(l.Dir), "abi-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"lib.c": "int verbs_of_tomorrow(void) { return 0; }\n", "lib.map": "IBVERBS_PRIVATE_9999 { global: verbs_of_tomorrow; };\n",
		"main.c": "int verbs_of_tomorrow(void);\nint main(void) { return verbs_of_tomorrow(); }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "-Wl,--version-script=lib.map", "-o", "libibverbs.so.1", "lib.c"},
		{"-o", "main", "main.c", "-L.", "-l:libibverbs.so.1"},
	} {
		cc := exec.CommandContext(t.Context(), "cc", args...)
		cc.Dir = dir
		if out, err := cc.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	cmd, out := command(t, l, dropin.Options{}, filepath.Join(dir, "main"))
	if err := cmd.Run(); err == nil || !strings.Contains(out.String(), "IBVERBS_PRIVATE_9999") {
		t.Errorf("a program for another rdma-core: %v, want a failure that names IBVERBS_PRIVATE_9999\n%s", err, out)
	}
}
