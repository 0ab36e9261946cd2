package peer_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// TestIdentities: a peer gets only the regions for its identity. When its token is removed, its Session is
// closed and it can no longer access memory.
func TestIdentities(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"alice", "bob"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("the secret of "+name), 0o600); err != nil {
			t.Fatalf("write: got %v, want no error", err)
		}
	}
	n := newNetwork(1)
	listener := config(n.open(1))
	listener.Auth = bootstrap.Config{TokenDir: dir}
	listener.Regions = append(listener.Regions, peer.RegionConfig{
		Name: "for alice", Size: 4096, For: func(p bootstrap.Peer) bool { return p.Token == "alice" },
	})
	for name, want := range map[string][]string{"alice": {"data", "for alice"}, "bob": {"data"}} {
		dialer := config(n.open(1))
		dialer.Auth = bootstrap.Config{Token: []byte("the secret of " + name)}
		d, l := mustMeet(t, dialer, listener)
		if got := d.RemoteNames(); !slices.Equal(got, want) {
			t.Errorf("%s gets %q, want %q", name, got, want)
		}
		if (l.Local("for alice") != nil) != (name == "alice") {
			t.Errorf("the listener has the region for alice in a session with %s: %v", name, l.Local("for alice") != nil)
		}
		write(t, d, l, 1)
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatalf("Remove: got %v, want no error", err)
		}
		if err := l.CQ.Serve(soon(t), nil); !errors.Is(err, ibverbx.ErrPeerGone) || !errors.Is(err, bootstrap.ErrAuth) {
			t.Errorf("the session with %s ended in %v, want %v and %v", name, err, ibverbx.ErrPeerGone, bootstrap.ErrAuth)
		}
		paths, err := l.QP.Paths()
		if err != nil || len(paths) == 0 {
			t.Fatalf("Paths: got %d, %v, want the lanes", len(paths), err)
		}
		for _, p := range paths {
			if p.QP.State != verbs.StateErr {
				t.Errorf("lane %d is in %s after the end of the session, want %s: the peer reaches memory through it", p.Lane, p.QP.State, verbs.StateErr)
			}
		}
	}
}
