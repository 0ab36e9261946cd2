package peer

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/bootstrap"
)

// TestMeetingDismissesStrangers: a process that finds the socket without knowing the nonce is not mistaken
// for the peer and does not block it. Both ends of the link belong to the meeting.
func TestMeetingDismissesStrangers(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var dialer, listener meeting
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
	a, err := dialer.next(0, listener.mine.Nonce, deadline)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	b, err := listener.next(0, "", deadline)
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

// TestMeetingNeedsProof: a listener whose socket is answered by another process gets no link.
func TestMeetingNeedsProof(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var stranger, listener meeting
	if err := stranger.listen(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.close() }()
	if err := listener.dial(t.Context(), stranger.mine.Nonce, 1); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	if c, err := stranger.next(0, strings.Repeat("B", nonceLen), deadline); err != nil {
		t.Fatal(err)
	} else {
		defer func() { _ = c.Close() }()
	}
	if _, err := listener.next(0, "", deadline); err == nil || !strings.Contains(err.Error(), "is not the peer") {
		t.Errorf("next = %v, want that the other end is not the peer", err)
	}
}

// TestMeetingEndsWithContext: a listener whose dialer does not authenticate waits only until its context is
// done.
func TestMeetingEndsWithContext(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var dialer, listener meeting
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
		_, err := (&Session{}).finish(ctx, &listener, &dialer.mine, make([]ibverbx.RailConfig, 1))
		done <- err
	}()
	cancel()
	select {
	case err := <-done:
		if err == nil {
			t.Error("finish returns no error although the dialer has proved nothing")
		}
	case <-time.After(time.Minute):
		t.Fatal("finish waits although its context has ended")
	}
}

// TestMeetingCountsItsOwnLinks: a dialer that claims links gets none. Neither does a listener that was not
// offered a socket.
func TestMeetingCountsItsOwnLinks(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var dialer, listener, none meeting
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
		m      *meeting
		theirs int
		want   int // -1 is an error
	}{
		{"listener", &listener, 0, 1},
		{"listener whose dialer says 4", &listener, 4, -1},
		{"dialer", &dialer, 1, 1},
		{"neither", &none, 0, 0},
		{"neither, and the peer says 1", &none, 1, -1},
	} {
		if n, err := tt.m.links(&OfferLink{Links: tt.theirs}); (err != nil) != (tt.want < 0) || (err == nil && n != tt.want) {
			t.Errorf("%s: %d links, %v; want %d", tt.name, n, err, tt.want)
		}
	}
	if strings.Contains(socketPath(dialer.mine.Nonce).Name, dialer.mine.Nonce) {
		t.Error("the name of the socket tells the nonce")
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
	for _, o := range []OfferLink{{}, {Want: LinkAuto, Nonce: nonce}, {Want: LinkShm, Nonce: nonce, Links: 2}, {Want: LinkUDP, Why: "udp was asked for"}} {
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
