//go:build linux

package dropin_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"ibverbx/dropin"
)

// finish runs a command with the timeout patience, and returns its error.
func finish(t *testing.T, cmd *exec.Cmd) error {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// SIGTERM can be handled: mpirun then terminates its ranks, which are in other process groups.
	stop := time.AfterFunc(patience, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop.Stop()
	kill := time.AfterFunc(patience+patience/9, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	return cmd.Wait()
}

// TestMPI: OpenMPI over UCX, with two ranks, with four, and with three on one address. Every rank
// checks the received data.
func TestMPI(t *testing.T) {
	l := library(t)
	ring := filepath.Join(filepath.Dir(l.Dir), "ring")
	cc, err := exec.LookPath("mpicc")
	if err != nil {
		missing(t, "mpicc")
	}
	if out, err := exec.CommandContext(t.Context(), cc, "-O2", "-o", ring, "testdata/ring.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	shared := []netip.Addr{netip.MustParseAddr("127.0.0.78")}
	for ranks, o := range []dropin.Options{2: {OnlyPackets: true}, 3: {Addrs: shared, PortGIDs: true}, 4: {}} {
		if ranks < 2 {
			continue
		}
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			if o.Stats = true; !o.PortGIDs {
				programsRan.add(t, "mpirun", fmt.Sprintf("UCX_TLS=rc_v -np %d", ranks))
			}
			// Only verbs may carry the messages, neither MPI's shared memory nor TCP. Two ranks do
			// not use the library's shared memory either.
			cmd, out := command(t, l, o, "UCX_TLS=rc_v,self", "mpirun", "--oversubscribe", "-np", fmt.Sprint(ranks),
				"--mca", "pml", "ucx", "--mca", "btl", "self", "--mca", "osc", "ucx", ring)
			cmd.Dir = os.TempDir()
			err := finish(t, cmd)
			if want := fmt.Sprintf("%d ranks, sum %d\n", ranks, ranks*(ranks+1)/2); err != nil || !strings.Contains(out.String(), want) {
				t.Fatalf("%v, want a line %q\n%s", err, want, out)
			}
			moved := `PacketsSent:[1-9]\d{2,}`
			if ranks > 2 {
				moved = `PacketsSent:[1-9]\d`
			}
			if n := len(regexp.MustCompile(moved).FindAllString(out.String(), -1)); n != ranks {
				t.Errorf("%d processes sent packets, want %d\n%s", n, ranks, out)
			}
		})
	}
}

// pyverbsTests is the directory of rdma-core's test suite in Debian's python3-pyverbs.
const pyverbsTests = "/usr/share/doc/rdma-core/tests"

// unpacked returns a folder with a copy of the suite. Debian compresses large files.
func unpacked(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(filepath.Dir(library(t).Dir), "pyverbs") // skips the test unless it is enabled
	files, _ := filepath.Glob(filepath.Join(pyverbsTests, "*"))
	if len(files) == 0 {
		missing(t, "rdma-core's tests in "+pyverbsTests+" (python3-pyverbs)")
	}
	if err := os.MkdirAll(filepath.Join(dir, "tests"), 0o755); err != nil { // the suite requires this name
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var from io.Reader = f
		if strings.HasSuffix(name, ".gz") {
			if from, err = gzip.NewReader(f); err != nil {
				t.Fatal(err)
			}
		}
		b, err := io.ReadAll(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "tests", strings.TrimSuffix(filepath.Base(name), ".gz")), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// python returns the command that runs a script in a copy of the suite. The module belongs to
// Debian's python3, which need not be the first in the path.
func python(t *testing.T, o dropin.Options, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	dir := unpacked(t)
	cmd, out := command(t, library(t), o, "PYTHONDONTWRITEBYTECODE=1", append([]string{"PYTHONPATH=.:tests", "/usr/bin/python3"}, args...)...)
	cmd.Dir = dir
	return cmd, out
}

// pyverbsPassed is the minimum number of tests that must pass. The suite skips the others: they
// need a vendor's hardware, or features beyond RC, UC and UD. Some are random.
const pyverbsPassed = 80

// TestPyverbs: rdma-core's own test suite passes.
func TestPyverbs(t *testing.T) {
	row := programsRan.add(t, "python3-pyverbs", "rdma-core's own tests")
	cmd, out := python(t, dropin.Options{}, "tests/run_tests.py", "-v")
	err := finish(t, cmd)
	if passed := strings.Count(out.String(), "... ok\n"); err != nil || passed < pyverbsPassed {
		t.Errorf("%v, %d tests passed, want at least %d\n%s", err, passed, pyverbsPassed, out)
	} else {
		row.note = fmt.Sprintf("%d tests passed, %d skipped by the suite, none failed", passed, strings.Count(out.String(), "... skipped"))
	}
}

// TestPyverbsConnections: the suite's rdma_cm tests pass, each as two programs
// (testdata/rdmacm.py).
func TestPyverbsConnections(t *testing.T) {
	programsRan.add(t, "python3-pyverbs", "test_rdmacm.py, each side as a program of its own")
	cmd, out := python(t, dropin.Options{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.80")}}, "rdmacm.py")
	script, err := os.ReadFile("testdata/rdmacm.py")
	if err == nil {
		err = os.WriteFile(filepath.Join(cmd.Dir, "rdmacm.py"), script, 0o644) // readable by the unprivileged user
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := finish(t, cmd); err != nil || strings.Count(out.String(), "... ok\n") != 10 {
		t.Errorf("%v, want 10 tests to pass\n%s", err, out)
	}
}
