package transfer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/rpc"
	"ibverbx/internal/service"
	"ibverbx/node"
)

// wallSession is a session whose peer does not accept messages: they block until the session is closed.
type wallSession struct {
	service.Session
	peer   *Peer
	ended  chan struct{}
	end    func()
	lossy  bool // messages are lost instead
	before func(body []byte)
}

func (s *wallSession) Send(ctx context.Context, id service.ID, body []byte) error {
	switch {
	case s.before != nil:
		s.before(body)
		return s.Session.Send(ctx, id, body)
	case s.lossy:
		return nil
	}
	select {
	case <-s.ended:
		return node.ErrLost
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *wallSession) End(cause error) {
	s.end()
	s.peer.unwall(s) // so that the end of the session is noticed
	s.Session.End(cause)
}

// wall makes a peer's current session block messages.
func (p *Peer) wall(lossy bool) *wallSession {
	s := &wallSession{Session: p.session(), peer: p, ended: make(chan struct{}), lossy: lossy}
	s.end = sync.OnceFunc(func() { close(s.ended) })
	p.link.Mu.Lock()
	p.link.Session = s
	p.link.Mu.Unlock()
	return s
}

// unwall undoes wall.
func (p *Peer) unwall(s *wallSession) {
	p.link.Mu.Lock()
	if p.link.Session == service.Session(s) {
		p.link.Session = s.Session
	}
	p.link.Mu.Unlock()
}

// named returns the peer of a host with a name.
func (h *host) named(name string) (p *Peer) {
	h.t.Helper()
	eventually(h.t, name+" is connected", func() bool {
		for _, p = range h.Peers() {
			if p.Node().Identity().Name == name {
				return true
			}
		}
		return false
	})
	return p
}

// TestCloseRudeAndPolite: of the peers that hold a segment, some do not accept messages. Only these lose
// their session after the timeout.
func TestCloseRudeAndPolite(t *testing.T) {
	n := memoryNetwork(1)
	b := n.start(t, hostConfig{name: "b"})
	target := b.alloc("target", 4096, Read|Write)
	var rude []*wallSession
	for _, name := range []string{"rude 1", "polite", "rude 2"} {
		p := n.start(t, hostConfig{name: name}).to(b)
		open2(t, p, "target", Read)
		if back := b.named(name); name != "polite" {
			rude = append(rude, back.wall(false))
		}
	}
	polite := b.named("polite")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- target.Close(ctx) }()
	eventually(t, "the polite peer has answered", func() bool {
		polite.link.Mu.Lock()
		defer polite.link.Mu.Unlock()
		return len(polite.link.Proc.granted) == 1 // the mailbox
	})
	cancel()
	wantOK(t, "Close", <-done)
	for _, s := range rude {
		<-s.ended
	}
	if polite.session().Number() != 1 {
		t.Error("the polite peer has lost its session")
	}
}

// TestCutOffPeerIsTold: a peer that lost its session because it did not respond learns in the next one that
// the segment is closed.
func TestCutOffPeerIsTold(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	p.back.wall(true)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	wantOK(t, "Close", p.target.Close(ctx))
	eventually(t, "the segment is revoked", func() bool {
		err := p.peer.Put(soon(t), p.remote.At(0), p.local.Slice(0, 0)).Wait(soon(t))
		return errors.Is(err, ErrRevoked)
	})
}

// TestRevokeFollowsGrant: a segment is closed while the response that grants it is being sent. The peer gets
// the grant first.
func TestRevokeFollowsGrant(t *testing.T) {
	n := memoryNetwork(1)
	a, b := n.start(t, hostConfig{name: "a"}), n.start(t, hostConfig{name: "b"})
	target := b.alloc("target", 4096, Read)
	a.to(b)
	back := b.named("a")
	granting, release := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	var kinds []rpc.Kind
	s := back.wall(false)
	s.before = func(body []byte) {
		if rpc.Kind(body[0]) == kindGrant {
			close(granting)
			<-release
		}
		mu.Lock()
		kinds = append(kinds, rpc.Kind(body[0]))
		mu.Unlock()
	}
	wantOK(t, "open", back.message(s, &open{id: 77, want: Read, name: "target"}))
	<-granting
	closed := make(chan error, 1)
	go func() { closed <- target.Close(soon(t)) }()
	eventually(t, "the segment is being closed", func() bool { return target.uses.Load() < 0 })
	time.Sleep(10 * time.Millisecond) // only gives a bug time to show
	back.unwall(s)                    // for the response
	close(release)
	wantOK(t, "Close", <-closed)
	mu.Lock()
	defer mu.Unlock()
	if len(kinds) != 2 || kinds[0] != kindGrant || kinds[1] != kindRevoke {
		t.Errorf("the owner sent %x, want a grant and then a revocation", kinds)
	}
}

