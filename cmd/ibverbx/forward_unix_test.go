//go:build unix

package main

import (
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestForwardFrozenPeer: forward and serve exit with status 0 even if the peer process is frozen.
func TestForwardFrozenPeer(t *testing.T) {
	for _, frozen := range []string{"server", "client"} {
		t.Run(frozen, func(t *testing.T) {
			t.Parallel()
			token := newToken(t, "a secret of this test, long enough")
			to := echoServer(t)
			ends, addr := serveFiles(t, "127.0.0.1:0", "--token-file", token, "--forward", to)
			freezes, at := forwarding(t, 1, "-L", "0:"+to, addr, "--token-file", token)
			if frozen == "server" {
				ends, freezes = freezes, ends
			}
			c, err := net.Dial("tcp", at[0])
			if err != nil {
				t.Fatalf("Dial: got %v, want no error", err)
			}
			defer func() { _ = c.Close() }()
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatalf("Write: got %v, want no error", err)
			}
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				t.Fatalf("Read: got %v, want no error", err)
			}
			if err := freezes.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatalf("Signal: got %v, want no error", err)
			}
			if err := ends.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatalf("Signal: got %v, want no error", err)
			}
			if status := ends.end(); status != exitOK || strings.Contains(strings.Join(ends.said, "\n"), "transfer") {
				t.Errorf("status %d, want %d and nothing of transfers: %q", status, exitOK, ends.said)
			}
		})
	}
}

// TestForwardSignalAtStart: on a signal, forward exits with status 0 even while it waits for an unresponsive host.
func TestForwardSignalAtStart(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	defer func() { _ = l.Close() }()
	p := begin(t, "forward", "--provider", "softnic", "-L", "0:db:1", l.Addr().String(), "--token-file", newToken(t, "a secret of this test, long enough"))
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); p.end() })
	c, err := l.Accept()
	if err != nil {
		t.Fatalf("Accept: got %v, want no error", err)
	}
	defer func() { _ = c.Close() }()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatalf("Signal: got %v, want no error", err)
	}
	if status := p.end(); status != exitOK {
		t.Errorf("status %d, want %d: %q", status, exitOK, p.said)
	}
}
