package bootstrap

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A peer that vanishes, or sends only single bytes, is considered dead after DeadAfter.
func TestSilence(t *testing.T) {
	t.Parallel()
	cfg := plainConfig()
	cfg.DeadAfter = 500 * time.Millisecond
	d := newDoor(t, cfg)
	for name, drip := range map[string]bool{"silent": false, "dripping": true} {
		c := d.connect(t)
		wireMeet(t, c)
		var got *Conn
		select {
		case got = <-d.backlog: // Accept would drop a dead Conn, if the machine has paused the test for DeadAfter
		case <-soon(t).Done():
			t.Fatal("the peer was not admitted")
		}
		if drip {
			go func() {
				for _, b := range appendFrame(nil, frameMessage, KindCard, make([]byte, 100)) {
					if _, err := c.Write([]byte{b}); err != nil {
						return
					}
					time.Sleep(20 * time.Millisecond)
				}
			}()
		}
		<-got.Done()
		wants(t, name, got.Err(), ErrSilent)
		_, err := got.Recv(t.Context())
		wants(t, "Recv", err, ErrSilent)
		wants(t, "Send", got.Send(t.Context(), KindCard, nil), ErrSilent)
		if err := got.Close(); err != nil {
			t.Errorf("Close: got %v, want no error", err)
		}
	}
}

// Two idle sides stay connected, even if only one has a short DeadAfter.
func TestKeepalive(t *testing.T) {
	t.Parallel()
	impatient := tokenConfig()
	impatient.DeadAfter = 6 * time.Second
	x, y := newDoor(t, tokenConfig()).meet(t, impatient)
	for x.Stats().KeepalivesIn < 4 && x.Err() == nil { // three are sent per DeadAfter
		time.Sleep(time.Millisecond)
	}
	carry(t, x, y, "still here")
	carry(t, y, x, "so am I")
	if s := x.Stats(); s.KeepalivesIn == 0 {
		t.Errorf("the impatient side got %d keepalives, want some", s.KeepalivesIn)
	}
}

// Both sides detect a restarted peer.
func TestRestart(t *testing.T) {
	d := newDoor(t, tokenConfig())
	me := tokenConfig()
	me.Name, me.Incarnation = "me", 1
	you := tokenConfig()
	you.Name, you.Incarnation = "you", 2
	_, first := d.meet(t, me)
	_, other := d.meet(t, you)
	_, again := d.meet(t, me) // the same process may connect twice
	me.Incarnation = 3
	_, third := d.meet(t, me)
	<-first.Done()
	<-again.Done()
	wants(t, "the Conn of the incarnation before", first.Err(), ErrRestarted)
	wants(t, "its second Conn", again.Err(), ErrRestarted)
	if other.Err() != nil || third.Err() != nil {
		t.Errorf("other Conns ended in %v and %v, want none", other.Err(), third.Err())
	}
}

// A peer cannot close the Conns of another certificate by using its name.
func TestRestartOfAnother(t *testing.T) {
	a := newAuthority(t)
	d := newDoor(t, a.config("server", nil))
	me, thief := a.config("me", nil), a.config("thief", nil)
	me.Name, thief.Name = "me", "me"
	_, mine := d.meet(t, me)
	d.meet(t, thief)
	carryOn := make(chan struct{})
	time.AfterFunc(50*time.Millisecond, func() { close(carryOn) })
	select {
	case <-mine.Done():
		t.Errorf("the Conn ended in %v because another took its name, want it to live", mine.Err())
	case <-carryOn:
	}
}

