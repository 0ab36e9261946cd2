package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"ibverbx/bootstrap"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// speaker is a service that records the calls of its Handler.
type speaker struct {
	version uint16
	body    string
	// up is called by Up, unless nil.
	up func()

	mu    sync.Mutex
	calls []string
}

const speakerID, speakerClass = 6, 6

func (s *speaker) attach(t testing.TB, n *Node) {
	t.Helper()
	err := n.Service().Attach(service.Service{ID: speakerID, Version: max(1, s.version), Classes: 1 << speakerClass, Handler: s})
	if err != nil {
		t.Fatalf("Attach: got %v, want no error", err)
	}
}

func (s *speaker) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf(format, args...))
}

func (s *speaker) heard() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// hears waits until the recorded calls match want.
func (s *speaker) hears(t testing.TB, want ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the service of %s hears %q", s.body, want), func() bool { return slices.Equal(s.heard(), want) })
}

func (s *speaker) Hello(service.Session) ([]byte, bool) {
	s.note("hello")
	return []byte(s.body), s.body != ""
}

func (s *speaker) Up(_ service.Session, body []byte) {
	s.note("up %s", body)
	if s.up != nil {
		s.up()
	}
}

func (s *speaker) Down(service.Session, error)         { s.note("down") }
func (s *speaker) Gone(_ service.Peer, err error)      { s.note("gone: %v", err) }
func (s *speaker) Message(_ service.Session, b []byte) { s.note("message %s", b) }
func (s *speaker) Immediate(_ service.Session, imm, _ uint32) {
	s.note("immediate %d", imm&service.ArgMask)
}

// TestServicesIntroduced: services on both sides get each other's hello, whichever side attaches
// one before or during the session, in every session, and with a restarted peer too.
func TestServicesIntroduced(t *testing.T) {
	for _, early := range []struct{ a, b bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		t.Run(fmt.Sprintf("%+v", early), func(t *testing.T) {
			n := newNetwork(1)
			a, b := n.start(t), n.start(t, named("b"), alone)
			here, there := &speaker{body: "a"}, &speaker{body: "b"}
			if early.a {
				here.attach(t, a.node)
			}
			if early.b {
				there.attach(t, b.node)
			}
			p, _ := a.meet(b)
			if !early.a {
				here.attach(t, a.node)
			}
			if !early.b {
				there.attach(t, b.node)
			}
			here.hears(t, "hello", "up b")
			there.hears(t, "hello", "up a")
			lose(p)
			here.hears(t, "hello", "up b", "down", "hello", "up b")
			there.hears(t, "hello", "up a", "down", "hello", "up a")
			if err := b.node.Close(); err != nil {
				t.Errorf("Close: got %v, want no error", err)
			}
			here.hears(t, "hello", "up b", "down", "hello", "up b", "down")
			again := n.start(t, named("b"), at(b.node.Addr()))
			a.grantBy(p)
			there = &speaker{body: "the next b"}
			there.attach(t, again.node)
			here.hears(t, "hello", "up b", "down", "hello", "up b", "down", "hello", "up the next b")
			there.hears(t, "hello", "up a")
		})
	}
}

// TestOneSideHasService: a service that the peer lacks, or that does not join the session, never
// gets Up.
func TestOneSideHasService(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	here, there := &speaker{body: "a"}, &speaker{}
	here.attach(t, a.node)
	p, _ := a.meet(b)
	there.attach(t, b.node)
	there.hears(t, "hello")
	if err := p.Service().Session().Send(soon(t), speakerID, []byte("to nobody")); err != nil {
		t.Errorf("Send: got %v, want no error", err)
	}
	eventually(t, "the message is unclaimed", func() bool { return b.node.Stats().Counters.Unclaimed == 1 })
	here.hears(t, "hello")
	there.hears(t, "hello")
	b.node.Service().Detach(speakerID) // the peer does not know it, so the session stays
	(&speaker{body: "b"}).attach(t, b.node)
	here.hears(t, "hello", "up b")
	if got := p.Stats().Sessions; got != 1 {
		t.Errorf("there were %d sessions, want 1", got)
	}
}

