package peer_test

import (
	"errors"
	"net/netip"
	"testing"

	"ibverbx/peer"
)

// TestSealed: packets between software NICs are sealed by default if the two sides connected over TLS. They
// are not if both turn it off, over plain text, or in memory. If one side turns it off, or one requires it
// and the other cannot, the session is refused.
func TestSealed(t *testing.T) {
	udp := func(last byte) func() (peer.NICs, error) {
		return peer.OpenSoftNICs(netip.AddrFrom4([4]byte{127, 0, 0, last}))
	}
	memory := newNetwork(1)
	for name, tt := range map[string]struct {
		change           func(c *peer.Config, dialer bool)
		sealed, mismatch bool
	}{
		"token":        {func(*peer.Config, bool) {}, true, false},
		"no failover":  {func(c *peer.Config, _ bool) { c.NoFailover = true }, true, false},
		"both off":     {func(c *peer.Config, _ bool) { c.Unsealed = true }, false, false},
		"dialer off":   {func(c *peer.Config, dialer bool) { c.Unsealed = dialer }, false, true},
		"listener off": {func(c *peer.Config, dialer bool) { c.Unsealed = !dialer }, false, true},
		"plain text":   {func(c *peer.Config, _ bool) { c.Auth = plain }, false, false},
		"memory":       {func(c *peer.Config, _ bool) { c.Open = memory.open(1) }, false, false},
		"required":     {func(c *peer.Config, _ bool) { c.RequireSealed = true }, true, false},
		"required, and plain text": {func(c *peer.Config, dialer bool) {
			c.Auth, c.RequireSealed = plain, dialer
		}, false, true},
		"required by the dialer": {func(c *peer.Config, dialer bool) {
			c.Open, c.RequireSealed = memory.open(1), dialer
		}, false, true},
		"required by the listener": {func(c *peer.Config, dialer bool) {
			c.Open, c.RequireSealed = memory.open(1), !dialer
		}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			dialer, listener := tokenConfig(udp(31)), tokenConfig(udp(32))
			tt.change(&dialer, true)
			tt.change(&listener, false)
			d, l, dialErr, listenErr := meet(t, dialer, listener)
			if tt.mismatch {
				if !errors.Is(dialErr, peer.ErrMismatch) && !errors.Is(listenErr, peer.ErrMismatch) {
					t.Errorf("got %v and %v, want %v", dialErr, listenErr, peer.ErrMismatch)
				}
				return
			}
			if dialErr != nil || listenErr != nil {
				t.Fatalf("got %v and %v, want no errors", dialErr, listenErr)
			}
			write(t, d, l, 1)
			write(t, l, d, 2)
			for _, s := range []*peer.Session{d, l} {
				paths, err := s.QP.Paths()
				if err != nil || s.Agreed.Sealed != tt.sealed || paths[0].Sealed != tt.sealed || s.QP.Stats().Rails[0].Sealed != tt.sealed {
					t.Errorf("sealed: agreed %v, path %v, rail %v (%v), want %v", s.Agreed.Sealed, paths[0].Sealed, s.QP.Stats().Rails[0].Sealed, err, tt.sealed)
				}
			}
		})
	}
}
