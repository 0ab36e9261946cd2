package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/internal/service"
	"ibverbx/node"
	"ibverbx/verbs"
)

// TestRefused: dialing an unknown service is refused, as with TCP.
func TestRefused(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{})
	_, err := Dial(soon(t), p.peer, "other")
	wantErr(t, "Dial", err, syscall.ECONNREFUSED)
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "dial" || op.Addr.String() != p.there.Addr().String()+"/other" {
		t.Errorf("Dial: got %#v, want an OpError with the address", err)
	}
	_, err = Listen(p.there.Node, "test")
	wantErr(t, "Listen again", err, verbs.ErrBusy)
	wantOK(t, "Close", p.l.Close())
	wantErr(t, "Close again", p.l.Close(), net.ErrClosed)
	_, err = p.l.Accept()
	wantErr(t, "Accept", err, net.ErrClosed)
	_, err = Dial(soon(t), p.peer, "test")
	wantErr(t, "Dial", err, syscall.ECONNREFUSED)
	p.l, err = Listen(p.there.Node, "test")
	wantOK(t, "Listen", err)
	p.dial(t)
}

// TestConfig: values out of range are rejected.
func TestConfig(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{})
	for _, c := range []Config{{Ring: MinRing - 1}, {Ring: 3 * MinRing}, {Ring: 2 * MaxRing}, {Ring: -1}, {Memory: -1}, {Backlog: -1}, {Backlog: 1 << 30}} {
		_, err := c.Listen(p.there.Node, "x")
		wantErr(t, fmt.Sprintf("Listen with %+v", c), err, verbs.ErrInvalid)
		_, err = c.Dial(soon(t), p.peer, "x")
		wantErr(t, fmt.Sprintf("Dial with %+v", c), err, verbs.ErrInvalid)
	}
	for _, name := range []string{"", "\xff", string(make([]byte, MaxService+1))} {
		_, err := Dial(soon(t), p.peer, name)
		wantErr(t, "Dial", err, verbs.ErrInvalid)
		_, err = Listen(p.there.Node, name)
		wantErr(t, "Listen", err, verbs.ErrInvalid)
	}
}

// TestBacklog: the number of unaccepted streams is bounded. They are reset when the service is closed.
func TestBacklog(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing, Backlog: 3})
	var all []*Conn
	for range 3 {
		c, err := p.cfg.Dial(soon(t), p.peer, "test")
		wantOK(t, "Dial", err)
		all = append(all, c)
	}
	_, err := p.cfg.Dial(soon(t), p.peer, "test")
	wantErr(t, "Dial", err, ErrBusy)
	if s := NodeStats(p.there.Node); s.Refused != 1 || s.Resets != 0 {
		t.Errorf("%d streams were refused and %d reset, want 1 and none", s.Refused, s.Resets)
	}
	wantOK(t, "Close", p.l.Close())
	for _, c := range all {
		_, err := c.Read(make([]byte, 1))
		wantErr(t, "Read", err, syscall.ECONNRESET)
		wantOK(t, "Close", c.Close())
	}
	p.wantNone(t)
}

// TestMemoryLimit: ring memory is bounded on both sides, and released memory can be used for rings of another
// size.
func TestMemoryLimit(t *testing.T) {
	for _, limited := range []string{"dialer", "listener"} {
		t.Run(limited, func(t *testing.T) {
			p := newPair(t, memoryNetwork(1), Config{Ring: MinRing, Memory: 8 * MinRing})
			if limited == "listener" {
				p.cfg.Memory = 0
			}
			var all []*Conn
			for range 4 {
				a, b := p.dial(t)
				all = append(all, a, b)
			}
			_, err := p.cfg.Dial(soon(t), p.peer, "test")
			wantErr(t, "Dial", err, ErrBusy)
			for _, c := range all {
				wantOK(t, "Close", c.Close())
			}
			p.wantNone(t)
			p.cfg.Ring = 4 * MinRing
			if limited == "dialer" {
				p.dial(t)
			}
			for _, s := range []*nodetest.Host{p.here, p.there} {
				eventually(t, "the memory is bounded", func() bool { return NodeStats(s.Node).Memory <= 8*MinRing || s == p.here && p.cfg.Memory == 0 })
			}
		})
	}
}

