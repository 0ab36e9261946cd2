package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/perf/measure"
	"ibverbx/internal/testslice"
	"ibverbx/peer"
)

// process is a command running in a separate process.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	stdout stdout
	lines  chan string // lines of stderr
	said   []string
}

// stdout collects a process's output. It can be read while the process runs.
type stdout struct {
	mu      sync.Mutex
	printed bytes.Buffer
}

func (s *stdout) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.printed.Write(b)
}

func (s *stdout) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.printed.Read(b)
}

func (s *stdout) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.printed.String()
}

func (s *stdout) Bytes() []byte { return []byte(s.String()) }

// prints waits until the output contains text.
func (p *process) prints(text string) {
	p.t.Helper()
	for limit := time.Now().Add(3 * time.Minute); !strings.Contains(p.stdout.String(), text); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			p.t.Fatalf("in 3 minutes the process did not print %q", text)
		}
	}
}

// begin starts a command in a separate process.
func begin(t testing.TB, args ...string) *process {
	t.Helper()
	return start(t, exec.CommandContext(t.Context(), os.Args[0], args...))
}

// start starts cmd, which must be this binary.
func start(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, lines: make(chan string, 1000)}
	p.cmd.Env = append(p.cmd.Environ(), asCommand+"=1")
	p.cmd.Stdout = &p.stdout
	stderr, err := p.cmd.StderrPipe()
	enginetest.WantOK(t, "StderrPipe", err)
	enginetest.WantOK(t, "Start", p.cmd.Start())
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(stderr); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	return p
}

// line waits for a stderr line that contains text, and returns it.
func (p *process) line(text string) string {
	p.t.Helper()
	limit := time.After(3 * time.Minute)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("the process ended and said %q, want %q", p.said, text)
			}
			p.said = append(p.said, line)
			if strings.Contains(line, text) {
				return line
			}
		case <-limit:
			p.t.Fatalf("in 3 minutes the process said %q, want %q", p.said, text)
		}
	}
}

// end waits for the process to exit and returns its status.
func (p *process) end() int {
	for line := range p.lines {
		p.said = append(p.said, line)
	}
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

// interrupt sends SIGINT, as Ctrl-C does, and returns the exit status.
func (p *process) interrupt() int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		p.t.Skipf("this system has no way to interrupt a process: %v", err)
	}
	return p.end()
}

// newToken writes secret to a token file and returns its name.
func newToken(t testing.TB, secret string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "token")
	enginetest.WantOK(t, "write a token", os.WriteFile(name, []byte(secret+"\n"), 0o600))
	return name
}

// serve starts a server and returns it with its address.
func serve(t testing.TB, args ...string) (*process, string) {
	t.Helper()
	return served(t, begin(t, append([]string{"perf", "serve", "--listen", "127.0.0.1:0"}, args...)...))
}

func served(t testing.TB, p *process) (*process, string) {
	t.Helper()
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); p.end() })
	_, addr, _ := strings.Cut(p.line("listening on "), "listening on ")
	addr, _, _ = strings.Cut(addr, `"`) // of a JSON object
	return p, addr
}

// TestPerfTwoProcesses: every operation runs between two processes over UDP and shared memory, one client after
// another. Both sides report the same results.
func TestPerfTwoProcesses(t *testing.T) {
	for _, link := range []string{"udp", "shm"} {
		t.Run(link, func(t *testing.T) { twoProcesses(t, link) })
	}
}

