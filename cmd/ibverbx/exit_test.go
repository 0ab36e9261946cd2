package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
)

// silentServer accepts connections and never answers. It returns its address.
func silentServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	enginetest.Must(t, err)
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-accepted
	})
	return l.Addr().String()
}

// TestSignalStatuses: a signal that stops unfinished work gives status 130 or 143. A server that it stops has status 0.
func TestSignalStatuses(t *testing.T) {
	dir := t.TempDir()
	words := strings.NewReplacer("SILENT", silentServer(t), "DIR", dir, "AUTH", noAuth)
	for _, tt := range []struct {
		args   string
		server bool
	}{
		{"perf -s 64K -D 1m", false},
		{"perf -s 64K -D 1m --json", false},
		{"perf send --lat -s 8 -D 1m", false},
		{"perf SILENT AUTH", false},
		{"demo", false},
		{"sim --seeds 1000000", false},
		{"sim --scenario reliable-400g-loss-1 --seeds 1000000", false},
		{"get SILENT d/f DIR AUTH", false},
		{"put SILENT DIR AUTH", false},
		{"ls SILENT AUTH", false},
		{"ls SILENT AUTH --json", false},
		{"demo --web", true},
		{"perf serve --listen 127.0.0.1:0 AUTH", true},
		{"perf serve --listen 127.0.0.1:0 AUTH --once", true},
		{"serve DIR --listen 127.0.0.1:0 AUTH", true},
		{"forward -L 0:127.0.0.1:1 SILENT AUTH", true},
	} {
		for signal, status := range map[string]int{"interrupt": exitInterrupted, "terminated": exitTerminated} {
			t.Run(signal+" "+tt.args, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer time.AfterFunc(300*time.Millisecond, func() { cancel(errors.New(signal + " signal received")) }).Stop()
				want, text := status, map[int]string{exitInterrupted: "ibverbx: interrupted", exitTerminated: "ibverbx: terminated"}[status]
				if tt.server {
					want, text = exitOK, ""
				}
				if got, _, stderr := command(ctx, strings.Fields(words.Replace(tt.args))...); got != want || !strings.Contains(stderr, text) {
					t.Errorf("status %d, stderr %q, want %d and %q", got, stderr, want, text)
				}
			})
		}
	}
}

// TestPartialCertificates: certificates without one of their three flags are a usage error on all commands that connect or listen.
func TestPartialCertificates(t *testing.T) {
	for _, args := range []string{"get h n", "put h p", "ls h", "serve " + t.TempDir(), "forward -L 0:a:1 h", "perf h", "perf serve"} {
		for _, flags := range []string{"--cert c", "--ca a --key k", "--ca a --cert c"} {
			refused(t, args+" "+flags, strings.Join(strings.Fields(flags)[:2], " ")+": certificates need all of --ca, --cert and --key; make them with: ibverbx cert")
		}
	}
}

// TestExitStatusesAreDocumented: docs/commands.md has a row for every status.
func TestExitStatusesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/commands.md")
	enginetest.Must(t, err)
	for _, status := range []int{exitOK, exitFailure, exitUsage, exitNotFound, exitChanged, exitPeer, exitInterrupted, exitTerminated} {
		says(t, string(text), fmt.Sprintf("\n| %d | ", status))
	}
}
