package forward

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// TestCauseHidesNameServers: a Client learns why the name of its target cannot be resolved, but not the addresses of name servers.
func TestCauseHidesNameServers(t *testing.T) {
	for _, c := range []struct {
		err  net.DNSError
		want string
	}{
		{net.DNSError{Err: "no such host", Name: "db", Server: "192.0.2.1:53", IsNotFound: true}, "no such host"},
		{net.DNSError{Err: "read udp 192.0.2.7:4000->192.0.2.1:53: i/o timeout", Name: "db", Server: "192.0.2.1:53", IsTimeout: true}, "timed out"},
		{net.DNSError{Err: "server misbehaving", Name: "db", Server: "192.0.2.1:53", IsTemporary: true}, "cannot be resolved"},
	} {
		got := cause(&net.OpError{Op: "dial", Net: "tcp", Err: &c.err})
		if !strings.Contains(got, c.want) || strings.Contains(got, "192.0.2") {
			t.Errorf("cause(%v) = %q, want %q without addresses", &c.err, got, c.want)
		}
	}
}

// deaf is a stream that delivers a request and fails to send the reply.
type deaf struct {
	net.Conn
	request io.Reader
}

var errDeaf = errors.New("planted")

func (c deaf) Read(b []byte) (int, error) { return c.request.Read(b) }
func (deaf) Write([]byte) (int, error)    { return 0, errDeaf }

// TestServedWithoutReply: a connection to a target is recorded even if the Client has exited before the reply.
func TestServedWithoutReply(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	defer func() { _ = l.Close() }()
	to := Target(l.Addr().String())
	s := NewServer([]Target{to}, t.Logf)
	var got []Served
	s.OnServed = func(x Served) { got = append(got, x) }
	a, b := net.Pipe()
	defer func() { _ = b.Close() }()
	s.handle(t.Context(), deaf{a, bytes.NewReader(request{wantConnection, to}.encode())}, func() {})
	if len(got) != 1 || got[0].Target != to || !errors.Is(got[0].Err, errDeaf) {
		t.Errorf("got the records %+v, want one of %s with %v", got, to, errDeaf)
	}
}

// slowListener is a Listener whose Close blocks until release is closed.
type slowListener struct {
	net.Listener
	release chan struct{}
}

func (l slowListener) Close() error {
	<-l.release
	return nil
}

// TestServeWaitsForListener: when Serve returns, its Listener is closed, even if no Accept was pending.
func TestServeWaitsForListener(t *testing.T) {
	l := slowListener{release: make(chan struct{})}
	d := newAcceptLimiter(t.Logf, 1)
	d.places <- struct{}{} // so serve never calls Accept
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan error, 1)
	go func() { done <- d.serve(ctx, l, nil) }()
	select {
	case <-done:
		t.Fatal("serve has returned before its Listener was closed")
	case <-time.After(20 * time.Millisecond): // only gives a bug time to show
	}
	close(l.release)
	if err := <-done; err != nil {
		t.Errorf("serve = %v, want no error", err)
	}
}
