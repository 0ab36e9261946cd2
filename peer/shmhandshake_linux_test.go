package peer

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx"
	"ibverbx/bootstrap"
)

// TestShmHandshakeRejectsOthers: a process that finds the socket without knowing the nonce is not mistaken
// for the peer and does not block it. The link joins the two sides of the handshake.
func TestShmHandshakeRejectsOthers(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var dialer, listener shmHandshake
	if err := dialer.listen(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dialer.close() }()
	for _, said := range []string{"", "x", strings.Repeat("A", nonceLen), dialer.mine.Nonce + "A"} {
		c, err := net.DialUnix("unixpacket", nil, socketPath(dialer.mine.Nonce))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := listener.dial(t.Context(), dialer.mine.Nonce, 1); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	a, err := dialer.provenConn(0, listener.mine.Nonce, deadline)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	b, err := listener.provenConn(0, "", deadline)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	if _, err := a.Write([]byte("to the peer")); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 100)
	if n, err := b.Read(said); err != nil || string(said[:n]) != "to the peer" {
		t.Errorf("the peer reads %q, %v", said[:n], err)
	}
}

// TestShmHandshakeNeedsProof: a listener that reaches another process at the socket rejects it.
func TestShmHandshakeNeedsProof(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var stranger, listener shmHandshake
	if err := stranger.listen(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.close() }()
	if err := listener.dial(t.Context(), stranger.mine.Nonce, 1); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	if c, err := stranger.provenConn(0, strings.Repeat("B", nonceLen), deadline); err != nil {
		t.Fatal(err)
	} else {
		defer func() { _ = c.Close() }()
	}
	if _, err := listener.provenConn(0, "", deadline); err == nil || !strings.Contains(err.Error(), "is not the peer") {
		t.Errorf("provenConn = %v, want that the other end is not the peer", err)
	}
}

// TestShmHandshakeCanceled: a listener whose dialer does not authenticate waits only until its context is
// done.
func TestShmHandshakeCanceled(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var dialer, listener shmHandshake
	if err := dialer.listen(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dialer.close() }()
	if err := listener.dial(t.Context(), dialer.mine.Nonce, 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := (&Session{}).finishShmHandshake(ctx, &listener, &dialer.mine, make([]ibverbx.RailConfig, 1))
		done <- err
	}()
	cancel()
	select {
	case err := <-done:
		if err == nil {
			t.Error("the handshake succeeded without the dialer's proof")
		}
	case <-time.After(time.Minute):
		t.Fatal("the handshake waits although its context is done")
	}
}

// TestShmHandshakeCountsLocalLinks: a number of links claimed by a dialer, or by a listener without a socket, is
// rejected.
func TestShmHandshakeCountsLocalLinks(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var dialer, listener, none shmHandshake
	if err := dialer.listen(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dialer.close() }()
	if err := listener.dial(t.Context(), dialer.mine.Nonce, 1); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.close() }()
	for _, tt := range []struct {
		name   string
		m      *shmHandshake
		theirs int
		want   int // -1 is an error
	}{
		{"listener", &listener, 0, 1},
		{"listener whose dialer says 4", &listener, 4, -1},
		{"dialer", &dialer, 1, 1},
		{"neither", &none, 0, 0},
		{"neither, and the peer says 1", &none, 1, -1},
	} {
		if n, err := tt.m.linkCount(&OfferLink{Links: tt.theirs}); (err != nil) != (tt.want < 0) || (err == nil && n != tt.want) {
			t.Errorf("%s: %d links, %v; want %d", tt.name, n, err, tt.want)
		}
	}
	if strings.Contains(socketPath(dialer.mine.Nonce).Name, dialer.mine.Nonce) {
		t.Error("the socket's name reveals the nonce")
	}
}

// TestShmHandshakeFallsBack: a listener that cannot reach the socket for every link uses its NICs, as it tells the dialer.
func TestShmHandshakeFallsBack(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	nonce := strings.Repeat("A", nonceLen)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: socketPath(nonce).Name}), unix.Listen(fd, 0)); err != nil { // room for one connection
		t.Fatal(err)
	}
	var listener shmHandshake
	if err := listener.dial(t.Context(), nonce, 2); err == nil {
		t.Fatal("two connections to a socket with room for one, want an error")
	}
	nics, err := OpenSoftNICs(netip.MustParseAddr("127.0.0.1"))()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nics.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_ = unix.Close(fd) // as the dialer does when it learns that there are no links
	s := &Session{}
	if rails, err := s.finishShmHandshake(ctx, &listener, &OfferLink{Want: LinkAuto, Nonce: nonce}, nics.Rails); err != nil || s.Link != LinkUDP || len(rails) != 1 {
		t.Errorf("got %d rails on link %q, %v; want the NICs", len(rails), s.Link, err)
	}
}

// TestOfferLinkRefused: invalid offers are refused.
func TestOfferLinkRefused(t *testing.T) {
	nonce := strings.Repeat("A", nonceLen)
	for _, o := range []OfferLink{
		{Want: "tcp"},
		{Nonce: "A"},
		{Nonce: "../../run/docker.sock/AAAAA"},
		{Nonce: strings.ToLower(nonce)},
		{Links: 1},
		{Nonce: nonce, Links: -1},
		{Nonce: nonce, Links: 99},
		{Why: strings.Repeat("x", maxWhy+1)},
	} {
		if o.validate() == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	for _, o := range []OfferLink{{}, {Want: LinkAuto, Nonce: nonce}, {Want: LinkShm, Nonce: nonce, Links: 2}, {Want: LinkUDP, Why: "udp was requested"}} {
		if err := o.validate(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if err := agreeLink(&OfferLink{Want: LinkShm, Nonce: nonce}, &OfferLink{Want: LinkUDP}); !errors.Is(err, ErrMismatch) {
		t.Errorf("shm and udp: %v, want %v", err, ErrMismatch)
	}
}

// TestErrorsStayOnOneLine: a peer's reason and an address are quoted in errors.
func TestErrorsStayOnOneLine(t *testing.T) {
	theirs := OfferLink{Why: "no\nINFO all is well\x1b[2J"}
	cfg := Config{Auth: bootstrap.Config{Token: []byte("a token of this test only")}}
	_, dial := Dial(t.Context(), theirs.Why, cfg)
	_, listen := Listen(t.Context(), theirs.Why, cfg)
	_, broken := Listen(t.Context(), theirs.Why, Config{Timeout: -1})
	theirs.Want = LinkShm
	for what, err := range map[string]error{
		"refusal": theirs.refusal(), "dialer": agreeLink(&theirs, &OfferLink{}), "listener": agreeLink(&OfferLink{}, &theirs), "Dial": dial, "Listen": listen, "Config": broken,
	} {
		if err == nil || strings.ContainsAny(err.Error(), "\n\x1b") || !strings.Contains(err.Error(), `no\nINFO all is well\x1b[2J`) {
			t.Errorf("%s: got %q, want one line with the text escaped", what, err)
		}
	}
}
