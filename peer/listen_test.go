package peer_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/peer"
)

// TestSilentPeersDelayNoOther: admitted peers that stay silent, or send an offer without a card, do not delay
// the next peer, even with a timeout of ten minutes.
func TestSilentPeersDelayNoOther(t *testing.T) {
	n := newNetwork(1)
	cfg := config(n.open(1))
	patient := cfg
	patient.Timeout = 10 * time.Minute
	meeting, err := peer.Listen(soon(t), "127.0.0.1:0", patient)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	one := offer()
	one.Rails = []peer.OfferRail{{Device: "soft0", Network: "memory"}}
	text, err := json.Marshal(one)
	if err != nil {
		t.Fatalf("Marshal: got %v, want no error", err)
	}
	for i := range 4 {
		c, err := bootstrap.Dial(soon(t), meeting.Addr().String(), cfg.Auth)
		if err != nil {
			t.Fatalf("Dial: got %v, want no error", err)
		}
		defer func() { _ = c.Close() }()
		if i%2 == 1 {
			if err := c.Send(soon(t), bootstrap.KindOffer, text); err != nil {
				t.Fatalf("Send: got %v, want no error", err)
			}
		}
	}
	ctx := soon(t)
	type met struct {
		s   *peer.Session
		err error
	}
	dialed := make(chan met, 2)
	for range 2 {
		go func() {
			s, err := peer.Dial(ctx, meeting.Addr().String(), cfg)
			dialed <- met{s, err}
		}()
	}
	for range 2 {
		l, err := meeting.Accept(ctx)
		if err != nil {
			t.Fatalf("Accept: got %v, want no error", err)
		}
		d := <-dialed
		if d.err != nil {
			t.Fatalf("Dial: got %v, want no error", d.err)
		}
		for _, s := range []*peer.Session{l, d.s} {
			if err := s.Close(); err != nil {
				t.Errorf("Session.Close: got %v, want no error", err)
			}
		}
	}
	if err := meeting.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
}

// TestCloseEndsAccept: Close unblocks a waiting Accept, and closes a peer not yet accepted.
func TestCloseEndsAccept(t *testing.T) {
	cfg := config(newNetwork(1).open(1))
	meeting, err := peer.Listen(soon(t), "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	c, err := bootstrap.Dial(soon(t), meeting.Addr().String(), cfg.Auth)
	if err != nil {
		t.Fatalf("Dial: got %v, want no error", err)
	}
	defer func() { _ = c.Close() }()
	ctx := soon(t)
	ended := make(chan error, 1)
	go func() {
		_, err := meeting.Accept(ctx)
		ended <- err
	}()
	if err := meeting.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
	if err := <-ended; !errors.Is(err, bootstrap.ErrClosed) {
		t.Errorf("Accept: got %v, want %v", err, bootstrap.ErrClosed)
	}
	select {
	case <-c.Done():
	case <-ctx.Done():
		t.Errorf("the peer is still connected, want it closed")
	}
}
