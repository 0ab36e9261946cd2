//go:build linux

package nccl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ibverbx/nccl"
)

// patience bounds one test of the program.
const patience = 5 * time.Minute

// missing skips the test, or fails it in CI, where everything must be installed.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("IBVERBX_CI") == "1" {
		t.Fatalf("needs %s, which CI must have", what)
	}
	t.Skipf("needs %s", what)
}

// build builds the plugin once for all tests.
var build = sync.OnceValues(func() (nccl.Library, error) {
	dir, err := os.MkdirTemp("", "ibverbx-nccl-")
	if err != nil {
		return nccl.Library{}, err
	}
	named := func(name string) (string, bool) { return filepath.Join(dir, "lib"), name == nccl.LibraryVariable }
	return nccl.Find(context.Background(), named, io.Discard)
})

func TestMain(m *testing.M) {
	status := m.Run()
	if os.Getenv("IBVERBX_TEST_NCCL") == "1" && os.Getenv(nccl.LibraryVariable) == "" {
		if l, err := build(); err == nil {
			_ = os.RemoveAll(filepath.Dir(l.Dir))
		}
	}
	os.Exit(status)
}

// library returns the plugin: the one in LibraryVariable, or a new one. Building it takes half a minute, so tests with it run by make
// test-nccl.
func library(t *testing.T) nccl.Library {
	t.Helper()
	if os.Getenv("IBVERBX_TEST_NCCL") != "1" {
		t.Skip("runs with IBVERBX_TEST_NCCL=1, as make test-nccl does")
	}
	if dir := os.Getenv(nccl.LibraryVariable); dir != "" {
		return nccl.Library{Dir: dir}
	}
	l, err := build()
	if errors.Is(err, nccl.ErrCannotBuild) {
		missing(t, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// run runs a test of the program with a table version and variables, on two rails.
func run(t *testing.T, version, name string, env ...string) string {
	t.Helper()
	l := library(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.CheckProgram(), "-v", version, l.Plugin(), name)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "NCCL_") }), "IBVERBX_ADDR=127.0.0.1,127.0.0.2")
	cmd.Env = append(cmd.Env, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // both processes, and their children
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Errorf("%s with table v%s and %q: %v\n%s", name, version, env, err, &out)
	}
	return out.String()
}

const udp = "IBVERBX_LINK=udp"

// links are the ways between two processes of a host.
var links = []string{"IBVERBX_LINK=auto", udp}

// TestTables: each table version moves data of all sizes in order, survives being loaded again, and connects.
func TestTables(t *testing.T) {
	for i, version := range []string{"8", "9", "10", "11", "12"} {
		for _, name := range []string{"load", "connect", "sizes", "order", "check", "exit"} {
			t.Run("v"+version+" "+name, func(t *testing.T) { run(t, version, name, links[i%2]) })
		}
	}
}

// TestRails: rails are lost and come back under traffic in both directions, without an error, and every byte is compared.
func TestRails(t *testing.T) {
	for _, version := range []string{"8", "11"} {
		t.Run("v"+version, func(t *testing.T) { run(t, version, "rails", udp) })
	}
}

// TestParts: connections keep their guarantees on two parts, which only larger machines have by default.
func TestParts(t *testing.T) {
	for _, name := range []string{"parts", "rails", "order", "abort", "norails", "torn", "split", "stopped", "killed", "fork", "leave"} {
		t.Run(name, func(t *testing.T) {
			run(t, "11", name, udp, "IBVERBX_TEST_PARTS=2", "IBVERBX_NCCL_DEAD_AFTER=10s", "IBVERBX_NCCL_DEADLINE=20s")
		})
	}
	t.Run("parts with loss", func(t *testing.T) { run(t, "12", "parts", "IBVERBX_LOSS=0.5%", "IBVERBX_TEST_PARTS=2") })
	t.Run("shared memory", func(t *testing.T) { run(t, "11", "parts", "IBVERBX_TEST_PARTS=2") })
	t.Run("one part", func(t *testing.T) { run(t, "11", "parts", udp) })
}

// TestLoss: the same with lost packets.
func TestLoss(t *testing.T) {
	for name, loss := range map[string]string{"rails": "0.5%", "sizes": "0.5%", "order": "0.5%", "abort": "0.5%", "leave": "10%"} {
		t.Run(name, func(t *testing.T) { run(t, "12", name, "IBVERBX_LOSS="+loss) })
	}
}

// TestLife: aborts, forks, dead and stopped peers, registrations under traffic, words that are read while they are written, shared contexts.
func TestLife(t *testing.T) {
	for _, name := range []string{"abort", "fork", "regions", "torn", "shared", "split", "stopped", "exit", "leave"} {
		for _, link := range links {
			t.Run(name+" "+link, func(t *testing.T) { run(t, "11", name, link) })
		}
	}
}

// TestDeadPeer: the death of the peer and the loss of all rails are remote errors, even if children of the peer keep its sockets open.
func TestDeadPeer(t *testing.T) {
	for _, link := range links {
		for _, name := range []string{"killed", "orphans", "norails"} {
			if name == "norails" && link != udp {
				continue // shared memory does not use rails
			}
			t.Run(name+" "+link, func(t *testing.T) { run(t, "11", name, link, "IBVERBX_NCCL_DEAD_AFTER=3s", "IBVERBX_NCCL_DEADLINE=5s") })
		}
	}
}

// TestManyConnections: a thousand connections between two processes, with about 100 KiB each.
func TestManyConnections(t *testing.T) {
	for _, link := range links {
		out := run(t, "11", "many", "IBVERBX_TEST_COMMS=1000", link)
		t.Log(link, out)
		var n, kib int
		var seconds float64
		if _, err := fmt.Sscanf(out, "%d connections in %f s, %d KiB each", &n, &seconds, &kib); err != nil || n != 1000 || kib > 150 {
			t.Errorf("%s: %d connections with %d KiB each (%v), want 1000 with at most 150", link, n, kib, err)
		}
	}
}

// TestToken: ranks with the same token file connect; a rank with a file that others can read does not start, and says why.
func TestToken(t *testing.T) {
	name := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(name, []byte("0123456789abcdef0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "11", "check", "IBVERBX_TOKEN_FILE="+name)
	for variable, value := range map[string]string{"IBVERBX_TOKEN_FILE": "/no/such/file", "IBVERBX_LOSS": "200%", "IBVERBX_ADDR": "192.0.2.1"} {
		l := library(t)
		cmd := exec.CommandContext(t.Context(), l.CheckProgram(), l.Plugin(), "check")
		cmd.Env = append(os.Environ(), variable+"="+value)
		out, err := cmd.CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte("not in use")) || !bytes.Contains(out, []byte(value)) {
			t.Errorf("%s=%s: got %v, want an error that names the value\n%s", variable, value, err, out)
		}
	}
}

// TestStats: the statistics at the end of a process name both rails, or shared memory.
func TestStats(t *testing.T) {
	if out := run(t, "11", "check", "IBVERBX_NCCL_STATS=1"); strings.Count(out, "shared memory: 1342") != 2 {
		t.Errorf("the statistics of two processes lack the bytes sent through shared memory:\n%s", out)
	}
	out := run(t, "11", "rails", udp, "IBVERBX_NCCL_STATS=1")
	for _, want := range []string{"rail soft0 on 127.0.0.1:", "rail soft1 on 127.0.0.2:"} {
		if strings.Count(out, want) != 2 {
			t.Errorf("the statistics of two processes lack %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "lost 0 times") || strings.Contains(out, " 0 requests,") {
		t.Errorf("the statistics have no losses or no requests:\n%s", out)
	}
}
