//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ibverbx/files"
	"ibverbx/internal/enginetest"
)

// TestTokenMode: both sides reject a token file that other users can read.
func TestTokenMode(t *testing.T) {
	token := newToken(t, "a secret of this test, long enough")
	enginetest.WantOK(t, "Chmod", os.Chmod(token, 0o644))
	for _, args := range [][]string{{"serve", t.TempDir()}, {"get", "127.0.0.1", "d"}, {"put", "127.0.0.1", token}, {"ls", "127.0.0.1"}} {
		status, _, stderr := command(t.Context(), append(args, "--token-file", token)...)
		if status != exitFailure || !strings.Contains(stderr, "can be read") || !strings.Contains(stderr, "chmod 600") {
			t.Errorf("%s: status %d, stderr %q, want %d and what to do", args[0], status, stderr, exitFailure)
		}
	}
}

// TestGetSIGTERM: on SIGTERM or Ctrl-C, get exits with the signal's status and reports that the partial file is kept.
func TestGetSIGTERM(t *testing.T) {
	from := t.TempDir()
	name := filepath.Join(from, "f")
	content(t, name, 0)
	if err := os.Truncate(name, 1<<40); err != nil { // a sparse file that takes minutes to transfer
		t.Fatalf("Truncate: got %v, want no error", err)
	}
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, from+"=d")
	for signal, want := range map[os.Signal]int{syscall.SIGTERM: exitTerminated, os.Interrupt: exitInterrupted} {
		to := t.TempDir()
		p := begin(t, "get", addr, "d/f", to, noAuth, "--provider", "softnic")
		for limit := time.Now().Add(time.Minute); time.Now().Before(limit); time.Sleep(time.Millisecond) {
			if some, _ := filepath.Glob(filepath.Join(to, ".f.*")); len(some) > 0 {
				break
			}
		}
		enginetest.WantOK(t, "Signal", p.cmd.Process.Signal(signal))
		if status := p.end(); status != want || !strings.Contains(strings.Join(p.said, "\n"), "are kept; run the command again") {
			t.Errorf("after %v: status %d, %q, want %d", signal, status, p.said, want)
		}
	}
}

// TestSignalBeforeTransfer: a signal has its exit status even while put is still querying the host for names.
func TestSignalBeforeTransfer(t *testing.T) {
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, t.TempDir()+"=d")
	for cause, want := range map[string]int{"terminated signal received": exitTerminated, "interrupt signal received": exitInterrupted} {
		f := &transferFlags{sync: "batch"}
		f.auth.plaintext, f.fabric.Provider = true, providerSoftNIC
		ctx, cancel := context.WithCancelCause(t.Context())
		err := f.transfer(ctx, streams{out: io.Discard, err: io.Discard}, addr, func(ctx context.Context, p *files.Peer) ([]copying, error) {
			cancel(errors.New(cause))
			_, err := p.List(ctx, "")
			return nil, err
		})
		if status := fileStatus(err); status != want && (want != exitInterrupted || !errors.Is(err, errInterrupted)) {
			t.Errorf("%s: %v with status %d, want %d", cause, err, status, want)
		}
	}
}

// TestSkippedFiles: get and put name the special files that they skip: in a warning, and in the result of --json.
func TestSkippedFiles(t *testing.T) {
	from, in := t.TempDir(), t.TempDir()
	content(t, filepath.Join(from, "f"), 100)
	for i := range 10 {
		enginetest.WantOK(t, "Mkfifo", syscall.Mkfifo(filepath.Join(from, fmt.Sprintf("pipe\x1b%d", i)), 0o600))
	}
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, from+"=d", "--write", in+"=in")
	for _, args := range [][]string{{"get", addr, "d", t.TempDir()}, {"put", addr, from, "in/d"}} {
		args = append(args, noAuth)
		status, _, stderr := command(t.Context(), args...)
		want := "ibverbx: warning: skipped 10 special files (FIFOs, sockets or devices): pipe\\x1b0, pipe\\x1b1, pipe\\x1b2, "
		if status != exitOK || !strings.HasPrefix(stderr, want) || !strings.HasSuffix(stderr, "pipe\\x1b7 and 2 more\n") {
			t.Errorf("%s: status %d, stderr %q, want %d and %q", args[0], status, stderr, exitOK, want)
		}
		var last fileReport
		lines := strings.Split(strings.TrimSpace(succeed(t, append(args, "--json")...)), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Type != lineResult || last.Skipped != 10 || len(last.SkippedNames) != 8 || last.SkippedNames[7] != "pipe\x1b7" {
			t.Errorf("%s --json ends with %q, %v, want 10 skipped files and 8 names", args[0], lines[len(lines)-1], err)
		}
		succeed(t, append(args, "-q")...)
	}
}
