package node

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/internal/service"
)

// TestFalseMessagesWhileConnecting: a peer sends invalid messages before the session is established. The
// first one closes the session.
func TestFalseMessagesWhileConnecting(t *testing.T) {
	b := newNetwork(1).start(t)
	c, err := bootstrap.Dial(soon(t), b.node.Addr().String(), bootstrap.Config{InsecurePlaintextOnLoopback: true, Incarnation: 1})
	if err != nil {
		t.Fatalf("Dial: got %v, want no error", err)
	}
	defer func() { _ = c.Close() }()
	hello := message{kind: kindHello, lowest: version, highest: version, session: 1}
	for _, m := range []message{hello, {kind: kindPark}, {kind: kindBusy}} {
		if err == nil { // the second one may close the session before the third is sent
			err = c.Send(soon(t), bootstrap.KindService, m.encode())
		}
	}
	for err == nil {
		_, err = c.Recv(soon(t))
	}
	if want := "a message of type 4 while connecting"; !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "type 6") {
		t.Errorf("the session ended with %v, want %q alone", err, want)
	}
}

// guest is a service that reports Handler calls made while it is detached or before Up.
type guest struct {
	t        testing.TB
	attached atomic.Bool
	ups      atomic.Int32
	// message is called by Message unless nil.
	message func()
}

const guestID, guestClass = 5, 5

func (g *guest) attach(n *Node) {
	g.attached.Store(true)
	if err := n.Service().Attach(service.Service{ID: guestID, Version: 1, Classes: 1 << guestClass, Handler: g}); err != nil {
		g.t.Errorf("Attach: got %v, want no error", err)
	}
}

func (g *guest) detach(n *Node) {
	n.Service().Detach(guestID)
	g.attached.Store(false)
}

func (g *guest) called(what string) {
	if !g.attached.Load() {
		g.t.Errorf("%s was called after Detach", what)
	}
}

func (g *guest) Hello(service.Session) ([]byte, bool) {
	g.called("Hello")
	return nil, true
}

func (g *guest) Up(service.Session, []byte) {
	g.called("Up")
	g.ups.Add(1)
}

func (g *guest) Down(service.Session, error) { g.called("Down") }

func (g *guest) Gone(service.Peer, error) { g.called("Gone") }

func (g *guest) Message(service.Session, []byte) {
	if g.ups.Load() == 0 {
		g.t.Error("Message was called before Up")
	}
	if g.message != nil {
		g.message()
	}
	g.called("Message")
}

func (g *guest) Immediate(service.Session, uint32, uint32) { g.called("Immediate") }

// TestDetachDuringMessages: a service is attached and detached while a peer sends it messages.
func TestDetachDuringMessages(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	there, _ := a.meet(b)
	(&guest{t: t}).attach(a.node)
	var enough atomic.Bool
	var sender sync.WaitGroup
	sender.Go(func() {
		ctx := soon(t)
		for !enough.Load() {
			s := there.Service().Session()
			if s == nil {
				runtime.Gosched()
			} else if err := s.Send(ctx, guestID, []byte("hello")); err != nil && !errors.Is(err, ErrLost) {
				t.Errorf("Send: got %v, want no error", err)
			}
		}
	})
	ups := 0
	for range 1000 {
		g := &guest{t: t}
		g.attach(b.node)
		if ups < 10 {
			eventually(t, "the service is up", func() bool { return g.ups.Load() > 0 })
			ups++
		}
		g.detach(b.node)
	}
	enough.Store(true)
	sender.Wait()
}

// TestDetachWaitsForClosedPeer: Detach waits for a Handler call of a closed Peer.
func TestDetachWaitsForClosedPeer(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	there, here := a.meet(b)
	begun, release := make(chan struct{}), make(chan struct{})
	g := &guest{t: t, message: func() {
		close(begun)
		<-release
	}}
	(&guest{t: t}).attach(a.node)
	g.attach(b.node)
	eventually(t, "the service is up", func() bool { return g.ups.Load() > 0 })
	if err := there.Service().Session().Send(soon(t), guestID, []byte("wait")); err != nil {
		t.Fatalf("Send: got %v, want no error", err)
	}
	<-begun
	var both sync.WaitGroup
	both.Go(func() { _ = here.Close() })
	wait(t, here, StateClosed)
	both.Go(func() { g.detach(b.node) })
	time.Sleep(20 * time.Millisecond) // only gives a bug time to show
	close(release)
	both.Wait()
}

