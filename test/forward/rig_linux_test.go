package forward_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// tool is the path of the tested program.
var tool string

func TestMain(m *testing.M) {
	if os.Getenv("IBVERBX_TEST_FORWARD") != "1" {
		os.Exit(m.Run())
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "forward")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		tool = filepath.Join(dir, "ibverbx")
		build := exec.Command("go", "build", "-o", tool, "ibverbx/cmd/ibverbx")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// need returns the path of a program of a Debian package. It searches places before PATH.
func need(t *testing.T, name, pkg string, places ...string) string {
	t.Helper()
	if os.Getenv("IBVERBX_TEST_FORWARD") != "1" {
		t.Skip("runs with IBVERBX_TEST_FORWARD=1, as make test-forward does")
	}
	for _, p := range places {
		if found, _ := filepath.Glob(filepath.Join(p, name)); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("IBVERBX_CI") == "1" {
		t.Fatalf("LookPath: got %v, want %s: install the Debian package %s", err, name, pkg)
	}
	if err != nil {
		t.Skipf("needs %s: install the Debian package %s", name, pkg)
	}
	return path
}

// output is a process's output.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// start starts a program, which is stopped with a signal at the end of the test. With clean, it
// must exit without an error.
func start(t *testing.T, cmd *exec.Cmd, signal syscall.Signal, clean bool) *output {
	t.Helper()
	o := &output{}
	cmd.Stdout, cmd.Stderr = o, o
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // kills the program with the test
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: got %v, want no error", cmd.Args, err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(signal)
		done := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
		defer done.Stop()
		if err := cmd.Wait(); clean && err != nil {
			t.Errorf("%v ended with %v: %s", cmd.Args, err, o)
		}
		if t.Failed() {
			t.Logf("%v printed:\n%s", cmd.Args, o)
		}
	})
	return o
}

// run runs a program, which must succeed, and returns its output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	return finish(t, exec.Command(name, args...))
}

func finish(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: got %v, want no error:\n%s", cmd.Args, err, out)
	}
	return string(out)
}

// freeAddr returns an IP and a port for a server. The IP is unique to it, so the port stays free.
func freeAddr(t *testing.T) (ip, port string) {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254)))
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	defer func() { _ = l.Close() }()
	ip, port, _ = net.SplitHostPort(l.Addr().String())
	return ip, port
}

// awaitPort waits until a server accepts connections.
func awaitPort(t *testing.T, ip, port string, o *output) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", net.JoinHostPort(ip, port))
		if err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("after a minute: %v: %s", err, o)
		}
	}
}

// through starts a server and a client that forward to a target, and returns the address for
// programs.
func through(t *testing.T, ip, port string) (host, local string) {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	run(t, tool, "token", token)
	// Two rails, each with software NICs on a separate address.
	common := []string{"--token-file", token, "--provider", "softnic", "--addr", "127.0.0.1,127.0.0.2"}
	serve := start(t, exec.Command(tool, append([]string{"serve", "--listen", "127.0.0.1:0", "--forward", ip + ":" + port}, common...)...), syscall.SIGINT, true)
	addr := awaitText(t, serve, "listening on ")
	client := start(t, exec.Command(tool, append([]string{"forward", "-L", "0:" + ip + ":" + port, addr}, common...)...), syscall.SIGTERM, true)
	awaitText(t, client, " forwards to "+ip)
	first, _, _ := strings.Cut(client.String(), " ")
	host, local, err := net.SplitHostPort(first)
	if err != nil {
		t.Fatalf("forward printed %q: %v", client, err)
	}
	return host, local
}

// awaitText waits for a line with a text and returns the rest of the line.
func awaitText(t *testing.T, o *output, text string) string {
	t.Helper()
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		for s := bufio.NewScanner(strings.NewReader(o.String())); s.Scan(); {
			if _, after, ok := strings.Cut(s.Text(), text); ok {
				return after
			}
		}
	}
	t.Fatalf("in a minute it printed %q, want %q", o, text)
	return ""
}