// A sender waits for free window space, messages stay in order, and datagrams are sent meanwhile.
func TestRoom(t *testing.T) {
	x, y := newDoor(t, tokenConfig()).meet(t, tokenConfig())
	in, out := y.Control(), x.Control()
	const total = 64
	sent := make(chan error, 1)
	go func() {
		for i := range total {
			b := binary.BigEndian.AppendUint32(nil, uint32(i))
			if err := x.Send(context.WithoutCancel(t.Context()), KindApplication, append(b, make([]byte, 256<<10)...)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for x.Stats().MessagesOut < window/(256<<10)-1 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
	if n := x.Stats().MessagesOut; n >= window/(256<<10) {
		t.Errorf("%d messages were sent to a peer that reads none, want fewer than %d", n, window/(256<<10))
	}
	if err := out.Send([]byte("past the queue")); err != nil {
		t.Fatalf("Control.Send: got %v, want no error", err)
	}
	if got := datagram(t, in); got != "past the queue" {
		t.Errorf("the datagram is %q, want %q", got, "past the queue")
	}
	for i := range total {
		m, err := y.Recv(soon(t))
		if err != nil || binary.BigEndian.Uint32(m.Body) != uint32(i) {
			t.Fatalf("message %d: got %v and %v", i, m.Body[:4], err)
		}
	}
	if err := <-sent; err != nil {
		t.Errorf("Send: got %v, want no error", err)
	}
}

// A Conn with an open, idle control channel uses less than 12 KiB, of which 8 KiB are the read
// buffer. A few datagrams add little.
func TestIdleConnIsSmall(t *testing.T) {
	here, _ := net.Pipe()
	cfg := plainConfig()
	const conns = 100
	var all [conns]*Conn
	allocated := func(do func(i int)) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range all {
			do(i)
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / conns
	}
	if n := allocated(func(i int) {
		all[i] = newConn(&unauthConn{raw: here, stream: here, cfg: &cfg}, Peer{Addr: address("127.0.0.1:1")}, hello{window: maxWindow, deadAfter: cfg.DeadAfter})
	}); n > 11<<10 {
		t.Errorf("a Conn takes %d bytes, want at most 11 KiB", n)
	}
	if n := allocated(func(i int) { all[i].Control() }); n > 1<<10 {
		t.Errorf("a control channel takes %d bytes, want at most 1 KiB", n)
	}
	b := make([]byte, 100)
	if n := allocated(func(i int) {
		for range 1000 {
			all[i].datagrams.in.Put(b)
			all[i].datagrams.in.Take(b)
		}
	}); n > 1<<10 {
		t.Errorf("1,000 datagrams in turn take %d bytes, want at most 1 KiB", n)
	}
}

// Control calls wake for each datagram and when the Conn is closed.
func TestControlWakes(t *testing.T) {
	x, y := newDoor(t, plainConfig()).meet(t, plainConfig())
	woken := make(chan struct{}, 1000)
	in := y.Control()
	in.Notify(func() { woken <- struct{}{} })
	if err := x.Control().Send([]byte("hello")); err != nil {
		t.Fatalf("Control.Send: got %v, want no error", err)
	}
	<-woken
	if got := datagram(t, in); got != "hello" {
		t.Errorf("the datagram is %q, want %q", got, "hello")
	}
	if err := x.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
	<-woken // closing wakes too
	wants(t, "Send", x.Control().Send([]byte("x")), ErrClosed)
	_, err := in.Recv(make([]byte, MaxDatagram))
	wants(t, "Recv", err, ErrClosed)
}

// Messages sent before Close arrive, followed by the close and its reason.
func TestClose(t *testing.T) {
	for name, cfg := range map[string]Config{"plain": plainConfig(), "token": tokenConfig()} {
		x, y := newDoor(t, cfg).meet(t, cfg)
		for range 3 {
			if err := x.Send(soon(t), KindApplication, make([]byte, MaxMessage)); err != nil {
				t.Fatalf("Send: got %v, want no error", err)
			}
		}
		if err := y.Send(soon(t), KindApplication, []byte("nobody reads this")); err != nil {
			t.Fatalf("Send: got %v, want no error", err)
		}
		if err := x.CloseWith("enough\x1b[2J"); err != nil {
			t.Errorf("%s: Close: got %v, want no error", name, err)
		}
		for i := range 3 {
			if m, err := y.Recv(soon(t)); err != nil || len(m.Body) != MaxMessage {
				t.Errorf("%s: message %d: got %d bytes and %v, want %d", name, i, len(m.Body), err, MaxMessage)
			}
		}
		_, err := y.Recv(soon(t))
		if !errors.Is(err, ErrPeerClosed) || !strings.Contains(err.Error(), `"enough\x1b[2J"`) {
			t.Errorf("%s: after the end: got %v, want %v and the reason in quotes", name, err, ErrPeerClosed)
		}
		for range 2 {
			if err := errors.Join(x.Close(), y.Close()); err != nil {
				t.Errorf("%s: Close again: got %v, want no error", name, err)
			}
		}
		wants(t, name+": Send after Close", x.Send(t.Context(), KindCard, nil), ErrClosed)
	}
}

// Close does not wait forever for a peer that stops reading.
func TestCloseStuck(t *testing.T) {
	t.Parallel()
	d := newDoor(t, plainConfig())
	c := d.connect(t)
	wireMeet(t, c)
	got, err := d.Accept(soon(t))
	if err != nil {
		t.Fatalf("Accept: got %v, want no error", err)
	}
	for range 3 {
		if err := got.Send(soon(t), KindApplication, make([]byte, MaxMessage)); err != nil {
			t.Fatalf("Send: got %v, want no error", err)
		}
	}
	if err := got.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
}

// TestOutboxBound: a peer that announces the largest window and stops reading cannot make this side
// queue more than its own window. Messages are delivered once the peer reads.
func TestOutboxBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		cfg := plainConfig().withDefaults()
		c := newConn(&unauthConn{raw: here, stream: here, cfg: &cfg}, Peer{Addr: address("127.0.0.1:1")}, hello{window: maxWindow, deadAfter: cfg.DeadAfter})
		c.start(nil)
		const size, count = 64 << 10, 3 * window / (64 << 10)
		sent := make(chan error, 1)
		go func() {
			var err error
			for i := 0; i < count && err == nil; i++ {
				err = c.Send(t.Context(), KindApplication, make([]byte, size))
			}
			sent <- err
		}()
		synctest.Wait()
		c.mu.Lock()
		held := 0
		for _, frame := range c.outbox {
			held += len(frame)
		}
		c.mu.Unlock()
		if held > window || held < window/2 {
			t.Errorf("%d bytes are queued for a peer that reads nothing, want at most %d and not much less", held, window)
		}
		for range count {
			if h, _ := wireTake(t, there); h.length != size {
				t.Fatalf("got a frame of type %d and %d bytes, want a message of %d", h.typ, h.length, size)
			}
		}
		if err := <-sent; err != nil {
			t.Errorf("Send: got %v, want no error", err)
		}
		_ = there.Close()
		_ = c.Close()
	})
}