// TestDetachPastBlockedHandler: a Handler waits for a peer that does not read. Detach of another service that the peer knows closes the
// session, and so the wait.
func TestDetachPastBlockedHandler(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	there, here := a.meet(b)
	session := here.Service().Session().(*session)
	blocked := make(chan struct{})
	g := &guest{t: t, message: sync.OnceFunc(func() {
		close(blocked)
		<-session.ctx.Done() // as in Session.Send with a full queue
	})}
	g.attach(b.node)
	(&guest{t: t}).attach(a.node)
	eventually(t, "the guests have met", func() bool { return g.ups.Load() > 0 })
	if err := there.Service().Session().Send(soon(t), guestID, nil); err != nil {
		t.Fatalf("Send: got %v, want no error", err)
	}
	<-blocked
	detached := make(chan struct{})
	go func() {
		b.node.Service().Detach(service.IDs - 1)
		close(detached)
	}()
	select {
	case <-detached:
	case <-soon(t).Done():
		session.End(ErrLost)
		t.Error("Detach waits for a peer")
	}
	<-detached
	if err := context.Cause(session.ctx); !errors.Is(err, service.ErrDetached) {
		t.Errorf("the session ended with %v, want ErrDetached", err)
	}
}

// TestGone: services are notified once when a peer is lost or closed, after its last session. A lost peer
// that can be dialed returns.
func TestGone(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t, func(c *Config) { c.LostTimeout = 20 * time.Millisecond }), n.start(t, named("b"), alone)
	there, _ := a.meet(b)
	addr := b.node.Addr()
	causes := func() []error {
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.Clone(a.gone)
	}
	if err := b.node.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
	a.eventually("the peer is gone", func() bool { return len(causes()) == 1 })
	n.start(t, named("b"), at(addr))
	wait(t, there, StateReady)
	a.grantBy(there)
	_ = there.Close()
	_ = there.Close() // has no further effect
	if got := causes(); len(got) != 2 || !errors.Is(got[0], ErrPeerGone) || !errors.Is(got[1], ErrClosed) {
		t.Errorf("the peer is gone because of %v, want ErrPeerGone and ErrClosed", got)
	}
}

// TestSendEndsWithSession: a Handler sends to an unresponsive peer without a deadline. Closing the session
// aborts the send; otherwise the session would wait for the Handler forever.
func TestSendEndsWithSession(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	there, _ := a.meet(b)
	s := there.Service().Session()
	begun, sent := make(chan struct{}), make(chan error, 1)
	g := &guest{t: t, message: func() {
		close(begun)
		var err error
		for err == nil {
			err = s.Send(context.Background(), service.IDs-1, make([]byte, 64<<10-1))
		}
		sent <- err
	}}
	g.attach(a.node)
	(&guest{t: t}).attach(b.node)
	eventually(t, "the service is up", func() bool { return g.ups.Load() > 0 })
	b.mu.Lock() // blocks Message of b's service
	for _, p := range b.node.Peers() {
		if err := p.Service().Session().Send(soon(t), guestID, []byte("begin")); err != nil {
			t.Errorf("Send: got %v, want no error", err)
		}
	}
	<-begun
	time.Sleep(20 * time.Millisecond) // only gives a bug time to show
	cause := errors.New("planted")
	s.End(cause)
	select {
	case err := <-sent:
		if !errors.Is(err, ErrLost) || !errors.Is(err, cause) {
			t.Errorf("Send: got %v, want ErrLost and the cause", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Send has not ended with the session")
	}
	b.mu.Unlock()
}

// TestAttached: a service finds itself on its Node, and the Node of a Peer.
func TestAttached(t *testing.T) {
	net := newNetwork(1)
	a, b := net.start(t), net.start(t)
	p, err := a.node.Peer(soon(t), b.node.Addr().String())
	if err != nil || p.Node() != a.node {
		t.Fatalf("Peer: got error %v and a Peer of %p, want one of %p", err, p.Node(), a.node)
	}
	n := a.node.Service()
	if h := n.Attached(guestID); h != nil || n.Attached(service.IDs) != nil {
		t.Errorf("Attached before Attach: got %v, want nothing", h)
	}
	g := &guest{t: t}
	g.attach(a.node)
	if h := n.Attached(guestID); h != service.Handler(g) {
		t.Errorf("Attached: got %v, want the service", h)
	}
	g.detach(a.node)
	if h := n.Attached(guestID); h != nil {
		t.Errorf("Attached after Detach: got %v, want nothing", h)
	}
}