// TestMemoryOfManyDials: streams dialed concurrently share a slab. With one slab each, a few streams would
// use up the memory for all.
func TestMemoryOfManyDials(t *testing.T) {
	const streams = 32 // as many as a slab has
	p := newPair(t, memoryNetwork(1), Config{})
	h, err := serviceOf(p.here.Node)
	wantOK(t, "serviceOf", err)
	q := &h.Of(p.peer.Service()).pool
	blocks := make([]block, 2*streams)
	take := func(i int) {
		var err error
		if blocks[i], err = q.get(slabBytes/(2*streams), 1<<40); err != nil {
			t.Errorf("take: got %v, want no error", err)
		}
	}
	for i := range streams {
		take(i)
	}
	h.mu.Lock() // blocks slab creation, so that all find the slabs full
	var all sync.WaitGroup
	for i := range streams {
		all.Go(func() { take(streams + i) })
	}
	time.Sleep(20 * time.Millisecond) // only gives a bug time to show
	h.mu.Unlock()
	all.Wait()
	if got := h.reserved(); got != 2*slabBytes {
		t.Errorf("%d streams have %d bytes of rings, want %d", 2*streams, got, 2*slabBytes)
	}
	for _, b := range blocks {
		q.put(b)
	}
}

// TestMemoryBeingFreed: a stream waits for memory that is being freed, rather than fail for lack of it.
func TestMemoryBeingFreed(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{})
	h, err := serviceOf(p.here.Node)
	wantOK(t, "serviceOf", err)
	q := &h.Of(p.peer.Service()).pool
	take := func(ring int) block {
		b, err := q.get(ring, 4*MinRing)
		wantOK(t, "take", err)
		return b
	}
	a, b := take(MinRing), take(MinRing) // all that there may be
	h.retired.freeing.Lock()
	q.put(b)
	q.put(a)
	time.AfterFunc(20*time.Millisecond, h.retired.freeing.Unlock)
	q.put(take(2 * MinRing))
}

// TestThousandStreams: a peer has MaxStreams streams, and a thousand of them are used at a time. More are refused.
func TestThousandStreams(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing, Memory: 4 << 30, Backlog: MaxStreams})
	go func() {
		for {
			c, err := p.l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	conns := make([]*Conn, MaxStreams)
	if raceEnabled {
		conns = conns[:MaxStreams/16] // it is slow
	}
	for i := range conns {
		c, err := p.cfg.Dial(soon(t), p.peer, "test")
		wantOK(t, "Dial", err)
		conns[i] = c
	}
	if len(conns) == MaxStreams {
		_, err := p.cfg.Dial(soon(t), p.peer, "test")
		wantErr(t, "Dial", err, ErrBusy)
	}
	var all sync.WaitGroup
	for i, c := range conns {
		all.Go(func() {
			defer func() { _ = c.Close() }()
			if i%4 != 0 {
				return
			}
			want := fmt.Sprintf("stream %d", i)
			for range 4 {
				_, _ = io.WriteString(c, want)
				if got := string(readAll(t, c, len(want))); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
		})
	}
	all.Wait()
	p.wantNone(t)
	wantOK(t, "Close", p.l.Close())
}

// TestDialCanceled: a Dial whose context is canceled releases all resources, whether the peer responds or
// not.
func TestDialCanceled(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing, Backlog: 1000})
	for i := range 100 {
		ctx, cancel := context.WithCancel(soon(t))
		time.AfterFunc(time.Duration(i)*2*time.Microsecond, cancel)
		if c, err := p.cfg.Dial(ctx, p.peer, "test"); err == nil {
			wantOK(t, "Close", c.Close())
		} else {
			wantErr(t, "Dial", err, context.Canceled)
		}
	}
	wantOK(t, "Close", p.l.Close())
	p.wantNone(t)
}

// full is a session whose queue is full: Send blocks until its context is done.
type full struct{ stage }