// A connection closed by the peer in mid-stream is detected at once.
func TestHangUp(t *testing.T) {
	d := newDoor(t, plainConfig())
	c := d.connect(t)
	wireMeet(t, c)
	got, err := d.Accept(soon(t))
	if err != nil {
		t.Fatalf("Accept: got %v, want no error", err)
	}
	if err := c.Close(); err != nil {
		t.Fatalf("hang up: got %v, want no error", err)
	}
	<-got.Done()
	wants(t, "the Conn", got.Err(), ErrPeerClosed)
	if err := got.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
}

// TestHundredAtOnce: 100 concurrent clients of one host are all admitted, although the program
// accepts the first only after the last has dialed.
func TestHundredAtOnce(t *testing.T) {
	a := newAuthority(t)
	server, cfg := a.config("server", nil), a.config("client", nil)
	server.HandshakeTimeout, cfg.HandshakeTimeout = 2*time.Minute, 2*time.Minute // for slow machines
	d := newDoor(t, server)
	const clients = 100
	dialed := make(chan *Conn, clients)
	for range clients {
		go func() {
			c, err := Dial(soon(t), d.Addr().String(), cfg)
			if err != nil {
				t.Errorf("Dial: got %v, want no error", err)
			}
			dialed <- c
		}()
	}
	for range clients {
		if c := <-dialed; c != nil {
			closeAfter(t, c)
		}
	}
	for range clients {
		c, err := d.Accept(soon(t))
		if err != nil {
			t.Fatalf("Accept: got %v, want no error", err)
		}
		closeAfter(t, c)
	}
}

// Peers beyond the backlog get ErrBusy.
func TestBacklog(t *testing.T) {
	cfg := plainConfig()
	cfg.Backlog = 2
	d := newDoor(t, cfg)
	for range 2 {
		d.dial(t, plainConfig())
	}
	for d.Stats().Admitted < 2 {
		time.Sleep(time.Millisecond)
	}
	_, err := Dial(soon(t), d.Addr().String(), plainConfig())
	if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "try again") {
		t.Errorf("the third peer: got %v, want %v and to try again", err, ErrBusy)
	}
	wants(t, "the listener", d.rejection(t), ErrBusy)
}