// TestCloseWithWaitingNotes closes an Engine while its notifications wait for free slots at the peer.
func TestCloseWithWaitingNotes(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	var transfers []*Transfer
	for i := range maxNotifications + 50 {
		transfers = append(transfers, p.peer.Batch().Notify(number(i)).Submit(soon(t)))
	}
	wantOK(t, "Close", p.here.Close(soon(t)))
	wantErr(t, "Wait", transfers[maxNotifications+49].Wait(soon(t)), ErrClosed)
}

// TestShutdownAfterClose: a Node whose Engine is closed shuts down without waiting, even if a peer is lost.
func TestShutdownAfterClose(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	wantOK(t, "Close", p.there.node.Close())
	sessionLost(t, p.peer)
	put := p.peer.Batch().Put(p.remote.At(0), p.local.Slice(0, 8)).Notify([]byte("never")).Submit(soon(t))
	note := p.peer.Batch().Notify([]byte("never")).Submit(soon(t))
	wantOK(t, "Close", p.here.Close(soon(t)))
	wantErr(t, "Wait", put.Wait(soon(t)), ErrClosed)
	wantErr(t, "Wait", note.Wait(soon(t)), ErrClosed)
	wantOK(t, "Shutdown", p.here.node.Shutdown(soon(t)))
	p.here.down = true
}

// TestCloseEnded: unused segments can be closed with a context that is already done.
func TestCloseEnded(t *testing.T) {
	h := memoryNetwork(1).start(t, hostConfig{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 20 {
		wantOK(t, "Close", h.alloc("a", 4096, Read).Close(ctx))
	}
}

// TestAuthorizeCloses: Config.Authorize closes the segment that it decides on.
func TestAuthorizeCloses(t *testing.T) {
	n := memoryNetwork(1)
	var target *Segment
	b := n.start(t, hostConfig{name: "b", engine: Config{
		Authorize: func(ctx context.Context, _ *nodePeer, _ string, want Access) (Access, error) {
			return want, target.Close(ctx)
		},
	}})
	target = b.alloc("target", 4096, 0)
	_, err := n.start(t, hostConfig{name: "a"}).to(b).Open(soon(t), "target", Read)
	wantErr(t, "Open", err, ErrNotFound)
}

// TestOpenWhileLeaving: an Engine is closed with a request unanswered. The peer learns that the Engine is
// closed, not that the segment is.
func TestOpenWhileLeaving(t *testing.T) {
	n := memoryNetwork(1)
	asked, release := make(chan struct{}), make(chan struct{})
	b := n.start(t, hostConfig{name: "b", engine: Config{
		Authorize: func(_ context.Context, _ *nodePeer, _ string, want Access) (Access, error) {
			close(asked)
			<-release
			return want, nil
		},
	}})
	target := b.alloc("target", 4096, 0)
	target.enter() // holds up Close
	p := n.start(t, hostConfig{name: "a"}).to(b)
	opened, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := p.Open(soon(t), "target", Read)
		opened <- err
	}()
	<-asked
	go func() { closed <- b.Close(soon(t)) }()
	eventually(t, "the engine is being closed", b.isClosed)
	close(release)
	time.Sleep(10 * time.Millisecond) // only gives a bug time to show
	target.leave()
	wantErr(t, "Open", <-opened, ErrPeerGone)
	wantOK(t, "Close", <-closed)
}

// TestCloseWaitsForClose: an Engine is being closed by another goroutine. Close waits for that one, or until its context is done.
func TestCloseWaitsForClose(t *testing.T) {
	h := memoryNetwork(1).start(t, hostConfig{})
	wantOK(t, "Take", h.closing.Take(soon(t))) // as the other goroutine has
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	wantErr(t, "Close", h.Close(ctx), context.Canceled)
	done := make(chan error)
	go func() { done <- h.Close(soon(t)) }()
	h.closing.Give()
	wantOK(t, "Close", <-done)
}

// TestCloseAgain: a second Close of an Engine does not detach the next Engine of its Node.
func TestCloseAgain(t *testing.T) {
	n := memoryNetwork(1)
	a, b := n.start(t, hostConfig{name: "a"}), n.start(t, hostConfig{name: "b"})
	first := b.Engine
	wantOK(t, "Close", first.Close(soon(t)))
	second, err := New(Config{Node: b.node})
	wantOK(t, "New", err)
	b.Engine = second // closed with the host
	p := a.to(b)
	session := p.session().Number()
	wantOK(t, "Close of the first Engine again", first.Close(soon(t)))
	if got := b.node.Service().Attached(service.TransferID); got != service.Handler(&second.peers) {
		t.Fatalf("the Node has service %p, want that of the second Engine", got)
	}
	wantOK(t, "Notify", p.Notify(soon(t), []byte("still here")))
	if got := p.session().Number(); got != session {
		t.Errorf("session %d follows session %d", got, session)
	}
}
