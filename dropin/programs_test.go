//go:build linux

package dropin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ibverbx/dropin"
)

// missing skips the test, or fails it in CI, where everything must be installed.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("IBVERBX_CI") == "1" {
		t.Fatalf("needs %s, which CI must have", what)
	}
	t.Skipf("needs %s", what)
}

// unprivileged is the ID of a user without privileges.
const unprivileged = 65534

// build builds the library once for all tests.
var build = sync.OnceValues(func() (dropin.Library, error) {
	dir, err := os.MkdirTemp("", "ibverbx-dropin-")
	if err != nil {
		return dropin.Library{}, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // for the unprivileged user
		return dropin.Library{}, err
	}
	named := func(name string) (string, bool) { return filepath.Join(dir, "lib"), name == dropin.LibraryVariable }
	return dropin.Find(context.Background(), named, io.Discard)
})

func TestMain(m *testing.M) {
	status := m.Run()
	if document := os.Getenv("IBVERBX_TEST_DROPIN_TABLE"); document != "" && status == 0 {
		if err := programsRan.write(document); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	if os.Getenv("IBVERBX_TEST_DROPIN") == "1" {
		if l, err := build(); err == nil {
			_ = os.RemoveAll(filepath.Dir(l.Dir))
		}
	}
	os.Exit(status)
}

// library returns the library. Building it takes half a minute, so only make test-dropin runs these
// tests.
func library(t *testing.T) dropin.Library {
	t.Helper()
	if os.Getenv("IBVERBX_TEST_DROPIN") != "1" {
		t.Skip("runs with IBVERBX_TEST_DROPIN=1, as make test-dropin does")
	}
	l, err := build()
	if errors.Is(err, dropin.ErrCannotBuild) {
		missing(t, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// command returns a program with the library, run as an unprivileged user if the test runs as root.
// Variables may precede its name, as in a shell.
func command(t *testing.T, l dropin.Library, o dropin.Options, name string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	var set []string
	for strings.Contains(name, "=") {
		set, name, args = append(set, name), args[0], args[1:]
	}
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, name)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	vars, err := l.Env(nil)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = slices.Concat(os.Environ(), []string{"HOME=/nonexistent"}, vars, o.Env(), set)
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivileged, Gid: unprivileged}}
	}
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = patience / 9 // a loaded machine may read a program's output slowly
	return cmd, out
}

// freePort returns an unused TCP port.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// listening reports whether a process on this host listens on a TCP port. The server would mistake
// a test connection for the client.
func listening(port int) bool { return listed(os.Getpid(), "tcp", fmt.Sprintf(":%04X", port)) }

// patience is the timeout for two processes. It only has to detect hangs, because a loaded machine
// is slow.
const patience = 90 * time.Second

// clockless is perftest's message after a loaded machine has disturbed its measurement of the
// processor frequency.
const clockless = "Can't produce a report"

