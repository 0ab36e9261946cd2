package stream

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"ibverbx/node"
	"ibverbx/softnic"
)

// oneSession fails if the session of a pair was lost. A dial needs one.
func (p *pair) oneSession(t *testing.T) {
	t.Helper()
	here, there := p.dial(t)
	closeAll(t, here, there)
	if n := p.peer.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions, want 1: closing a stream has cost the others theirs", n)
	}
}

func closeAll(t *testing.T, conns ...*Conn) {
	t.Helper()
	for _, c := range conns {
		if err := c.Close(); err != nil {
			t.Errorf("Close: got %v, want no error", err)
		}
	}
}

// TestAcceptedAndClosedAtOnce: a stream closed as soon as it is accepted is not a protocol error, even if the
// close overtakes the response to Dial.
func TestAcceptedAndClosedAtOnce(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		p := newPair(t, n, Config{Ring: MinRing})
		const dials = 100
		accepted := make(chan error, 1)
		go func() {
			for range dials {
				c, err := p.l.Accept()
				if err != nil {
					accepted <- err
					return
				}
				_ = c.Close()
			}
			accepted <- nil
		}()
		for range dials {
			c, err := p.cfg.Dial(soon(t), p.peer, "test")
			if err != nil {
				t.Fatalf("Dial: got %v, want no error", err)
			}
			_ = c.Close()
		}
		if err := <-accepted; err != nil {
			t.Errorf("Accept: got %v, want no error", err)
		}
		p.oneSession(t)
	})
}

// TestReset: the peer reads the data written before a Reset, then gets an error instead of EOF. Its Write
// fails, and all resources are released.
func TestReset(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		p := newPair(t, n, Config{Ring: MinRing})
		here, there := p.dial(t)
		_, err := here.Write([]byte("last words"))
		wantOK(t, "Write", err)
		wantOK(t, "Reset", here.Reset())
		wantErr(t, "Close", here.Close(), net.ErrClosed)
		b, err := io.ReadAll(there)
		wantErr(t, "Read", err, syscall.ECONNRESET)
		if string(b) != "last words" {
			t.Errorf("got %q, want the last words", b)
		}
		eventually(t, "Write fails", func() bool { _, err := there.Write([]byte("x")); return errors.Is(err, syscall.EPIPE) })
		closeAll(t, there)

		here, there = p.dial(t)
		wantOK(t, "CloseWrite", there.CloseWrite())
		wantOK(t, "Reset", there.Reset())
		if b, err := io.ReadAll(here); err != nil || len(b) > 0 {
			t.Errorf("after CloseWrite and Reset: got %d bytes and %v, want the end", len(b), err)
		}
		closeAll(t, here)
		p.oneSession(t)
		p.wantNone(t)
	})
}

// TestResetDrops: a peer that has not read gets only the data that fits in its ring, then an error, even
// after CloseWrite.
func TestResetDrops(t *testing.T) {
	for _, ended := range []bool{false, true} {
		p := newPair(t, memoryNetwork(1), Config{Ring: MinRing})
		here, there := p.dial(t)
		want := random(1, 2*MinRing)
		_, err := here.Write(want)
		wantOK(t, "Write", err)
		if ended {
			wantOK(t, "CloseWrite", here.CloseWrite())
		}
		wantOK(t, "Reset", here.Reset())
		b, err := io.ReadAll(there)
		wantErr(t, "Read", err, syscall.ECONNRESET)
		if !bytes.Equal(b, want[:MinRing]) {
			t.Errorf("got %d bytes, want the first %d", len(b), MinRing)
		}
		closeAll(t, there)
		p.oneSession(t)
	}
}