func twoProcesses(t *testing.T, link string) {
	if link == "shm" && runtime.GOOS != "linux" {
		t.Skip("shared memory between processes needs Linux")
	}
	token := newToken(t, "a secret of this test, long enough")
	server, addr := serve(t, "--token-file", token, "--json", "--link", link)
	tests := []string{
		"write -s 64,64K", "read -s 64,64K", "send -s 64,8K", "atomic", "write --imm -s 64K", "write --imm --scheme dqplb -s 64K", "write --imm --scheme spray -s 64K",
		"write -q 1 -s 4K", "write --rails 1 -q 3 -s 1M --fragment 64K", "write -b -s 64,64K", "send -b -s 4K", "write -m 1024 -s 64K",
		"write --lat -s 8,4K", "read --lat -s 8", "send --lat -s 8", "atomic --lat", "write --lat --imm -s 8",
	}
	if link == "udp" {
		tests = append(tests, "write -s 64,64K --transport uc", "write -s 64K", "write --imm -s 64K --transport uc", "read -s 64K --transport uc",
			"send -b -s 4K --transport uc", "atomic --transport uc", "write --lat -s 8 --transport uc")
	}
	tests = testslice.Pick(t, tests)
	var clients []measure.Report
	for _, args := range tests {
		r := reportOf(t, append(strings.Fields(args), addr, "--token-file", token, "--check", "-n", "64")...)
		if r.Role != "client" || r.Remote != addr || !r.Checked || r.Link != link {
			t.Errorf("perf %s: role %s of %s, checked %v, over %s, want a checked client of %s over %s", args, r.Role, r.Remote, r.Checked, r.Link, addr, link)
		}
		clients = append(clients, r)
		server.line("done")
	}
	if status := server.interrupt(); status != exitOK {
		t.Errorf("the server ended with status %d, want %d", status, exitOK)
	}
	d := json.NewDecoder(&server.stdout)
	for i, c := range clients {
		var s measure.Report
		if err := d.Decode(&s); err != nil {
			t.Fatalf("report %d of the server: got %v, want no error", i, err)
		}
		want := peer.TransportRC
		if strings.Contains(tests[i], "--transport uc") {
			want = peer.TransportUC
		}
		if s.Transport != want || c.Transport != want || s.Provider != c.Provider {
			t.Errorf("perf %s: the server has %s on %s and the client %s on %s, want %s on the same", tests[i], s.Transport, s.Provider, c.Transport, c.Provider, want)
		}
		if s.Role != "server" || results(t, s) != results(t, c) {
			t.Errorf("perf %s: the %s reports\n%v\nand the client\n%v", tests[i], s.Role, results(t, s), results(t, c))
		}
		if want == peer.TransportUC {
			continue // only the client has path statistics
		}
		if !reflect.DeepEqual(s.PerLane, c.PerLane) {
			t.Errorf("perf %s: the server reports\n%v\nand the client\n%v", tests[i], s.PerLane, c.PerLane)
		}
		if !reflect.DeepEqual(s.PerRail, c.PerRail) || c.PerRail[0].Health == nil || (c.PerRail[0].Addr != "") != (link == "udp") {
			t.Errorf("perf %s: the server has the rails\n%+v\nand the client\n%+v\nwant the same, with health, and addresses over udp", tests[i], s.PerRail, c.PerRail)
		}
	}
	if _, err := d.Token(); err != io.EOF {
		t.Errorf("the server prints more than %d reports, want no more", len(clients))
	}
}

// results returns the result rows of a report as text.
func results(t *testing.T, r measure.Report) string {
	t.Helper()
	rows := slices.Clone(r.Results)
	for i := range rows { // only the measuring side has these
		rows[i].Timeline, rows[i].Histogram, rows[i].HDR = nil, nil, ""
	}
	b, err := json.Marshal(rows)
	enginetest.WantOK(t, "Marshal", err)
	return string(b)
}

// TestPerfServerKeepsOthersOut: unauthenticated clients are rejected and do not stop the server. With --once the
// server exits after its first authenticated client.
func TestPerfServerKeepsOthersOut(t *testing.T) {
	token := newToken(t, "a secret of this test, long enough")
	server, addr := serve(t, "--token-file", token, "--once")
	wrong := newToken(t, "another secret, also long enough")
	fails(t, exitFailure, "rejected the token", "perf", addr, "--token-file", wrong)
	server.line("turned away")
	fails(t, exitFailure, "ibverbx: ", "perf", addr, "--insecure-plaintext-on-loopback")
	server.line("turned away")
	out := succeed(t, "perf", addr, "--token-file", token, "-s", "64", "-n", "100")
	says(t, out, "client with "+addr+", MTU", " of the client -> soft0 of the server\n", "MsgRate[Mpps]\n")
	if status := server.end(); status != exitOK || !strings.Contains(server.stdout.String(), "server with ") {
		t.Errorf("the server ended with status %d after\n%s\nwant %d and a table", status, server.stdout.String(), exitOK)
	}
}

// TestPerfServerTokenDir: a server with per-client tokens logs which token a client used, and picks up added and
// removed token files.
func TestPerfServerTokenDir(t *testing.T) {
	dir := t.TempDir()
	server, addr := serve(t, "--token-dir", dir)
	alice := filepath.Join(dir, "alice")
	succeed(t, "token", alice)
	server.line("using the changed files")
	succeed(t, "perf", addr, "--token-file", alice, "-s", "64", "-n", "100")
	server.line(`with token "alice"`)
	server.line("done")
	secret := newToken(t, read(t, alice))
	enginetest.WantOK(t, "Remove", os.Remove(alice))
	server.line("using the changed files")
	fails(t, exitFailure, "rejected the token", "perf", addr, "--token-file", secret)
}

