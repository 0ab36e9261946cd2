//go:build unix

package main

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/testslice"
)

// TestForwardKilled: when forward or serve is killed during a download or an upload, the reader gets a reset, never a
// clean end of data. Every second writer has half-closed the connection.
func TestForwardKilled(t *testing.T) {
	kills, conns := testslice.Of(t).Count(40), 2
	for _, way := range []string{"download", "upload"} {
		for _, victim := range []string{"forward", "serve"} {
			t.Run(way+"/"+victim, func(t *testing.T) {
				t.Parallel()
				clean := 0
				for range kills {
					clean += killForward(t, conns, way == "upload", victim == "serve")
				}
				if clean > 0 {
					t.Errorf("%d of %d readers saw a clean end of data, want a reset", clean, kills*conns)
				}
			})
		}
	}
}

// killForward kills a side of a forward while its connections carry data. It returns the number of readers that saw a
// clean end of data.
func killForward(t *testing.T, conns int, upload, killServe bool) (clean int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	enginetest.WantOK(t, "Listen", err)
	defer func() { _ = l.Close() }()
	to := l.Addr().String()
	server, addr := serveFiles(t, "127.0.0.1:0", noAuth, "--forward", to)
	client, at := forwarding(t, 1, "-L", "0:"+to, addr, noAuth)
	moved, ends := make(chan error, conns), make(chan error, conns)
	for i := range conns {
		writer, err := net.Dial("tcp", at[0])
		enginetest.WantOK(t, "Dial", err)
		defer func() { _ = writer.Close() }()
		reader, err := l.Accept()
		enginetest.WantOK(t, "Accept", err)
		defer func() { _ = reader.Close() }()
		if !upload {
			reader, writer = writer, reader
		}
		if i%2 == 0 {
			_ = reader.(*net.TCPConn).CloseWrite()
		}
		go func() {
			for b := make([]byte, 64<<10); ; {
				if _, err := writer.Write(b); err != nil {
					return
				}
			}
		}()
		go func() {
			_ = reader.SetReadDeadline(time.Now().Add(time.Minute))
			_, err := io.CopyN(io.Discard, reader, 256<<10)
			moved <- err
			_, err = io.Copy(io.Discard, reader)
			ends <- err
		}()
	}
	for range conns {
		enginetest.WantOK(t, "Read", <-moved)
	}
	dies, stays := client, server
	if killServe {
		dies, stays = server, client
	}
	_ = dies.cmd.Process.Kill()
	for range conns {
		switch err := <-ends; {
		case err == nil:
			clean++
		case !errors.Is(err, syscall.ECONNRESET):
			t.Errorf("Read after the kill: got %v, want %v", err, syscall.ECONNRESET)
		}
	}
	_ = stays.cmd.Process.Kill()
	_, _ = dies.end(), stays.end()
	return clean
}

// TestForwardFrozenPeer: forward and serve exit with status 0 even if the peer process is frozen.
func TestForwardFrozenPeer(t *testing.T) {
	for _, frozen := range []string{"server", "client"} {
		t.Run(frozen, func(t *testing.T) {
			t.Parallel()
			to := echoServer(t)
			ends, addr := serveFiles(t, "127.0.0.1:0", noAuth, "--forward", to)
			freezes, at := forwarding(t, 1, "-L", "0:"+to, addr, noAuth)
			if frozen == "server" {
				ends, freezes = freezes, ends
			}
			dialEcho(t, at[0])
			enginetest.WantOK(t, "Signal", freezes.cmd.Process.Signal(syscall.SIGSTOP))
			enginetest.WantOK(t, "Signal", ends.cmd.Process.Signal(syscall.SIGTERM))
			if status := ends.end(); status != exitOK || strings.Contains(strings.Join(ends.said, "\n"), "transfer") {
				t.Errorf("status %d, want %d and nothing of transfers: %q", status, exitOK, ends.said)
			}
		})
	}
}

// TestForwardSignalAtStart: on a signal, forward exits with status 0 even while it waits for an unresponsive host.
func TestForwardSignalAtStart(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	enginetest.WantOK(t, "Listen", err)
	defer func() { _ = l.Close() }()
	p := begin(t, "forward", "--provider", "softnic", "-L", "0:db:1", l.Addr().String(), noAuth)
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); p.end() })
	c, err := l.Accept()
	enginetest.WantOK(t, "Accept", err)
	defer func() { _ = c.Close() }()
	enginetest.WantOK(t, "Signal", p.cmd.Process.Signal(syscall.SIGTERM))
	if status := p.end(); status != exitOK {
		t.Errorf("status %d, want %d: %q", status, exitOK, p.said)
	}
}
