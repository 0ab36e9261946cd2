package service

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// known is a Peer that the Node may have forgotten.
type known struct {
	Peer
	forgotten error
}

func (p *known) Forgotten() error { return p.forgotten }

// meeting is a session with a Peer. It records why it was closed.
type meeting struct {
	Session
	peer  Peer
	ended error
}

func (s *meeting) Peer() Peer      { return s.peer }
func (s *meeting) End(cause error) { s.ended = cause }

// uncalled has the methods of a PeerHandler that TestPeers does not call.
type uncalled interface {
	Up(Session, []byte) error
	Down(Session, error)
	Immediate(Session, uint32, uint32) error
}

// recorder is a PeerHandler that records its calls and returns err.
type recorder struct {
	uncalled
	calls []string
	err   error
}

func (h *recorder) Hello(Session) ([]byte, bool, error) {
	h.calls = append(h.calls, "hello")
	return nil, true, h.err
}

func (h *recorder) Gone(_ error, forgotten bool) {
	h.calls = append(h.calls, fmt.Sprint("gone ", forgotten))
}

func (h *recorder) Message(Session, []byte) error { return h.err }

// TestPeers: a peer has one PeerHandler until the Node forgets the peer. A handler created later is
// notified immediately. Errors close the session and name the service.
func TestPeers(t *testing.T) {
	var peers Peers[*recorder]
	peers.Init(StreamID, func(Peer) *recorder { return &recorder{} })
	p := &known{}
	s := &meeting{peer: p}
	peers.Message(s, nil) // ignored
	if _, ok := peers.Hello(s); !ok || len(peers.All()) != 1 {
		t.Fatalf("Hello: got %v and %d peers, want 1", ok, len(peers.All()))
	}
	h := peers.Of(p)
	peers.Gone(p, errors.New("lost"))
	if peers.Of(p) != h {
		t.Error("a peer that may return has another PeerHandler")
	}
	h.err = errors.New("false")
	if _, ok := peers.Hello(s); ok || s.ended == nil || s.ended.Error() != "stream: false" {
		t.Errorf("Hello with an error: got %v, and the session ends with %v", ok, s.ended)
	}
	s.ended = nil
	if peers.Message(s, nil); !errors.Is(s.ended, h.err) {
		t.Errorf("Message with an error: the session ends with %v", s.ended)
	}
	p.forgotten = errors.New("closed")
	peers.Gone(p, p.forgotten)
	if want := []string{"hello", "gone false", "hello", "gone true"}; !slices.Equal(h.calls, want) || len(peers.All()) != 0 {
		t.Errorf("the calls are %q, want %q, and %d peers are left", h.calls, want, len(peers.All()))
	}
	if late := peers.Of(p); late == h || !slices.Equal(late.calls, []string{"gone true"}) || len(peers.All()) != 0 {
		t.Errorf("the calls of a late one are %q, and %d peers are left", late.calls, len(peers.All()))
	}
	p.forgotten = nil
	if h = peers.Of(p); !slices.Equal(peers.Clear(), []*recorder{h}) || len(peers.All()) != 0 {
		t.Error("Clear leaves a peer")
	}
}