// An invalid frame after the handshake closes the Conn.
func TestViolations(t *testing.T) {
	d := newDoor(t, plainConfig())
	window4 := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	for name, b := range map[string][]byte{
		"a preface":           appendFrame(nil, framePreface, 0, preface{Version, AuthNone}.encode()),
		"a refusal":           appendFrame(nil, frameRefusal, 0, []byte{1}),
		"no kind":             appendFrame(nil, frameMessage, 0, nil),
		"an unknown kind":     appendFrame(nil, frameMessage, kindEnd, nil),
		"a kind of nothing":   appendFrame(nil, frameKeepalive, KindCard, nil),
		"a long keepalive":    appendFrame(nil, frameKeepalive, 0, []byte{1}),
		"an empty datagram":   appendFrame(nil, frameDatagram, 0, nil),
		"a long datagram":     appendFrame(nil, frameDatagram, 0, make([]byte, MaxDatagram+1)),
		"no room":             appendFrame(nil, frameWindow, 0, window4(0)),
		"too much room":       appendFrame(nil, frameWindow, 0, window4(maxWindow)),
		"a message too long":  {0, 0x10, 0, 1, byte(frameMessage), byte(KindCard), 0, 0},
		"more than there is":  flood(),
		"an unknown type":     appendFrame(nil, 99, 0, nil),
		"something set":       {0, 0, 0, 0, byte(frameKeepalive), 0, 0, 1},
		"a long farewell":     appendFrame(nil, frameBye, 0, make([]byte, maxText+1)),
		"a length of 4 GiB":   {0xff, 0xff, 0xff, 0xff, byte(frameMessage), byte(KindCard), 0, 0},
		"a hello of too much": appendFrame(nil, frameHello, 0, make([]byte, helloMin)),
	} {
		t.Run(name, func(t *testing.T) {
			c := d.connect(t)
			wireMeet(t, c)
			got, err := d.Accept(soon(t))
			if err != nil {
				t.Fatalf("Accept: got %v, want no error", err)
			}
			go func() { _, _ = io.Copy(io.Discard, c) }()
			_, _ = c.Write(b) // the listener may reset the connection
			<-got.Done()
			wants(t, "the Conn", got.Err(), ErrProtocol)
			if err := got.Close(); err != nil {
				t.Errorf("Close: got %v, want no error", err)
			}
		})
	}
}

// flood returns one more empty message than the window admits.
func flood() (b []byte) {
	for range window/messageCost + 1 {
		b = appendFrame(b, frameMessage, KindApplication, nil)
	}
	return b
}

// Invalid hellos are rejected.
func TestBadHellos(t *testing.T) {
	good := hello{incarnation: 1, deadAfter: time.Second, window: window, name: "x"}
	for name, spoil := range map[string]func(*hello){
		"no incarnation":       func(h *hello) { h.incarnation = 0 },
		"too large a number":   func(h *hello) { h.incarnation = 1 << 53 },
		"impatience":           func(h *hello) { h.deadAfter = minDeadAfter - time.Millisecond },
		"too much patience":    func(h *hello) { h.deadAfter = maxDeadAfter + time.Millisecond },
		"too small a window":   func(h *hello) { h.window = minWindow - 1 },
		"too large a window":   func(h *hello) { h.window = maxWindow + 1 },
		"a name that is not":   func(h *hello) { h.name = "\xff" },
		"a name that is long":  func(h *hello) { h.name = strings.Repeat("x", maxName+1) },
		"nothing wrong at all": func(*hello) {},
	} {
		h := good
		spoil(&h)
		got, err := decodeHello(h.encode())
		if ok := strings.HasPrefix(name, "nothing"); (err == nil) != ok || (ok && got != good) || (err != nil && !errors.Is(err, ErrProtocol)) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

// TestLaterHello: later versions' fields after the name are ignored.
func TestLaterHello(t *testing.T) {
	want := hello{incarnation: 1, deadAfter: time.Second, window: window, name: "x"}
	for _, more := range []string{"\x00", "\x00\xff\x00fields of a later version", "\x00" + strings.Repeat("x", 1024)} {
		if got, err := decodeHello(append(want.encode(), more...)); err != nil || got != want {
			t.Errorf("decodeHello with %.40q behind it = %+v, %v, want %+v", more, got, err, want)
		}
	}
	if got, err := decodeHello(append(want.encode(), strings.Repeat("\x00", helloMax)...)); !errors.Is(err, ErrProtocol) {
		t.Errorf("decodeHello of too many bytes = %+v, %v, want %v", got, err, ErrProtocol)
	}
	cfg := Config{Token: Secret("0123456789abcdef"), Name: "a\x00b"}
	if _, err := NewDialer(cfg); err == nil || !strings.Contains(err.Error(), "without NUL") {
		t.Errorf("NewDialer with a NUL in the name: got %v, want an error", err)
	}
}

// wires is a pipe whose ends have TCP-like addresses, for fuzzing without a network.
type wires struct{ net.Conn }

func (wires) RemoteAddr() net.Addr { return address("127.0.0.1:1") }