func (*full) Send(ctx context.Context, _ service.ID, _ []byte) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestDialCause: a Dial canceled while its request waits for the session's queue returns the cause of the context.
func TestDialCause(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing})
	h, err := serviceOf(p.here.Node)
	wantOK(t, "serviceOf", err)
	fresh := h.newPeer(p.peer.Service())
	s := &full{stage{Session: p.peer.Service().Session()}}
	wantOK(t, "Up", fresh.Up(s, nil))
	planted := errors.New("planted")
	ctx, cancel := context.WithCancelCause(soon(t))
	time.AfterFunc(time.Millisecond, func() { cancel(planted) })
	_, err = fresh.dialIn(ctx, &Config{Ring: MinRing, Memory: 2 * MinRing}, s, "test")
	wantErr(t, "Dial", err, planted)
	fresh.Gone(errors.New("gone"), false)
	p.wantNone(t)
}

// silent is a session whose peer does not respond. Send calls sent.
type silent struct {
	stage
	sent func()
}

func (s *silent) Send(context.Context, service.ID, []byte) error {
	s.sent()
	return nil
}

// TestDialsWithoutResponse: a Dial that is canceled after its request counts as outstanding until the peer responds or the session is lost.
func TestDialsWithoutResponse(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing})
	h, err := serviceOf(p.here.Node)
	wantOK(t, "serviceOf", err)
	fresh := h.newPeer(p.peer.Service())
	s := &silent{stage: stage{Session: p.peer.Service().Session()}}
	wantOK(t, "Up", fresh.Up(s, nil))
	for n := range 4 {
		ctx, cancel := context.WithCancel(soon(t))
		s.sent = cancel
		_, err := fresh.dialIn(ctx, &Config{Ring: MinRing, Memory: 100 * MinRing}, s, "test")
		wantErr(t, "Dial", err, context.Canceled)
		if got := len(fresh.requests); got != n+1 {
			t.Fatalf("after %d requests %d are outstanding, want all", n+1, got)
		}
	}
	wantOK(t, "Message", fresh.Message(s, (&refuse{1, codeUnknown, "no"}).encode()))
	eventually(t, "a response ends a request", func() bool { return len(fresh.requests) == 3 })
	fresh.Down(s, errors.New("the end"))
	eventually(t, "the loss of the session ends all requests", func() bool { return len(fresh.requests) == 0 })
	fresh.Gone(errors.New("gone"), false)
	p.wantNone(t)
}

// TestPeerWithoutStreams: Dial waits for a peer that does not offer streams yet.
func TestPeerWithoutStreams(t *testing.T) {
	n := memoryNetwork(1)
	a, b := n.start(t, nil), n.start(t, nil)
	p, err := a.Peer(soon(t), b.Addr().String())
	wantOK(t, "Peer", err)
	if s := NodeStats(b.Node); s != (Stats{}) || b.Node.Service().Attached(service.StreamID) != nil {
		t.Errorf("NodeStats a Node without streams: got %+v, want zero, and no streams afterwards", s)
	}
	ctx, cancel := context.WithTimeout(soon(t), 10*time.Millisecond)
	defer cancel()
	_, err = Dial(ctx, p, "late")
	wantErr(t, "Dial", err, context.DeadlineExceeded)
	done := make(chan error, 1)
	go func() {
		c, err := Dial(soon(t), p, "late")
		if err == nil {
			err = c.Close()
		}
		done <- err
	}()
	l, err := Listen(b.Node, "late")
	wantOK(t, "Listen", err)
	wantOK(t, "Dial", <-done)
	c, err := l.Accept()
	wantOK(t, "Accept", err)
	wantOK(t, "Close", c.Close())
}

// TestNodeCloses: closing a Node closes all streams and listeners.
func TestNodeCloses(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{})
	here, there := p.dial(t)
	accepted := make(chan error, 1)
	go func() {
		_, err := p.l.Accept()
		accepted <- err
	}()
	read := make(chan error, 1)
	go func() {
		_, err := there.Read(make([]byte, 1))
		read <- err
	}()
	wantOK(t, "Close", p.there.Close())
	wantErr(t, "Accept", <-accepted, node.ErrClosed)
	wantErr(t, "Read", <-read, syscall.ECONNRESET)
	_, err := io.Copy(io.Discard, here)
	wantErr(t, "Read", err, syscall.ECONNRESET)
	_, err = Listen(p.there.Node, "after")
	wantErr(t, "Listen", err, node.ErrClosed)
	wantOK(t, "Peer.Close", p.peer.Close())
	_, err = Dial(soon(t), p.peer, "test")
	wantErr(t, "Dial", err, node.ErrClosed)
}

