package peer_test

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"ibverbx/peer"
)

// TestAccept: Accept waits for one peer and then stops listening.
func TestAccept(t *testing.T) {
	fabric, ctx := newNetwork(1), soon(t)
	cfg := config(fabric.open(1))
	addr, d, l := "", (*peer.Session)(nil), (*peer.Session)(nil)
	for d == nil {
		addr = freePort(t, func(taken string) {
			if s, err := peer.Accept(ctx, taken, cfg); !errors.Is(err, syscall.EADDRINUSE) {
				t.Fatalf("Accept at a port that is taken = %v, %v; want %v", s, err, syscall.EADDRINUSE)
			}
		})
		var err error
		if d, l, err = acceptAt(ctx, addr, cfg); err != nil && !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatalf("Accept and Dial: got %v, want no error", err)
		}
	}
	if s, err := peer.Dial(ctx, addr, cfg); err == nil {
		t.Errorf("Dial when Accept has returned = %v, want an error", s)
	}
	write(t, d, l, 1)
	for _, s := range []*peer.Session{d, l} {
		if err := s.Close(); err != nil {
			t.Errorf("Session.Close: got %v, want no error", err)
		}
	}
}

// freePort returns a recently free port. It calls try while the port is occupied.
func freePort(t *testing.T, try func(addr string)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	try(l.Addr().String())
	if err := l.Close(); err != nil {
		t.Fatalf("Close: got %v, want no error", err)
	}
	return l.Addr().String()
}

// acceptAt calls Accept, and Dial until the listener is up.
func acceptAt(ctx context.Context, addr string, cfg peer.Config) (d, l *peer.Session, err error) {
	accepted := make(chan error, 1)
	go func() {
		var err error
		l, err = peer.Accept(ctx, addr, cfg)
		accepted <- err
	}()
	for {
		if d, err = peer.Dial(ctx, addr, cfg); err == nil {
			err = <-accepted
			return d, l, err
		}
		select {
		case err := <-accepted:
			return nil, nil, err
		case <-ctx.Done():
			return nil, nil, err
		case <-time.After(time.Millisecond):
		}
	}
}
