package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFilesLink: get, put and ls use shared memory with a server of the same user unless a side selects UDP, and log the link. --link shm
// never falls back to UDP.
func TestFilesLink(t *testing.T) {
	token := newToken(t, "a secret of this test, long enough")
	t.Setenv("TMPDIR", t.TempDir())
	from, in, to := t.TempDir(), t.TempDir(), t.TempDir()
	want := content(t, filepath.Join(from, "model"), 5<<20+17)
	for _, tt := range []struct{ server, client, link, fails string }{
		{"", "", "link=shm", ""},
		{"--link shm", "--unsealed", "", "sealing"},
		{"--link auto", "--link SHM", "link=shm", ""},
		{"", "--link udp", "link=udp", ""},
		{"", "--addr 127.0.0.1", "link=udp", ""},
		{"--link udp", "--link shm", "", "this side wants shm, 127.0.0.1:"},
		{"--link shm", "--link udp", "", "wants shm (the peer: udp was requested); use --link auto or udp on both sides"},
	} {
		t.Run(tt.server+" "+tt.client, func(t *testing.T) {
			auth := []string{noAuth}
			if tt.fails == "sealing" {
				auth = []string{"--token-file", token}
			}
			_, addr := serveFiles(t, "127.0.0.1:0", append(append(strings.Fields(tt.server), auth...), from+"=models", "--write", in+"=in")...)
			client := append(append(strings.Fields(tt.client), auth...), "--provider", "softnic", "-v")
			for _, args := range [][]string{
				{"get", addr, "models/model", filepath.Join(to, "model")}, {"put", addr, filepath.Join(from, "model"), "in/model"}, {"ls", addr},
			} {
				status, _, stderr := command(t.Context(), append(args, client...)...)
				switch {
				case tt.fails != "" && (status != exitFailure || !strings.Contains(stderr, tt.fails)):
					t.Errorf("%s: status %d, %q, want %d and an error that says %q", args[0], status, stderr, exitFailure, tt.fails)
				case tt.fails == "" && (status != exitOK || !strings.Contains(stderr, tt.link)):
					t.Errorf("%s: status %d, %q, want success with %q", args[0], status, stderr, tt.link)
				}
			}
			if tt.fails == "" {
				wantContent(t, filepath.Join(to, "model"), want)
				wantContent(t, filepath.Join(in, "model"), want)
			}
			_ = os.RemoveAll(filepath.Join(to, "model"))
		})
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "*.sock")); err != nil || len(left) > 0 {
		t.Errorf("sockets are left: %q, %v", left, err)
	}
}

// TestFilesLinkRefused: links that do not exist, or that software NICs with given addresses cannot use, are refused. IBVERBX_LINK is the
// default of --link.
func TestFilesLinkRefused(t *testing.T) {
	token := newToken(t, "a secret of this test, long enough")
	for _, cmd := range []string{"serve " + t.TempDir(), "ls 127.0.0.1:1", "forward -L 0:x:1 127.0.0.1:1"} {
		refused(t, cmd+" --token-file "+token+" --addr 127.0.0.1 --link shm", "--link shm with --addr 127.0.0.1: shared memory uses no addresses; use udp or auto")
	}
	t.Setenv("IBVERBX_LINK", "tcp")
	refused(t, "ls 127.0.0.1:1 --token-file "+token, "IBVERBX_LINK=tcp: use auto, shm or udp")
}
