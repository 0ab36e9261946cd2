package peer_test

import (
	"net/netip"
	"testing"

	"ibverbx"
	"ibverbx/peer"
)

// softNICs opens a software NIC over UDP for the test.
func softNICs(t *testing.T, last byte) []ibverbx.RailConfig {
	t.Helper()
	nics, err := peer.OpenSoftNICs(netip.AddrFrom4([4]byte{127, 0, 0, last}))()
	if err != nil {
		t.Fatalf("SoftNICs: got %v, want no error", err)
	}
	t.Cleanup(func() { _ = nics.Close() })
	return nics.Rails
}

// dialTo returns the two Sessions of a connection to a Listener.
func dialTo(t *testing.T, meeting *peer.Listener, cfg peer.Config) (dialed, accepted *peer.Session) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		s, err := peer.Dial(soon(t), meeting.Addr().String(), cfg)
		dialed = s
		done <- err
	}()
	accepted, err := meeting.Accept(soon(t))
	if err != nil {
		t.Fatalf("Accept: got %v, want no error", err)
	}
	if err := <-done; err != nil {
		t.Fatalf("Dial: got %v, want no error", err)
	}
	return dialed, accepted
}

// TestSealedSessionsOnOneCQ: Sessions on one VirtualCQ, and so on the same NICs, are sealed with separate
// secrets. They do not use shared memory, because their NICs are preset.
func TestSealedSessionsOnOneCQ(t *testing.T) {
	rails, err := ibverbx.NewRails(softNICs(t, 33)...)
	if err != nil {
		t.Fatalf("NewRails: got %v, want no error", err)
	}
	here := newShard(t, rails)
	cfg := config(nil)
	cfg.SharedCQ, cfg.Regions[0].Size, cfg.Link = here.on, 4096, peer.LinkAuto
	meeting, err := peer.Listen(soon(t), "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	var both [2][2]*peer.Session
	for i := range both {
		cfg := config(peer.OpenSoftNICs(netip.AddrFrom4([4]byte{127, 0, 0, 34 + byte(i)})))
		cfg.Link = peer.LinkAuto
		far, near := dialTo(t, meeting, cfg)
		both[i] = [2]*peer.Session{far, near}
	}
	for i, s := range both {
		notify(t, s[0], s[1], here, uint32(100+i))
		for _, s := range s {
			paths, err := s.QP.Paths()
			if err != nil || !s.Agreed.Sealed || !paths[0].Sealed || s.Link != peer.LinkUDP || s.LinkReason == "" {
				t.Errorf("agreed sealed %v, path sealed %v, link %q (%q), %v; want sealed packets over UDP with a reason",
					s.Agreed.Sealed, paths[0].Sealed, s.Link, s.LinkReason, err)
			}
		}
	}
	for _, s := range both {
		end(t, s[:]...)
	}
	if err := meeting.Close(); err != nil {
		t.Errorf("Listener.Close: got %v, want no error", err)
	}
	here.close()
	if err := rails.Close(); err != nil {
		t.Errorf("Rails.Close: got %v, want no error", err)
	}
}

// TestSharedMemoryBesideRails: the Sessions of a Listener with shared NICs use shared memory if both sides
// allow it, and the NICs otherwise.
func TestSharedMemoryBesideRails(t *testing.T) {
	cfg := config(nil)
	cfg.Rails, cfg.Link = softNICs(t, 36), peer.LinkAuto
	meeting, err := peer.Listen(soon(t), "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	for i, want := range []peer.Link{peer.LinkShm, peer.LinkUDP} {
		cfg := config(peer.OpenSoftNICs(netip.AddrFrom4([4]byte{127, 0, 0, 37 + byte(i)})))
		cfg.Link = want
		far, near := dialTo(t, meeting, cfg)
		write(t, far, near, 1)
		write(t, near, far, 2)
		for _, s := range []*peer.Session{far, near} {
			paths, err := s.QP.Paths()
			sealed := want == peer.LinkUDP
			if err != nil || s.Link != want || s.Agreed.Sealed != sealed || paths[0].Sealed != sealed {
				t.Errorf("link %q, agreed sealed %v, path sealed %v, %v; want %q and %v", s.Link, s.Agreed.Sealed, paths[0].Sealed, err, want, sealed)
			}
		}
		end(t, far, near)
	}
	if err := meeting.Close(); err != nil {
		t.Errorf("Listener.Close: got %v, want no error", err)
	}
}
