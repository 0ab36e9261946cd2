package bootstrap

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestDialerServesManyConns: the Conns of a Dialer share its incarnation. They survive
// Dialer.Close, and are closed when the token changes.
func TestDialerServesManyConns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, testToken, 0o600); err != nil {
		t.Fatalf("write a token: got %v, want no error", err)
	}
	here := newDoor(t, tokenConfig())
	d, err := NewDialer(Config{TokenFile: file})
	if err != nil {
		t.Fatalf("NewDialer: got %v, want no error", err)
	}
	var conns []*Conn
	var incarnations []uint64
	for range 2 {
		c, err := d.Dial(soon(t), here.Addr().String())
		if err != nil {
			t.Fatalf("Dial: got %v, want no error", err)
		}
		closeAfter(t, c)
		other, err := here.Accept(soon(t))
		if err != nil {
			t.Fatalf("Accept: got %v, want no error", err)
		}
		closeAfter(t, other)
		conns, incarnations = append(conns, c), append(incarnations, other.Peer().Incarnation)
		carry(t, c, other, "hello")
	}
	if incarnations[0] != incarnations[1] {
		t.Errorf("Conns of one Dialer have the incarnations %d", incarnations)
	}
	if err := d.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
	if c, err := d.Dial(soon(t), here.Addr().String()); !errors.Is(err, ErrClosed) {
		t.Errorf("Dial of a Dialer that is closed: got %v, %v, want ErrClosed", c, err)
	}
	for _, c := range conns {
		if c.Err() != nil {
			t.Errorf("a Conn ended with its Dialer: %v", c.Err())
		}
	}
	if err := os.WriteFile(file, []byte("quite another token, long enough"), 0o600); err != nil {
		t.Fatalf("write a token: got %v, want no error", err)
	}
	for _, c := range conns {
		<-c.Done()
		wants(t, "a Conn whose token has changed", c.Err(), ErrAuth)
	}
}
