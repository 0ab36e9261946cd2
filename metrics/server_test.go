package metrics_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/metrics"
)

// TestServer: a scrape contains the metrics of the Collector, the runtime and the process, and the port is free after Close.
func TestServer(t *testing.T) {
	s, err := metrics.NewServer(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatalf("NewServer: got %v, want no error", err)
	}
	addr := s.Addr().String()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("GET: got %v, want no error", err)
	}
	text, err := io.ReadAll(got.Body)
	_ = got.Body.Close()
	if err != nil || s.Collector() == nil || !strings.Contains(string(text), "go_goroutines") {
		t.Errorf("got %d, %v, Collector %v, and\n%s", got.StatusCode, err, s.Collector(), text)
	}
	if _, err := metrics.NewServer(t.Context(), addr); err == nil {
		t.Errorf("NewServer on a port in use: got no error")
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close: got %v, want no error", err)
		}
	}
	again, err := metrics.NewServer(context.Background(), addr)
	if err != nil {
		t.Fatalf("NewServer after Close: got %v, want no error", err)
	}
	if err := again.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
}

// TestNoPortAfterTheLast: all ports from addr to the last one are in use. The error names this cause, not a port that does not exist.
func TestNoPortAfterTheLast(t *testing.T) {
	host, _, err := net.SplitHostPort(nodetest.Alone())
	enginetest.Must(t, err)
	last := net.JoinHostPort(host, "65535")
	l, err := net.Listen("tcp", last)
	enginetest.Must(t, err)
	defer func() { _ = l.Close() }()
	s, err := metrics.NewProcessServer(t.Context(), last)
	if err == nil {
		_ = s.Close()
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("NewProcessServer: got %v, want %v", err, syscall.EADDRINUSE)
	}
}
