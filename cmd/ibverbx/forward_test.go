package main

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/forward"
)

// echoServer echoes all received data and returns its address.
func echoServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	enginetest.WantOK(t, "Listen", err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

// forwarding starts a forward with --json and returns it with its listen addresses.
func forwarding(t *testing.T, targets int, args ...string) (*process, []string) {
	t.Helper()
	p := begin(t, append([]string{"forward", "--provider", "softnic", "--json"}, args...)...)
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); p.end() })
	var at []string
	for limit := time.Now().Add(time.Minute); strings.Count(p.stdout.String(), "\n") < targets; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("in a minute forward printed %q", p.stdout.String())
		}
	}
	for line := range strings.Lines(p.stdout.String()) {
		var x servedLine
		if err := json.Unmarshal([]byte(line), &x); err != nil || x.Event != "listening" {
			t.Fatalf("forward printed %q: %v", line, err)
		}
		at = append(at, x.Listen)
	}
	return p, at
}

// exchange sends text over a connection, closes the write side and returns the reply.
func exchange(addr, text string) (string, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

// dialEcho connects to an echoServer, and receives a byte that it sends.
func dialEcho(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	enginetest.WantOK(t, "Dial", err)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, err = c.Write([]byte("x"))
	enginetest.WantOK(t, "Write", err)
	_, err = io.ReadFull(c, make([]byte, 1))
	enginetest.WantOK(t, "Read", err)
	return c
}

// TestForwardCommand: two processes forward connections to two targets. Other targets are refused. On a signal each
// process exits with status 0 and resets its open connections. The client reconnects to a restarted server.
func TestForwardCommand(t *testing.T) {
	token := newToken(t, "a secret of this test, long enough")
	one, two, secret := echoServer(t), echoServer(t), echoServer(t)
	listen := freeAddr(t)
	args := []string{"--token-file", token, "--forward", one, "--forward", two}
	server, addr := serveFiles(t, listen, args...)
	p, at := forwarding(t, 2, "-L", "0:"+one, "-L", "127.0.0.1:0:"+two, addr, "--token-file", token)
	check := func() {
		t.Helper()
		for _, a := range at {
			if got, err := exchange(a, "hello"); err != nil || got != "hello" {
				t.Fatalf("%s: got %q and %v, want what was sent", a, got, err)
			}
		}
	}
	check()
	status, out, stderr := command(t.Context(), "forward", "-L", "0:"+secret, addr, "--token-file", token)
	if status != exitNotFound || out != "" || !strings.Contains(stderr, secret) || !strings.Contains(stderr, "--forward "+secret) {
		t.Errorf("a target that was not named: status %d, %q, %q, want %d and what to do", status, out, stderr, exitNotFound)
	}
	if status := server.interrupt(); status != exitOK {
		t.Errorf("the server ended with status %d, want %d: %q", status, exitOK, server.said)
	}
	p.line("is lost")
	serveFiles(t, listen, args...)
	p.line("is back")
	check()
	c := dialEcho(t, at[0])
	enginetest.WantOK(t, "Signal", p.cmd.Process.Signal(syscall.SIGTERM))
	if status := p.end(); status != exitOK {
		t.Errorf("forward ended with status %d, want %d: %q", status, exitOK, p.said)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("Read after the end: got %v, want a reset", err)
	}
}

// TestForwardOtherIdentity: a server with another name replaces an exited one at its address. The client reports the
// change and continues with the new server.
func TestForwardOtherIdentity(t *testing.T) {
	to, listen := echoServer(t), freeAddr(t)
	server, addr := serveFiles(t, listen, noAuth, "--forward", to)
	p, at := forwarding(t, 1, "-L", "0:"+to, addr, noAuth)
	if status := server.interrupt(); status != exitOK {
		t.Errorf("the server ended with status %d, want %d: %q", status, exitOK, server.said)
	}
	p.line("is lost")
	other := strings.Replace(listen, ":", ":0", 1) // the same address; a server's name is its --listen argument
	serveFiles(t, other, noAuth, "--forward", to)
	if line := p.line("another identity"); !strings.Contains(line, listen) {
		t.Errorf("forward printed %q, want the address", line)
	}
	if got, err := exchange(at[0], "hello"); err != nil || got != "hello" {
		t.Errorf("got %q and %v, want what was sent", got, err)
	}
}

// TestForwardMetrics: both sides report their streams and NICs, and promtool accepts the output.
func TestForwardMetrics(t *testing.T) {
	to := echoServer(t)
	server := begin(t, "serve", "--provider", "softnic", "--listen", "127.0.0.1:0", noAuth, "--forward", to, "--metrics", "127.0.0.1:0")
	there := server.metricsAt()
	_, addr := served(t, server)
	p, at := forwarding(t, 1, "-L", "0:"+to, addr, noAuth, "--metrics", "127.0.0.1:0")
	if got, err := exchange(at[0], "hello"); err != nil || got != "hello" {
		t.Fatalf("got %q and %v, want what was sent", got, err)
	}
	for side, url := range map[string]string{"server": there, "client": p.metricsAt()} {
		// Bytes count as sent on completion, which may be after the peer has read them.
		const least = 2*2 + 5 // two replies and the text
		sent := `ibverbx_stream_bytes_total{direction="out",session="127.0.0.1"}`
		_, scrape := fetch(t, url)
		for limit := time.Now().Add(time.Minute); value(t, scrape, sent) < least && time.Now().Before(limit); _, scrape = fetch(t, url) {
			time.Sleep(time.Millisecond)
		}
		opened := map[string]string{"server": "in", "client": "out"}[side]
		for series, least := range map[string]float64{
			`ibverbx_streams{session="127.0.0.1"}`:                           0,
			`ibverbx_stream_bytes_total{direction="in",session="127.0.0.1"}`: least,
			sent: least,
			`ibverbx_streams_opened_total{direction="` + opened + `"}`: 2, // the probe and the connection
			`ibverbx_nic_received_packets_total{device="soft0"}`:       1,
		} {
			if got := value(t, scrape, series); got < least {
				t.Errorf("%s: %s = %v, want at least %v", side, series, got, least)
			}
		}
		t.Run(side+"/promtool", func(t *testing.T) { checkMetrics(t, scrape) })
	}
}

// TestForwardExitCodes: each kind of failure has its own exit status.
func TestForwardExitCodes(t *testing.T) {
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, t.TempDir()+"=d")
	used := echoServer(t)
	_, port, _ := strings.Cut(used, ":")
	for _, tt := range []struct {
		args   string
		status int
		want   string
	}{
		{"forward ADDR", exitUsage, "-L 5432:127.0.0.1:5432"},
		{"forward -L 0:db:1", exitUsage, "want HOST"},
		{"forward -L db:1 ADDR", exitUsage, "[BIND:]PORT:HOST:PORT"},
		{"forward -L 0:db ADDR", exitUsage, "target is wrong"},
		{"forward -L 0:db:x ADDR", exitUsage, "from 1 to 65535"},
		{"forward -L 0:db:1 127.0.0.1:1", exitPeer, "nothing listens on 127.0.0.1:1"},
		{"forward -L 0:db:1 ADDR", exitNotFound, "--forward db:1"},
		{"forward -L " + port + ":db:1 ADDR", exitFailure, "in use"},
		{"forward -L no.such.host.invalid:0:db:1 ADDR", exitFailure, "-L no.such.host.invalid:0:db:1"},
		{"serve --forward db", exitUsage, "--forward db"},
	} {
		fails(t, tt.status, tt.want, append(strings.Fields(strings.ReplaceAll(tt.args, "ADDR", addr)), noAuth)...)
	}
}