// TestResetAfterCloseWrite: Reset after CloseWrite keeps the end of the stream if all data fits in the peer's ring, even while
// maxFlight messages are in flight, so that the end is not posted yet.
func TestResetAfterCloseWrite(t *testing.T) {
	p := newPair(t, faultNetwork(t, 1, softnic.Impairment{}), Config{})
	here, there := p.dial(t)
	release := p.hold()
	want := random(3, maxFlight*chunkBytes+1)
	for b := range slices.Chunk(want, chunkBytes) {
		_, err := here.Write(b)
		wantOK(t, "Write", err)
	}
	wantOK(t, "CloseWrite", here.CloseWrite())
	here.mu.Lock()
	flight, ending := here.out.flight, here.out.ending
	here.mu.Unlock()
	if flight != maxFlight || ending {
		t.Fatalf("%d messages are in flight, and the end is posted: %v, want %d and false", flight, ending, maxFlight)
	}
	reset := make(chan error, 1)
	go func() { reset <- here.Reset() }()
	eventually(t, "Reset has begun", func() bool {
		here.mu.Lock()
		defer here.mu.Unlock()
		return here.closed
	})
	release()
	if b, err := io.ReadAll(there); err != nil || !bytes.Equal(b, want) {
		t.Errorf("got %d bytes and %v, want all %d and the end", len(b), err, len(want))
	}
	wantOK(t, "Reset", <-reset)
	closeAll(t, there)
	p.oneSession(t)
}

// TestDone: a stream is done only when its end has reached the peer, however long the peer takes to read. It
// is also done when the peer stops reading, and when the session is lost, while ReadFrom waits for its
// Reader.
func TestDone(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing})
	wait := func(c *Conn) {
		t.Helper()
		select {
		case <-c.Done():
		case <-soon(t).Done():
			t.Fatal("the stream is not done after a minute")
		}
	}
	here, there := p.dial(t)
	want := random(2, 2*MinRing)
	_, err := here.Write(want)
	wantOK(t, "Write", err)
	wantOK(t, "CloseWrite", here.CloseWrite())
	select {
	case <-here.Done():
		t.Error("the stream is done, and the peer has not read")
	case <-time.After(10 * time.Millisecond):
	}
	if b, err := io.ReadAll(there); err != nil || !bytes.Equal(b, want) {
		t.Errorf("got %d bytes and %v, want all %d", len(b), err, len(want))
	}
	wait(here)
	closeAll(t, here, there)

	for name, leave := range map[string]func(*Conn){
		"CloseRead": func(c *Conn) { wantOK(t, "CloseRead", c.CloseRead()) },
		"Reset":     func(c *Conn) { wantOK(t, "Reset", c.Reset()) },
		"lost":      func(*Conn) { p.lose() },
	} {
		t.Run(name, func(t *testing.T) {
			here, there := p.dial(t)
			end, done := idleReadFrom(t, here)
			leave(there)
			wait(here)
			end()
			<-done
		})
	}
}

// TestIdleStreamIsParked: the queue pairs of an idle session are closed. Its streams stay, and the next Write of either side brings
// the queue pairs back.
func TestIdleStreamIsParked(t *testing.T) {
	n := memoryNetwork(1)
	park := func(cfg *node.Config) { cfg.IdleAfter = 20 * time.Millisecond }
	p := &pair{here: n.start(t, park), there: n.start(t, park)}
	var err error
	p.l, err = Listen(p.there.Node, "test")
	wantOK(t, "Listen", err)
	p.peer, err = p.here.Peer(soon(t), p.there.Addr().String())
	wantOK(t, "Peer", err)
	here, there := p.dial(t)
	for i := range 6 { // both sides alternately
		eventually(t, "the session is parked", func() bool { return p.peer.State() == node.StateParked })
		_, err = here.Write([]byte("after a pause"))
		wantOK(t, "Write", err)
		if got := string(readAll(t, there, 13)); got != "after a pause" {
			t.Errorf("write %d: got %q, want what was written", i, got)
		}
		here, there = there, here
	}
}

// TestPeerLeavesIdleReadFrom: the peer closes a stream while this side is in ReadFrom with an idle Reader.
// The stream closes immediately.
func TestPeerLeavesIdleReadFrom(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing})
	here, there := p.dial(t)
	end, done := idleReadFrom(t, there)
	closeAll(t, here)
	eventually(t, "the stream has ended here", func() bool { return NodeStats(p.here.Node).Streams == 0 })
	p.oneSession(t)
	end()
	<-done
	closeAll(t, there)
}

