//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
)

// accessLines returns the lines of an access log, once there are n.
func accessLines(t *testing.T, path string, n int) (list []accessLine) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		b, err := os.ReadFile(path)
		if err == nil && strings.Count(string(b), "\n") >= n {
			for line := range strings.Lines(string(b)) {
				var v accessLine
				if err := json.Unmarshal([]byte(line), &v); err != nil {
					t.Fatalf("the line %q: got %v, want JSON", line, err)
				}
				list = append(list, v)
			}
			slices.SortStableFunc(list, func(a, b accessLine) int { return a.Time.Compare(b.Time) })
			return list
		}
		if time.Now().After(limit) {
			t.Fatalf("in a minute the log had %q (%v), want %d lines", b, err, n)
		}
	}
}

// TestAccessLog: serve records each file and connection of a client, also refused ones. SIGHUP reopens the file.
func TestAccessLog(t *testing.T) {
	dir, in, echo := t.TempDir(), t.TempDir(), echoServer(t)
	content(t, filepath.Join(dir, "f"), 3<<20)
	path := filepath.Join(t.TempDir(), "access")
	server, addr := serveFiles(t, "127.0.0.1:0", noAuth, "--access-log", path, dir+"=d", "--write", in+"=in", "--forward", echo)
	with := []string{noAuth, "-q"}
	succeed(t, append([]string{"get", addr, "d/f", t.TempDir()}, with...)...)
	accessLines(t, path, 1)
	succeed(t, append([]string{"put", addr, filepath.Join(dir, "f"), "in/g"}, with...)...)
	if status, _, _ := command(t.Context(), append([]string{"get", addr, "d/none", t.TempDir()}, with...)...); status != exitNotFound {
		t.Errorf("get: status %d, want %d", status, exitNotFound)
	}
	accessLines(t, path, 3)
	old := path + ".1"
	enginetest.WantOK(t, "Rename", os.Rename(path, old))
	enginetest.WantOK(t, "Signal", server.cmd.Process.Signal(syscall.SIGHUP))
	accessLines(t, path, 0) // the file exists again
	client, at := forwarding(t, 1, "-L", "0:"+echo, addr, noAuth)
	if got, err := exchange(at[0], "hello"); err != nil || got != "hello" {
		t.Errorf("exchange: got %q, %v, want hello", got, err)
	}
	lines := append(accessLines(t, old, 3), accessLines(t, path, 1)...)
	if status := client.interrupt(); status != exitOK {
		t.Errorf("status %d, want %d", status, exitOK)
	}
	want := []accessLine{
		{Operation: "get", Name: "d/f", Bytes: 3 << 20, Result: "ok"},
		{Operation: "put", Name: "in/g", Bytes: 3 << 20, Result: "ok"},
		{Operation: "get", Name: "d/none", Result: "not found"},
		{Operation: "forward", Name: echo, Bytes: 10, Result: "ok"},
	}
	if len(lines) != len(want) {
		t.Fatalf("the log has %+v, want %d lines", lines, len(want))
	}
	for i, got := range lines {
		w := want[i]
		if got.Operation != w.Operation || got.Name != w.Name || got.Bytes != w.Bytes || !strings.Contains(got.Result, w.Result) {
			t.Errorf("line %d is %+v, want %+v", i, got, w)
		}
		if !strings.HasPrefix(got.Peer, "127.0.0.1:") || time.Since(got.Time) > time.Hour || got.Duration < 0 {
			t.Errorf("line %d is %+v, want the peer's address, the time and the duration", i, got)
		}
	}
	fails(t, exitFailure, "--access-log", "serve", dir, noAuth, "--access-log", dir)
}

// TestAccessLogNamesUsers: records of files and of connections have the authenticated name of the client.
func TestAccessLogNamesUsers(t *testing.T) {
	dir, from, echo := t.TempDir(), t.TempDir(), echoServer(t)
	alice := filepath.Join(dir, "alice")
	succeed(t, "token", alice)
	content(t, filepath.Join(from, "f"), 100)
	path := filepath.Join(t.TempDir(), "access")
	_, addr := serveFiles(t, "127.0.0.1:0", "--token-dir", dir, "--access-log", path, from+"=d", "--forward", echo)
	succeed(t, "get", addr, "d/f", t.TempDir(), "-q", "--token-file", alice)
	_, at := forwarding(t, 1, "-L", "0:"+echo, addr, "--token-file", alice)
	if got, err := exchange(at[0], "hello"); err != nil || got != "hello" {
		t.Errorf("exchange: got %q, %v, want hello", got, err)
	}
	for _, line := range accessLines(t, path, 2) {
		if line.User != "alice" {
			t.Errorf("the line %+v has the user %q, want alice", line, line.User)
		}
	}
}

// TestAccessLogOnFullDisk: a full disk is reported once, and the server continues. Once there is space again, records
// follow on separate lines.
func TestAccessLogOnFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skipf("no /dev/full: %v", err)
	}
	var said []string
	say := func(format string, _ ...any) { said = append(said, format) }
	path := filepath.Join(t.TempDir(), "access")
	enginetest.WantOK(t, "Symlink", os.Symlink("/dev/full", path))
	l, err := openAccessLog(path, say)
	enginetest.WantOK(t, "openAccessLog", err)
	for range 3 {
		l.write(&accessLine{Name: "lost"})
	}
	if len(said) != 1 || !strings.Contains(said[0], "records are lost") {
		t.Errorf("on a full disk, 3 records led to the messages %q, want one", said)
	}
	enginetest.WantOK(t, "Remove", os.Remove(path))
	enginetest.WantOK(t, "reopen", l.reopen())
	l.write(&accessLine{Name: "kept"})
	l.write(&accessLine{Name: "kept"})
	enginetest.WantOK(t, "close", l.close())
	b, err := os.ReadFile(path)
	if text := string(b); err != nil || strings.Count(text, `"name":"kept"`) != 2 || text[0] != '\n' || len(said) != 2 {
		t.Errorf("the log has %q (%v) after %d messages, want two records on lines of their own, and two messages", b, err, len(said))
	}
}