func TestParseLocal(t *testing.T) {
	for text, want := range map[string][2]string{
		"5432:db:5433":           {"127.0.0.1:5432", "db:5433"},
		"10.0.0.1:5432:db:5433":  {"10.0.0.1:5432", "db:5433"},
		"*:5432:[::1]:5433":      {":5432", "[::1]:5433"},
		"[::1]:5432:[::1]:5433":  {"[::1]:5432", "[::1]:5433"},
		"0:/run/db.sock":         {"127.0.0.1:0", "/run/db.sock"},
		"host:0:/run/db:2.sock":  {"host:0", "/run/db:2.sock"},
		"5432:DB.example:005433": {"127.0.0.1:5432", "db.example:5433"},
	} {
		x, err := parseLocal(text)
		if err != nil {
			t.Errorf("parseLocal(%q): got %v, want no error", text, err)
		} else if x.listen != want[0] || string(x.target) != want[1] {
			t.Errorf("parseLocal(%q) = %q to %q, want %q", text, x.listen, x.target, want)
		}
	}
	for _, text := range []string{"", "5432", "5432:", "db:5432", "5432:db", "65536:db:1", "x:y:db:1", "::1:5432:db:1", "[::1:5432:db:1", "5432:db:0", ":5432:db:1", "[]:5432:db:1"} {
		if x, err := parseLocal(text); err == nil {
			t.Errorf("parseLocal(%q) = %q to %q, want an error", text, x.listen, x.target)
		}
	}
}

// TestForwardMemory: the server's memory limit covers all connections plus a full backlog.
func TestForwardMemory(t *testing.T) {
	cfg := forwardStreams()
	if want := int64(forward.MaxServed+cfg.Backlog) * int64(2*cfg.Ring); cfg.Memory < want {
		t.Errorf("Memory is %d bytes, want at least %d", cfg.Memory, want)
	}
}
