package peer_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"ibverbx/bootstrap"
	"ibverbx/peer"
)

// TestServiceMessages: service messages may arrive while a Session is being established on their connection.
// Config.OnServiceMessage gets them. Without it they are an error.
func TestServiceMessages(t *testing.T) {
	for _, accepted := range []bool{true, false} {
		l, err := bootstrap.Listen(t.Context(), "127.0.0.1:0", plain)
		if err != nil {
			t.Fatalf("Listen: got %v, want no error", err)
		}
		n := newNetwork(1)
		errs := make(chan error, 2)
		conns := map[bool]*bootstrap.Conn{}
		if conns[true], err = bootstrap.Dial(soon(t), l.Addr().String(), plain); err != nil {
			t.Fatalf("Dial: got %v, want no error", err)
		}
		if conns[false], err = l.Accept(soon(t)); err != nil {
			t.Fatalf("Accept: got %v, want no error", err)
		}
		got := map[bool]*[]string{true: {}, false: {}} // by whether this side dials
		for dialer, conn := range conns {
			cfg := config(n.open(1))
			if accepted {
				cfg.OnServiceMessage = func(body []byte) { *got[dialer] = append(*got[dialer], string(body)) }
			}
			ctx := soon(t)
			go func() {
				for _, text := range []string{"one", "two"} {
					if err := conn.Send(ctx, bootstrap.KindService, []byte(text)); err != nil {
						errs <- err
						return
					}
				}
				s, err := peer.Connect(ctx, conn, dialer, cfg)
				if err == nil {
					t.Cleanup(func() { _ = s.Close() })
				}
				errs <- err
			}()
		}
		err = errors.Join(<-errs, <-errs)
		for _, texts := range got {
			if accepted && (err != nil || !slices.Equal(*texts, []string{"one", "two"})) {
				t.Errorf("with OnServiceMessage: got %v and %q, want two messages on each side", err, *texts)
			}
		}
		if !accepted && !errors.Is(err, bootstrap.ErrProtocol) {
			t.Errorf("without OnServiceMessage: got %v, want bootstrap.ErrProtocol", err)
		}
		for _, conn := range conns {
			t.Cleanup(func() { _ = conn.Close() })
		}
		_ = l.Close()
	}
}

// TestServiceMessagesCanceled: Connect returns when ctx is done, even if a peer keeps sending service messages.
func TestServiceMessagesCanceled(t *testing.T) {
	l, err := bootstrap.Listen(t.Context(), "127.0.0.1:0", plain)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	flooder, err := bootstrap.Dial(soon(t), l.Addr().String(), plain)
	if err != nil {
		t.Fatalf("Dial: got %v, want no error", err)
	}
	conn, err := l.Accept(soon(t))
	if err != nil {
		t.Fatalf("Accept: got %v, want no error", err)
	}
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		for flooder.Send(context.Background(), bootstrap.KindService, make([]byte, 1000)) == nil {
		}
	}()
	ctx, cancel := context.WithCancel(soon(t))
	cfg := config(newNetwork(1).open(1))
	count := 0
	cfg.OnServiceMessage = func([]byte) {
		if count++; count == 100 {
			cancel()
		}
		if count > 100 {
			_ = conn.Close() // or it would not end
		}
	}
	if _, err = peer.Connect(ctx, conn, false, cfg); !errors.Is(err, context.Canceled) || count != 100 {
		t.Errorf("Connect to a peer that sends all the time: got %v after %d messages, want context.Canceled after 100", err, count)
	}
	<-flooded
	_ = flooder.Close()
}