// between runs a program as server and client. Both must exit with status 0.
func between(t *testing.T, o dropin.Options, name string, args ...string) (server, client string) {
	t.Helper()
	server, client, err := tryBetween(t, o, name, args...)
	for try := 1; try < 10 && ownFault(err); try++ {
		server, client, err = tryBetween(t, o, name, args...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

func tryBetween(t *testing.T, o dropin.Options, name string, args ...string) (server, client string, err error) {
	t.Helper()
	l := library(t)
	port := freePort(t)
	serverPort, clientPort := "-p", "-p"
	if name == "fi_pingpong" {
		serverPort, clientPort = "-B", "-P"
	}
	srv, srvOut := command(t, l, o, name, slices.Concat(args, []string{serverPort, fmt.Sprint(port)})...)
	cli, cliOut := command(t, l, o, name, slices.Concat(args, []string{clientPort, fmt.Sprint(port), "127.0.0.1"})...)
	ended := serve(t, srv, port)
	stop := time.AfterFunc(patience, func() {
		_ = cli.Process.Kill()
		_ = srv.Process.Kill()
	})
	defer stop.Stop()
	err = cli.Run()
	if err != nil {
		_ = srv.Process.Kill() // otherwise it waits for the lost client
	}
	if err = errors.Join(err, <-ended); err != nil {
		err = fmt.Errorf("%w\nclient:\n%s\nserver:\n%s", err, cliOut, srvOut)
	}
	return srvOut.String(), cliOut.String(), err
}

// serve starts a server and waits until it listens or exits. The channel receives the server's
// error.
func serve(t *testing.T, srv *exec.Cmd, port int) <-chan error {
	t.Helper()
	if err := srv.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Wait() }()
	for begin := time.Now(); !listening(port) && len(ended) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > patience {
			_ = srv.Process.Kill()
			t.Fatalf("the server does not listen after %v", patience)
		}
	}
	return ended
}

// programs lists the command lines that must run between two processes.
var programs = []string{
	"ibv_rc_pingpong -g 0", "ibv_rc_pingpong -g 0 -e", "ibv_rc_pingpong -g 0 -N", "ibv_rc_pingpong -g 0 -c", "ibv_rc_pingpong -g 0 -t",
	"ibv_uc_pingpong -g 0", "ibv_uc_pingpong -g 0 -e", "ibv_uc_pingpong -g 0 -c",
	"ibv_ud_pingpong -g 0", "ibv_ud_pingpong -g 0 -e", "ibv_ud_pingpong -g 0 -c",
	"ibv_srq_pingpong -g 0", "ibv_srq_pingpong -g 0 -e", "ibv_srq_pingpong -g 0 -c",

	"ib_write_bw -n 1000", "ib_write_bw -a -n 20", "ib_write_bw -D 1", "ib_write_bw -b -n 500", "ib_write_bw -q 8 -n 500",
	"ib_write_bw -l 64 -s 8 -n 6400", "ib_write_bw -c UC -n 1000", "ib_write_lat -n 500", "ib_write_lat -c UC -n 500",
	"ib_read_bw -n 1000", "ib_read_bw -b -q 8 -n 200", "ib_read_lat -n 1000",
	"ib_send_bw -n 1000", "ib_send_bw -a -n 20", "ib_send_bw -e -n 1000", "ib_send_bw --use-srq -n 1000", "ib_send_bw -b -n 500",
	"ib_send_bw -c UC -n 1000", "ib_send_bw -c UD -n 1000", "ib_send_lat -n 1000", "ib_send_lat -e -n 500", "ib_send_lat -c UC -n 1000", "ib_send_lat -c UD -n 1000",
	"ib_send_bw -c UD -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:79:1:1 -n 1000", "ib_send_lat -c UD -g -n 500",
	"ib_atomic_bw -n 1000", "ib_atomic_bw -A CMP_AND_SWAP -n 1000", "ib_atomic_lat -n 1000",

	"UCX_TLS=rc_v ucx_perftest -t tag_lat -n 500", "UCX_TLS=rc_v ucx_perftest -t tag_bw -s 65536 -n 200", "UCX_TLS=rc_v ucx_perftest -t ucp_put_bw -s 65536 -n 200",
	"UCX_TLS=rc_v ucx_perftest -t ucp_get -n 200", "UCX_TLS=rc_v ucx_perftest -t ucp_add -s 8 -n 200",
	"UCX_TLS=rc_v ucx_perftest -t tag_lat -D iov -s 32,32,32,32,32,32 -n 200", // more elements than a request holds inline
	"UCX_TLS=ud_v ucx_perftest -t tag_lat -n 200", "UCX_TLS=ud_v ucx_perftest -t tag_bw -s 65536 -n 50",
	"fi_pingpong -p verbs;ofi_rxd -e rdm -c -I 20",
}

// TestPrograms: unmodified programs of the distribution run between two unprivileged processes.
func TestPrograms(t *testing.T) {
	for _, line := range programs {
		t.Run(line, func(t *testing.T) {
			words := strings.Fields(line)
			name := words[slices.IndexFunc(words, func(w string) bool { return !strings.Contains(w, "=") })]
			programsRan.add(t, name, strings.Join(slices.DeleteFunc(strings.Fields(line), func(w string) bool { return w == name }), " "))
			between(t, dropin.Options{}, words[0], words[1:]...)
		})
	}
}

// TestDevinfo: a program lists the requested devices.
func TestDevinfo(t *testing.T) {
	programsRan.add(t, "ibv_devinfo", "-v")
	cmd, out := command(t, library(t), dropin.Options{Devices: 3, MTU: 3}, "ibv_devinfo", "-v")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"soft0", "soft1", "soft2", "1024 (3)", "PORT_ACTIVE", "RoCE v2", "LINK_UP"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("ibv_devinfo does not print %q:\n%s", want, out)
		}
	}
}