// TestDialer: addresses name the service.
func TestDialer(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{})
	l, err := Listen(p.there.Node, "http")
	wantOK(t, "Listen", err)
	for addr, l := range map[string]net.Listener{"": l, "/test": p.l, "/http": l} {
		c, err := Dialer(p.here.Node)(soon(t), "tcp", p.there.Addr().String()+addr)
		wantOK(t, "Dial "+addr, err)
		d, err := l.Accept()
		wantOK(t, "Accept", err)
		wantOK(t, "Close", errors.Join(c.Close(), d.Close()))
	}
	_, err = Dialer(p.here.Node)(soon(t), "tcp", "127.0.0.1:1/test")
	var op *net.OpError
	if !errors.As(err, &op) {
		t.Errorf("Dial: got %v, want an OpError", err)
	}
}

// TestStatsByHost: streams are counted by their peer's host. The counts of disconnected peers are kept, and
// the number of hosts is bounded.
func TestStatsByHost(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing})
	for round := range uint64(2) {
		here, there := p.dial(t)
		_, err := here.Write([]byte("hello"))
		wantOK(t, "Write", err)
		readAll(t, there, 5)
		got := StatsByHost(p.there.Node)["127.0.0.1"]
		if want := (HostStats{Streams: 1, Received: 5 * (round + 1), Resets: round}); got != want {
			t.Errorf("StatsByHost: got %+v, want %+v", got, want)
		}
		wantOK(t, "Peer.Close", p.there.Peers()[0].Close())
		closeAll(t, here, there)
		p.wantNone(t)
		p.peer, err = p.here.Peer(soon(t), p.there.Addr().String())
		wantOK(t, "Peer", err)
	}
	h, err := serviceOf(p.here.Node)
	wantOK(t, "serviceOf", err)
	h.mu.Lock()
	const maxHosts = 256
	for i := range 2 * maxHosts {
		_, traffic := h.traffic.Of(&net.UnixAddr{Name: fmt.Sprint(i)})
		traffic.resets.Add(1)
	}
	h.mu.Unlock()
	all, resets := StatsByHost(p.here.Node), uint64(0)
	for name, s := range all {
		if name != "127.0.0.1" {
			resets += s.Resets
		}
	}
	if len(all) != maxHosts+1 || resets != 2*maxHosts {
		t.Errorf("%d hosts with %d resets, want %d with %d", len(all), resets, maxHosts+1, 2*maxHosts)
	}
}

// TestErrorsStayOnOneLine: names of services and a peer's reason are escaped in errors.
func TestErrorsStayOnOneLine(t *testing.T) {
	const evil = "x\nINFO all is well\x1b[2J"
	p := newPair(t, memoryNetwork(1), Config{})
	_, refused := Dial(soon(t), p.peer, evil)
	wantErr(t, "Dial", refused, syscall.ECONNREFUSED)
	_, host := Dialer(p.here.Node)(soon(t), "", evil+":1/x")
	l, err := Listen(p.there.Node, evil)
	wantOK(t, "Listen", err)
	wantOK(t, "Close", l.Close())
	c := &Conn{responded: make(chan struct{}), drained: make(chan struct{})}
	h, err := serviceOf(p.here.Node)
	wantOK(t, "serviceOf", err)
	fresh := h.newPeer(p.peer.Service())
	s := &stage{Session: p.peer.Service().Session()}
	wantOK(t, "Up", fresh.Up(s, nil))
	c.session, c.peer = s, fresh
	wantOK(t, "add", fresh.add(c))
	wantOK(t, "Message", fresh.Message(s, (&refuse{c.id, codeBusy, evil}).encode()))
	wantErr(t, "the refused stream", c.err, ErrBusy)
	for what, err := range map[string]error{"Dial": refused, "Dialer": host, "Close": l.Close(), "refusal": c.err} {
		if err == nil || strings.ContainsAny(err.Error(), "\n\x1b") || !strings.Contains(err.Error(), `x\nINFO all is well\x1b[2J`) {
			t.Errorf("%s: got %q, want one line with the text escaped", what, err)
		}
	}
}