// TestCloseInReadFrom: closing a stream whose ReadFrom waits for an idle Reader does not affect the session.
func TestCloseInReadFrom(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing})
	p.setLinger(t, 20*time.Millisecond)
	here, there := p.dial(t)
	end, done := idleReadFrom(t, here)
	closeAll(t, here, there)
	eventually(t, "the stream was lingered over", func() bool {
		here.mu.Lock()
		defer here.mu.Unlock()
		return here.lingered
	})
	time.Sleep(100 * time.Millisecond) // only gives a bug time to show
	p.oneSession(t)
	end()
	<-done
	eventually(t, "the memory is back", func() bool { return NodeStats(p.here.Node).Streams == 0 })
}

// idleReadFrom makes a stream read from an idle Reader until end is called.
func idleReadFrom(t *testing.T, c *Conn) (end func(), done chan error) {
	t.Helper()
	r, w := io.Pipe()
	done = make(chan error, 1)
	go func() {
		_, err := c.ReadFrom(r)
		done <- err
	}()
	eventually(t, "ReadFrom reads", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.out.copying
	})
	return func() { _ = w.Close() }, done
}

type panicky struct{}

func (panicky) Read([]byte) (int, error)  { panic("planted") }
func (panicky) Write([]byte) (int, error) { panic("planted") }

// TestReaderPanics: a Reader or Writer of the program that panics leaves no stream behind.
func TestReaderPanics(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing})
	here, there := p.dial(t)
	if _, err := there.Write([]byte("for WriteTo")); err != nil {
		t.Fatal(err)
	}
	for _, f := range []func(){
		func() { _, _ = here.ReadFrom(panicky{}) },
		func() { _, _ = here.WriteTo(panicky{}) },
	} {
		func() {
			defer func() { _ = recover() }()
			f()
			t.Error("it did not panic")
		}()
	}
	closeAll(t, here, there)
	eventually(t, "no stream is left", func() bool { return NodeStats(p.here.Node).Streams == 0 && NodeStats(p.there.Node).Streams == 0 })
	p.oneSession(t)
}

// TestReaderPanicsAfterCloseWrite: a CloseWrite during a ReadFrom takes effect even if the Reader panics then.
func TestReaderPanicsAfterCloseWrite(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing})
	here, _ := p.dial(t)
	func() {
		defer func() { _ = recover() }()
		_, _ = here.ReadFrom(closesAndPanics{here})
		t.Error("it did not panic")
	}()
	here.mu.Lock()
	defer here.mu.Unlock()
	if !here.out.ending {
		t.Error("the end of the stream was not sent")
	}
}

// closesAndPanics is a Reader that closes the stream for writing, then panics.
type closesAndPanics struct{ c *Conn }

func (r closesAndPanics) Read([]byte) (int, error) {
	_ = r.c.CloseWrite()
	panic("planted")
}

// TestDialWhilePeerCloses: a Dial to a peer that is being closed fails, and leaves the peer's other streams their reset.
func TestDialWhilePeerCloses(t *testing.T) {
	for range 10 {
		p := newPair(t, memoryNetwork(2), Config{Ring: MinRing})
		here, _ := p.dial(t)
		read, dialed := make(chan error, 1), make(chan struct{})
		go func() {
			_, err := here.Read(make([]byte, 1))
			read <- err
		}()
		go func() {
			defer close(dialed)
			for p.peer.State() != node.StateClosed {
				time.Sleep(10 * time.Microsecond)
			}
			for range 100 {
				if c, err := p.cfg.Dial(soon(t), p.peer, "test"); err == nil {
					t.Errorf("Dial to a closed peer: got %v, want an error", c)
				}
			}
		}()
		if err := p.peer.Close(); err != nil {
			t.Errorf("Close: got %v, want no error", err)
		}
		<-dialed
		select {
		case err := <-read:
			if err == nil {
				t.Error("Read of a stream whose peer is closed: got no error")
			}
		case <-soon(t).Done():
			t.Fatal("Read has not returned a minute after its peer was closed")
		}
	}
}