// TestSharedAddress: processes share a configured address. All but one use a different UDP port,
// which programs exchange as their LID.
func TestSharedAddress(t *testing.T) {
	o := dropin.Options{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.77")}}
	for _, line := range []string{"ibv_rc_pingpong -g 0 -c -n 100", "ibv_ud_pingpong -g 0 -n 100", "ib_write_bw -n 200", "ib_send_bw -n 200"} {
		words := strings.Fields(line)
		between(t, o, words[0], words[1:]...)
	}
	o.PortGIDs = true // UCX and libfabric exchange GIDs instead of LIDs
	for _, line := range []string{
		"ibv_rc_pingpong -g 0 -c -n 100", "ibv_ud_pingpong -g 0 -n 100", "ib_write_bw -n 200", "UCX_TLS=rc_v ucx_perftest -t tag_bw -s 65536 -n 200",
		"UCX_TLS=ud_v ucx_perftest -t tag_lat -n 200", "fi_pingpong -p verbs;ofi_rxd -e rdm -c -I 20",
	} {
		words := strings.Fields(line)
		between(t, o, words[0], words[1:]...)
	}
}

// TestLIDs: without a GID, an address is invalid, as on RoCE hardware. With port GIDs on a loopback
// address, each port has a LID, and programs that exchange only LIDs run.
func TestLIDs(t *testing.T) {
	if server, _, err := tryBetween(t, dropin.Options{}, "ibv_rc_pingpong", "-n", "100"); err == nil || !strings.Contains(server, "Failed to modify QP to RTR") {
		t.Errorf("ibv_rc_pingpong without a GID: %v, want an invalid address\n%s", err, server)
	}
	o := dropin.Options{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.79")}, PortGIDs: true}
	for _, name := range []string{"ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"} {
		between(t, o, name, "-n", "100")
	}
	t.Run("qperf", func(t *testing.T) {
		tests := []string{"rc_bw", "rc_lat", "uc_lat", "ud_lat", "rc_rdma_write_bw"}
		programsRan.add(t, "qperf", "IBVERBX_ADDR=127.0.0.1 IBVERBX_GIDS=port "+strings.Join(tests, " "))
		l, port := library(t), freePort(t)
		srv, _ := command(t, l, o, "qperf", "-lp", fmt.Sprint(port))
		ended := serve(t, srv, port)
		defer func() { <-ended }()
		defer func() { _ = srv.Process.Kill() }()
		cli, out := command(t, l, o, "qperf", append([]string{"-lp", fmt.Sprint(port), "127.0.0.1", "-t", "1"}, tests...)...)
		if err := finish(t, cli); err != nil || strings.Count(out.String(), " = ") < len(tests) {
			t.Errorf("%v, want results of %d tests\n%s", err, len(tests), out)
		}
	})
}

// TestSharedMemory: the kernel copies long WRITEs between processes of one user, unless the options
// apply to packets.
func TestSharedMemory(t *testing.T) {
	if scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil && string(scope) != "0\n" {
		t.Skip("the system restricts ptrace")
	}
	slow := dropin.Options{}
	slow.Impairment.Delay = time.Microsecond
	for _, tt := range []struct {
		o      dropin.Options
		direct bool
	}{{dropin.Options{}, true}, {dropin.Options{OnlyPackets: true}, false}, {slow, false}} {
		tt.o.Stats = true
		for _, line := range []string{"ib_write_bw -n 2000", "ib_read_bw -n 2000"} {
			words := strings.Fields(line)
			_, client := between(t, tt.o, words[0], words[1:]...)
			if none := strings.Contains(client, "Direct:0 "); none == tt.direct {
				t.Errorf("%s with %q: want direct transfers: %v\n%s", line, tt.o.Env(), tt.direct, client)
			}
		}
	}
}

// TestLossyPrograms: lost and reordered packets cost time, but never data.
func TestLossyPrograms(t *testing.T) {
	var o dropin.Options
	o.Impairment.Loss, o.Impairment.Reorder = 0.01, 0.01
	between(t, o, "ibv_rc_pingpong", "-g", "0", "-c", "-n", "200")
}

// TestCaptureAndStats: a process captures its packets, and prints its counters on exit.
func TestCaptureAndStats(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	server, client := between(t, dropin.Options{Capture: filepath.Join(dir, "%p.pcap"), Stats: true}, "ibv_rc_pingpong", "-g", "0", "-n", "10")
	files, _ := filepath.Glob(filepath.Join(dir, "*.pcap"))
	if len(files) != 2 || !strings.Contains(server, "PacketsSent:") || !strings.Contains(client, "PacketsSent:") {
		t.Errorf("%d captures, want 2; the client printed\n%s", len(files), client)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Size() < 10*2*1024 {
			t.Errorf("the capture %s is too small for 10 messages: %v, %v", f, info.Size(), err)
		}
	}
}

// TestKilledServer: killing a peer makes requests fail with status 12 instead of hanging.
func TestKilledServer(t *testing.T) {
	l := library(t)
	port := freePort(t)
	args := []string{"-D", "60", "-p", fmt.Sprint(port)}
	srv, _ := command(t, l, dropin.Options{}, "ib_write_bw", args...)
	cli, out := command(t, l, dropin.Options{}, "ib_write_bw", append(args, "127.0.0.1")...)
	ended := serve(t, srv, port)
	if err := cli.Start(); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(patience, func() { _ = cli.Process.Kill() })
	defer stop.Stop()
	for begin := time.Now(); busyFor(cli.Process.Pid) < 500*time.Millisecond && time.Since(begin) < patience; time.Sleep(10 * time.Millisecond) {
	}
	_ = srv.Process.Kill()
	<-ended
	if err := cli.Wait(); err == nil || !strings.Contains(out.String(), "status 12") {
		t.Errorf("the client ended with %v, want a failure with status 12\n%s", err, out)
	}
}

// busyFor returns the processor time used by a process. Transferring data uses much of it, waiting
// almost none.
func busyFor(pid int) time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // it may have exited
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	ticks, _ := strconv.Atoi(f[11]) // utime, in hundredths of a second
	return time.Duration(ticks) * 10 * time.Millisecond
}

// TestBadEnvironment: the program gets no devices, and the user an error message.
func TestBadEnvironment(t *testing.T) {
	for value, want := range map[string]string{"IBVERBX_MTU=1500": "IBVERBX_MTU=1500: use 256", "IBVERBX_ADDR=203.0.113.7": "203.0.113.7"} {
		cmd, out := command(t, library(t), dropin.Options{}, "ibv_devinfo")
		cmd.Env = append(cmd.Env, value)
		if err := cmd.Run(); err == nil || !strings.Contains(out.String(), want) {
			t.Errorf("ibv_devinfo with %s: %v, want a failure and a sentence with %q\n%s", value, err, want, out)
		}
	}
}