// TestPerfServerGoesOn: neither an invalid test nor a client killed midway stops the server. Both sides use
// certificates from ibverbx cert.
func TestPerfServerGoesOn(t *testing.T) {
	dir := t.TempDir()
	succeed(t, "cert", dir)
	door := func(side string) []string {
		return []string{"--ca", filepath.Join(dir, "ca.pem"), "--cert", filepath.Join(dir, side+".pem"), "--key", filepath.Join(dir, side+".key")}
	}
	server, addr := serve(t, door("server")...)
	gone := begin(t, append([]string{"perf", addr, "-s", "64K", "-D", "600"}, door("client")...)...)
	server.line("let in") // until then the server may not have seen the client
	enginetest.WantOK(t, "Kill", gone.cmd.Process.Kill())
	gone.end()
	server.line("client 127.0.0.1")
	refused := append([]string{"perf", "send", addr, "-s", "8", "-t", "40000"}, door("client")...)
	if status, _, stderr := command(t.Context(), refused...); status == exitOK || stderr == "" {
		t.Errorf("a test that cannot be: status %d, %q, want an error", status, stderr)
	}
	server.line("client 127.0.0.1")
	stopped := begin(t, append([]string{"perf", addr, "-s", "64K", "-D", "600"}, door("client")...)...)
	server.line("let in")
	time.Sleep(500 * time.Millisecond)
	if status := stopped.interrupt(); status != exitInterrupted {
		t.Errorf("an interrupted client: status %d, want %d", status, exitInterrupted)
	}
	server.line("client 127.0.0.1")
	good := append([]string{"perf", addr, "-s", "64K", "-n", "100", "--check"}, door("client")...)
	if status, _, stderr := command(t.Context(), good...); status != exitOK {
		t.Errorf("a good client: status %d, %q, want %d", status, stderr, exitOK)
	}
	if status := server.interrupt(); status != exitOK {
		t.Errorf("the server ended with status %d, want %d", status, exitOK)
	}
}

func TestPerfRemoteFlagErrors(t *testing.T) {
	token := newToken(t, "a secret of this test, long enough")
	for args, want := range map[string]string{
		"serve":                                     "--token-file",
		"node1":                                     "--token-file",
		"node1 node2 --token-file T":                "one host",
		"write read --token-file T":                 "one operation",
		"serve write --token-file T":                "\"write\" belongs to the client",
		"serve --lat --token-file T":                "--lat belongs to the client",
		"--once":                                    "--once belongs to the server: use it with 'ibverbx perf serve'",
		"--token-file T":                            "need a HOST",
		"node1 -c UD send --token-file T":           "one host",
		"serve --addr x --token-file T":             "--addr x",
		"serve --link x --token-file T":             "auto, shm or udp",
		"--link shm":                                "need a HOST",
		"write node1":                               "the host node1 needs --token-file",
		"node1 --link shm --pcap f --token-file T":  "use udp or auto",
		"serve --peer-network x --token-file T":     "--peer-network",
		"--server -m 77 --token-file T":             "--mtu 77",
		"serve --provider x --token-file T":         "--provider x",
		"serve --token-file T --listen 1.2.3.4.5:1": "1.2.3.4.5",
		"--server --insecure-plaintext-on-loopback --listen 0.0.0.0:0": "loopback",
		"write 127.0.0.1:1 --token-file T -s 0":                        "--size",
		"127.0.0.1:1 --token-file T":                                   "nothing listens on 127.0.0.1:1",
		"127.0.0.1:1 --token-file none":                                "none",
	} {
		words := strings.Fields(strings.ReplaceAll(args, "T", token))
		status, out, stderr := command(t.Context(), append([]string{"perf"}, words...)...)
		if status == exitOK || out != "" || !strings.Contains(stderr, want) {
			t.Errorf("perf %s: status %d, %q, %q, want an error that says %q", args, status, out, stderr, want)
		}
	}
}

func TestWithPort(t *testing.T) {
	for host, want := range map[string]string{
		"node1": "node1:18515", "node1:1": "node1:1", "10.0.0.1": "10.0.0.1:18515", "fe80::1": "[fe80::1]:18515", "[::1]:7": "[::1]:7", "[::1]": "[::1]:18515", ":5": ":5",
	} {
		if got := withPort(host, defaultPort); got != want {
			t.Errorf("withPort(%q) = %q, want %q", host, got, want)
		}
	}
}

// TestPerfFewerRails: over shared memory, a test uses and reports only the rails that both sides have. The outage at the
// client is drawn for each of them.
func TestPerfFewerRails(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("shared memory between processes needs Linux")
	}
	token := newToken(t, "a secret of this test, long enough")
	server, addr := serve(t, "--token-file", token, "--rails", "2", "--link", "shm")
	out := succeed(t, strings.Fields("perf "+addr+" --token-file "+token+" --rails 3 -q 6 --kill-rail 1 -s 64K "+lost)...)
	says(t, out, "2 rails, 6 lanes", " rail 1  soft1 -> soft1 ")
	if strings.Contains(out, " rail 2 ") {
		t.Errorf("the client prints a rail that the server lacks:\n%s", out)
	}
	server.line("done")
}

// TestPerfSameAddress: several rails can use the same address.
func TestPerfSameAddress(t *testing.T) {
	token := newToken(t, "a secret of this test, long enough")
	_, addr := serve(t, "--token-file", token, "--link", "udp")
	r := reportOf(t, "write", "-s", "64", "-n", "64", "--rails", "3", "--addr", "127.0.0.1,127.0.0.1,::ffff:127.0.0.1", addr, "--token-file", token, "--check")
	if r.Rails != 3 || !r.Checked {
		t.Errorf("%d rails, checked %t, want 3 checked ones", r.Rails, r.Checked)
	}
}