// TestServiceReplaced: a service is replaced by another one. Peers get the new one in the next
// session, with its own messages and immediates.
func TestServiceReplaced(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	here, old, next := &speaker{body: "a"}, &speaker{body: "old"}, &speaker{body: "new"}
	here.attach(t, a.node)
	old.attach(t, b.node)
	p, _ := a.meet(b)
	here.hears(t, "hello", "up old")
	b.node.Service().Detach(speakerID)
	next.attach(t, b.node)
	eventually(t, "the new service is up", func() bool { return slices.Contains(here.heard(), "up new") })
	if got, sessions := here.heard(), p.Stats().Sessions; !slices.Equal(got[2:4], []string{"down", "hello"}) || sessions < 2 {
		t.Errorf("the peer's service heard %q in %d sessions, want down and hello before the new one", got, sessions)
	}
}

// TestServiceVersions: services with different versions are notified of the mismatch on both sides. The other
// services continue.
func TestServiceVersions(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	here, there := &speaker{body: "a", version: 3}, &speaker{body: "b", version: 4}
	here.attach(t, a.node)
	p, _ := a.meet(b)
	there.attach(t, b.node)
	here.hears(t, "hello", "gone: protocol versions differ: peer speaks service 6 protocol 4, this side 3")
	there.hears(t, "hello", "gone: protocol versions differ: peer speaks service 6 protocol 3, this side 4")
	a.do(p, a.write(p, 0, 8, 1))
	if got := p.Stats().Sessions; got != 1 {
		t.Errorf("there were %d sessions, want 1", got)
	}
}

// TestEarlyImmediates: a peer's service sends immediates once it is up, before the local service
// is. The latter gets them after Up, in order.
func TestEarlyImmediates(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	there := &speaker{body: "b"}
	there.attach(t, b.node)
	p, _ := a.meet(b)
	sent := make(chan struct{})
	want := []string{"hello", "up b"}
	here := &speaker{body: "a", up: func() { <-sent }}
	there.up = func() {
		defer close(sent)
		back := b.node.Peers()[0]
		for i := range uint32(5) {
			j := b.job(back, verbs.OpRDMAWrite, 0, 8)
			j.Notify, j.Imm = true, service.Immediate(speakerClass, i)
			b.do(back, j)
		}
	}
	for i := range 5 {
		want = append(want, fmt.Sprintf("immediate %d", i))
	}
	here.attach(t, a.node)
	here.hears(t, want...)
	_ = p
}

