package main

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"ibverbx/bootstrap"
)

// TestPerfServerManyClients: a hundred simultaneous clients are served one at a time, and queued clients are notified.
func TestPerfServerManyClients(t *testing.T) {
	const clients = 100
	dir := t.TempDir()
	succeed(t, "cert", dir) // faster to verify than a token
	auth := func(side string) []string {
		return []string{"--ca", filepath.Join(dir, "ca.pem"), "--cert", filepath.Join(dir, side+".pem"), "--key", filepath.Join(dir, side+".key")}
	}
	_, addr := serve(t, auth("server")...)
	var all sync.WaitGroup
	var mu sync.Mutex
	waited := 0
	for range clients {
		all.Go(func() {
			status, _, stderr := command(t.Context(), append([]string{"perf", addr, "--link", "udp", "-q", "1", "-s", "64", "-n", "10"}, auth("client")...)...)
			mu.Lock()
			defer mu.Unlock()
			told := strings.Contains(stderr, "before this one")
			if told {
				waited++
			}
			if status != exitOK || (stderr != "" && !told) {
				t.Errorf("status %d, %q, want %d", status, stderr, exitOK)
			}
		})
	}
	all.Wait()
	if waited == 0 {
		t.Errorf("none of %d clients was told to wait", clients)
	}
}

// TestPerfServerSilentClient: an idle authenticated client does not delay others.
func TestPerfServerSilentClient(t *testing.T) {
	secret := "a secret of this test, long enough"
	token := newToken(t, secret)
	server, addr := serve(t, "--token-file", token)
	silent, err := bootstrap.Dial(t.Context(), addr, bootstrap.Config{Token: []byte(secret)})
	if err != nil {
		t.Fatalf("Dial: got %v, want no error", err)
	}
	defer func() { _ = silent.Close() }()
	server.line("let in")
	succeed(t, "perf", addr, "--token-file", token, "-s", "64", "-n", "100")
	if err := silent.Err(); err != nil {
		t.Errorf("the silent client was closed before the other was served: %v", err)
	}
}