// stranger opens a connection as a program that is not a Node, or is an old one.
func stranger(t *testing.T, addr string) *bootstrap.Conn {
	t.Helper()
	c, err := bootstrap.Dial(soon(t), addr, bootstrap.Config{InsecurePlaintextOnLoopback: true, Incarnation: 1})
	if err != nil {
		t.Fatalf("Dial: got %v, want no error", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// closedBy returns the peer's reason for closing a connection.
func closedBy(t *testing.T, c *bootstrap.Conn) (err error) {
	t.Helper()
	for err == nil {
		_, err = c.Recv(soon(t))
	}
	return err
}

// TestOldDialer: peers of version 1 and of a later version dial. Each gets an error with both
// versions.
func TestOldDialer(t *testing.T) {
	b := newNetwork(1).start(t)
	for _, theirs := range []uint16{1, version + 1} {
		c := stranger(t, b.node.Addr().String())
		hello := message{kind: kindHello, lowest: theirs, highest: theirs, session: 1}
		if err := c.Send(soon(t), bootstrap.KindService, hello.encode()); err != nil {
			t.Fatalf("Send: got %v, want no error", err)
		}
		if theirs > 1 {
			m, err := recvMessage(soon(t), c)
			if err != nil || m.kind != kindHello || m.lowest != version || m.highest != version {
				t.Errorf("the response is %+v, %v, want a hello with the versions of this side", m, err)
			}
		}
		if err, want := closedBy(t, c), fmt.Sprintf("peer speaks node protocol %d, this side %d", theirs, version); !strings.Contains(err.Error(), want) {
			t.Errorf("a peer of version %d gets %v, want %q", theirs, err, want)
		}
	}
	if got := b.node.Stats(); got.Refused != 2 || len(b.node.Peers()) != 0 {
		t.Errorf("the Node has refused %d connections and has %d peers, want 2 and 0", got.Refused, len(b.node.Peers()))
	}
}

// TestOldListener: this side dials peers of version 1 and of a later version. Peer fails
// immediately with an error that names both versions.
func TestOldListener(t *testing.T) {
	for _, c := range []struct {
		theirs   uint16
		response message
	}{
		{1, message{kind: kindRefuse, code: refusedVersion}},
		{version + 1, message{kind: kindHello, lowest: version + 1, highest: version + 1, session: 1}},
	} {
		l, err := bootstrap.Listen(soon(t), "127.0.0.1:0", bootstrap.Config{InsecurePlaintextOnLoopback: true, Incarnation: 1})
		if err != nil {
			t.Fatalf("Listen: got %v, want no error", err)
		}
		defer func() { _ = l.Close() }()
		served := make(chan error, 1)
		go func() {
			conn, err := l.Accept(soon(t))
			if err == nil {
				defer func() { _ = conn.Close() }()
				var m bootstrap.Message
				m, err = conn.Recv(soon(t))
				// Version 1 reads a hello of 26 to 104 bytes, of which it uses the first 26.
				if err == nil && (len(m.Body) < 26 || len(m.Body) > 104) {
					err = fmt.Errorf("the hello has %d bytes", len(m.Body))
				}
			}
			if err == nil {
				err = conn.Send(soon(t), bootstrap.KindService, c.response.encode())
			}
			if err == nil {
				_, _ = conn.Recv(soon(t))
			}
			served <- err
		}()
		a := newNetwork(1).start(t)
		_, err = a.node.Peer(soon(t), l.Addr().String())
		want := fmt.Sprintf("peer speaks node protocol %d, this side %d", c.theirs, version)
		if !errors.Is(err, ErrVersion) || !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("Peer: got %v, want %q", err, want)
		}
		if err := <-served; err != nil {
			t.Errorf("the peer of version %d: %v", c.theirs, err)
		}
	}
}

// TestFalseHellos: invalid hellos close the session. Hellos from a later Node version do not.
func TestFalseHellos(t *testing.T) {
	first := message{kind: kindHello, lowest: 1, highest: 9, session: 1}
	with := func(list ...introduction) []byte {
		m := first
		m.services = list
		return m.encode()
	}
	known := introduction{service.IDs - 2, 1, []byte("x")}
	for _, c := range []struct {
		name   string
		hellos [][]byte
		want   string // expected in the error
	}{
		{"another session", [][]byte{with(), (&message{kind: kindHello, lowest: 1, highest: 9, session: 2}).encode()}, "a hello of session 2"},
		{"a service twice", [][]byte{with(known), with(known)}, "introduced twice"},
		{"a long body", [][]byte{with(introduction{1, 1, make([]byte, service.MaxHello+1)})}, "a message of type 1"},
		{"garbage behind the hello", [][]byte{append(with(), "xx"...)}, "a message of type 1"},
		{"a park after a later hello", [][]byte{with(introduction{200, 9, []byte("later")}, introduction{0, 1, nil}), with(known), {0, byte(kindPark)}}, "a message of type 4 while connecting"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newNetwork(1).start(t)
			conn := stranger(t, b.node.Addr().String())
			for _, h := range c.hellos {
				if err := conn.Send(soon(t), bootstrap.KindService, h); err != nil && !errors.Is(err, bootstrap.ErrPeerClosed) {
					t.Fatalf("Send: got %v, want no error", err)
				}
			}
			if err := closedBy(t, conn); !strings.Contains(err.Error(), c.want) {
				t.Errorf("the session ended with %v, want %q", err, c.want)
			}
		})
	}
}

// TestLongHello: a service with an oversized hello closes sessions only while it is attached.
func TestLongHello(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	p, _ := a.meet(b)
	(&speaker{body: strings.Repeat("x", service.MaxHello+1)}).attach(t, a.node)
	eventually(t, "the session has ended", func() bool {
		err := p.Err()
		return err != nil && strings.Contains(err.Error(), "the hello of service 6 has 1025 bytes, want at most 1024")
	})
	a.node.Service().Detach(speakerID)
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	if err := p.wait(ctx); err != nil {
		t.Errorf("the next session: got %v, want no error", err)
	}
}
