package forward_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"ibverbx/internal/forward"
	"ibverbx/stream"
)

// TestForwardHalfClose: a program closes its direction, and the target responds after that.
func TestForwardHalfClose(t *testing.T) {
	to := target(t, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c) // until the program has closed its direction
		_, _ = c.Write(bytes.ToUpper(b))
	})
	r := newRig(t, to)
	c := dial(t, r.forward(to))
	want := bytes.Repeat([]byte("ABCD"), 1<<18)
	go func() {
		_, _ = c.Write(bytes.ToLower(want))
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes and %v, want %d", len(got), err, len(want))
	}
	r.wantNone()
}

// TestForwardReset: a reset passes in both directions, after the data before it.
func TestForwardReset(t *testing.T) {
	ends := make(chan error, 1)
	to := target(t, func(c *net.TCPConn) {
		b := make([]byte, 5)
		_, _ = io.ReadFull(c, b)
		if string(b) == "leave" {
			_ = c.SetLinger(0)
			return
		}
		_, _ = c.Write(b)
		_, err := c.Read(b)
		ends <- err
	})
	r := newRig(t, to)
	addr := r.forward(to)
	c := dial(t, addr)
	say(t, c, "hello")
	_ = c.SetLinger(0)
	_ = c.Close()
	wantErr(t, "Read of the target", <-ends, syscall.ECONNRESET)
	c = dial(t, addr)
	_, err := c.Write([]byte("leave"))
	wantOK(t, "Write", err)
	_, err = c.Read(make([]byte, 1))
	wantErr(t, "Read of the program", err, syscall.ECONNRESET)
	r.wantNone()
}

// TestForwardUnlisted: an unlisted target is refused, by Check and for each connection, and
// reported once.
func TestForwardUnlisted(t *testing.T) {
	reached := make(chan struct{}, 100)
	secret := target(t, func(*net.TCPConn) { reached <- struct{}{} })
	open := target(t, echo)
	for name, named := range map[string][]forward.Target{"other": {open}, "none": nil} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, named...)
			for _, to := range []forward.Target{secret, "", "localhost:1", forward.Target(bytes.Repeat([]byte("x"), 255))} {
				wantErr(t, "Check", r.client.Check(soon(t), to), forward.ErrUnnamed)
			}
			for _, to := range named {
				wantOK(t, "Check", r.client.Check(soon(t), to))
			}
			addr := r.forward(secret)
			for range 3 {
				wantReset(t, addr)
			}
			r.stop()
			if here, there := r.said.count("--forward "+string(secret)), r.saidFar.count("asked for"); here != 1 || there != 1 {
				t.Errorf("told %d and %d times, want once on each side: %q, %q", here, there, r.said.lines, r.saidFar.lines)
			}
		})
	}
	select {
	case <-reached:
		t.Error("the target that was not named was reached")
	default:
	}
}

// TestForwardTargetDown: an unreachable target causes a reset. Each side reports it once, and its
// return.
func TestForwardTargetDown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	r := newRig(t, forward.Target(path))
	addr := r.forward(forward.Target(path))
	for range 3 {
		wantReset(t, addr)
	}
	l, err := net.Listen("unix", path)
	wantOK(t, "Listen", err)
	defer func() { _ = l.Close() }()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	c := dial(t, addr)
	say(t, c, "hello")
	_ = c.CloseWrite()
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Errorf("Read: got %q and %v, want the end", b, err)
	}
	r.stop()
	for text, s := range map[string]*said{"the host cannot reach it": &r.said, "work again": &r.said, "cannot be reached": &r.saidFar, "is back": &r.saidFar} {
		if s.count(text) != 1 {
			t.Errorf("%q was told %d times, want once: %q", text, s.count(text), s.lines)
		}
	}
}

// TestForwardNICDies: connections survive the permanent loss of a NIC.
func TestForwardNICDies(t *testing.T) {
	to := target(t, echo)
	r := newRig(t, to)
	c := dial(t, r.forward(to))
	say(t, c, "connected")
	want := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(want)
	go func() {
		for i := range 8 {
			_, _ = c.Write(want[i<<20:][:1<<20])
			switch i {
			case 2:
				r.there.NICs[0].Reset()
			case 4:
				r.here.NICs[1].Fail()
			}
		}
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes and %v, want the %d that were sent", len(got), err, len(want))
	}
	if n := r.here.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions, want 1", n)
	}
}

// TestForwardSessionLost: a lost session resets the program and the target; the next connection
// works.
func TestForwardSessionLost(t *testing.T) {
	r, addr, ends := newEchoRig(t)
	for range 3 {
		c := dial(t, addr)
		say(t, c, "hello")
		r.lose()
		_, err := c.Read(make([]byte, 1))
		wantErr(t, "Read of the program", err, syscall.ECONNRESET)
		wantErr(t, "Read of the target", <-ends, syscall.ECONNRESET)
	}
	say(t, dial(t, addr), "again")
}

// TestForwardHalfClosedEnds: a half-closed connection is reset on both sides when the session is
// lost or the client stops. The open direction is idle, so the loss could go unnoticed.
func TestForwardHalfClosedEnds(t *testing.T) {
	for end, f := range map[string]func(*rig){"session": (*rig).lose, "client": func(r *rig) { r.stopClient() }} {
		for _, first := range []string{"program", "target"} {
			t.Run(first+"/"+end, func(t *testing.T) {
				t.Parallel()
				accepted := make(chan *net.TCPConn)
				done := make(chan struct{})
				defer close(done)
				to := target(t, func(c *net.TCPConn) {
					accepted <- c
					<-done
				})
				r := newRig(t, to)
				ended := dial(t, r.forward(to))
				waits := <-accepted
				_ = waits.SetDeadline(time.Now().Add(time.Minute))
				if first == "target" {
					ended, waits = waits, ended
				}
				wantOK(t, "CloseWrite", ended.CloseWrite())
				_, err := io.Copy(io.Discard, waits)
				wantOK(t, "Read of the end", err)
				f(r)
				r.wantNone()
				_, err = ended.Read(make([]byte, 1))
				wantErr(t, "Read", err, syscall.ECONNRESET)
				eventually(t, "Write fails behind the end of reading", func() bool {
					_, err := waits.Write([]byte("x"))
					return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
				})
			})
		}
	}
}

// TestForwardSlowReader: a program that pauses for longer than a stream lingers receives all data,
// although both directions were closed long ago. How much a socket buffers is unknown, so the test
// tries several sizes. On a Unix socket, which buffers little, the last bytes of some wait in the
// server's send ring. On TCP they wait in the kernel, after Close.
func TestForwardSlowReader(t *testing.T) {
	t.Parallel()
	const unit, least, most = stream.MinRing / 2, 3, 14
	all := make([]byte, most*unit)
	_, _ = rand.NewChaCha8([32]byte{9}).Read(all)
	to := target(t, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		_, _ = c.Write(all[:len(b)*unit])
	})
	r := newRig(t, to)
	var conns [2 * (most + 1)]net.Conn
	for n, listen := range [...][2]string{{"unix", filepath.Join(t.TempDir(), "socket")}, {"tcp", "127.0.0.1:0"}} {
		l, err := net.Listen(listen[0], listen[1])
		wantOK(t, "Listen", err)
		addr := r.forwardOn(l, to)
		for i := least; i <= most; i++ {
			c, err := net.Dial(listen[0], addr)
			wantOK(t, "Dial", err)
			defer func() { _ = c.Close() }()
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_, err = c.Write(make([]byte, i))
			wantOK(t, "Write", err)
			wantOK(t, "CloseWrite", c.(interface{ CloseWrite() error }).CloseWrite())
			conns[2*i+n] = c
		}
	}
	time.Sleep(4500 * time.Millisecond) // longer than Close waits
	for i, c := range conns[2*least:] {
		size := (least + i/2) * unit
		if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, all[:size]) {
			t.Errorf("%v: got %d bytes and %v, want all %d", c.RemoteAddr(), len(got), err, size)
		}
	}
	r.wantNone()
}

// TestForwardEarlyAnswer: a target responds and closes before it has read everything. The program
// receives the whole response, although it reads it only after its upload.
func TestForwardEarlyAnswer(t *testing.T) {
	t.Parallel()
	answer := bytes.Repeat([]byte("answer.."), 4000) // the target's kernel sends this much even after the socket is closed
	to := target(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 1000))
		_, _ = c.Write(answer)
	})
	r := newRig(t, to)
	addr := r.forward(to)
	for range 20 {
		c := dial(t, addr)
		for range 100 {
			if _, err := c.Write(make([]byte, 64<<10)); err != nil {
				break
			}
		}
		got, err := io.ReadAll(c)
		if !bytes.Equal(got, answer) {
			t.Errorf("got %d bytes of the answer and %v, want %d", len(got), err, len(answer))
		}
		_ = c.Close()
	}
	r.wantNone()
}

// TestForwardManyConnections: many concurrent connections, more than the accept backlog.
func TestForwardManyConnections(t *testing.T) {
	to := target(t, echo)
	r := newRig(t, to)
	addr := r.forward(to)
	var all sync.WaitGroup
	for i := range 200 {
		c := dial(t, addr)
		all.Go(func() {
			want := bytes.Repeat([]byte(fmt.Sprintf("%07d\n", i)), 4000)
			go func() {
				_, _ = c.Write(want)
				_ = c.CloseWrite()
			}()
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
				t.Errorf("connection %d: got %d bytes and %v, want its own %d", i, len(got), err, len(want))
			}
		})
	}
	all.Wait()
	r.wantNone()
}

// TestForwardOrder: connections reach the target in the order the program opened them. Programs
// such as iperf3 --bidir depend on it.
func TestForwardOrder(t *testing.T) {
	l := listen(t)
	to := forward.Target(l.Addr().String())
	r := newRig(t, to)
	r.client.SetPatience(time.Minute)
	addr := r.forward(to)
	const conns = 50
	for i := range conns {
		_, err := dial(t, addr).Write([]byte{byte(i)})
		wantOK(t, "Write", err)
	}
	for i := range conns {
		c, err := l.Accept()
		wantOK(t, "Accept", err)
		b := make([]byte, 1)
		_, err = c.Read(b)
		wantOK(t, "Read", err)
		_ = c.Close()
		if int(b[0]) != i {
			t.Fatalf("connection %d came at place %d", b[0], i)
		}
	}
}

// TestForwardStops: idle connections are reset on both sides when the context is canceled.
func TestForwardStops(t *testing.T) {
	r, addr, ends := newEchoRig(t)
	c := dial(t, addr)
	say(t, c, "hello")
	r.stop()
	_, err := c.Read(make([]byte, 1))
	wantErr(t, "Read of the program", err, syscall.ECONNRESET)
	wantErr(t, "Read of the target", <-ends, syscall.ECONNRESET)
	if c, err := net.Dial("tcp", addr); err == nil {
		_ = c.Close()
		t.Error("the port is still open")
	}
	r.wantNone()
}

// TestForwardReaderStops: a program that does not read blocks only its own target.
func TestForwardReaderStops(t *testing.T) {
	endless := target(t, func(c *net.TCPConn) { _, _ = io.Copy(c, zeros{}) })
	quick := target(t, echo)
	r := newRig(t, endless, quick)
	full := dial(t, r.forward(endless))
	_, err := full.Read(make([]byte, 1))
	wantOK(t, "Read", err)
	for c, i := dial(t, r.forward(quick)), 0; i < 100; i++ {
		say(t, c, "ping")
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// TestFalseRequests: an invalid request closes only its own stream.
func TestFalseRequests(t *testing.T) {
	to := target(t, echo)
	r := newRig(t, to)
	p, err := r.here.Peer(soon(t), r.there.Addr().String())
	wantOK(t, "Peer", err)
	for _, bad := range [][]byte{{0, 0}, {3, 1, 'x'}, {1, 3, 'a', 'b', '\n'}, {1, 1, 0xff}, bytes.Repeat([]byte{0xff}, 1000)} {
		c, err := stream.Dial(soon(t), p, forward.Service)
		wantOK(t, "Dial", err)
		_, _ = c.Write(bad)
		if b, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) || len(b) > 0 {
			t.Errorf("%q: got %q and %v, want %v", bad, b, err, syscall.ECONNRESET)
		}
		_ = c.Close()
	}
	say(t, dial(t, r.forward(to)), "hello")
	if n := p.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions, want 1", n)
	}
}

// failing is a Listener whose Accept fails a number of times with a system error.
type failing struct {
	net.Listener
	left int
}

func (f *failing) Accept() (net.Conn, error) {
	if f.left > 0 {
		f.left--
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return f.Listener.Accept()
}

// TestForwardAcceptErrors: system errors are retried and reported once. Serve returns if the
// Listener is closed.
func TestForwardAcceptErrors(t *testing.T) {
	to := target(t, echo)
	r := newRig(t, to)
	l := listen(t)
	done := make(chan error, 1)
	go func() { done <- r.client.Serve(r.ctx, &failing{l, 3}, to) }()
	say(t, dial(t, l.Addr().String()), "hello")
	if n := r.said.count("too many open files"); n != 1 {
		t.Errorf("told %d times, want once: %q", n, r.said.lines)
	}
	_ = l.Close()
	select {
	case err := <-done:
		wantErr(t, "Serve", err, net.ErrClosed)
	case <-soon(t).Done():
		t.Error("Serve has not returned a minute after its Listener was closed")
	}
}

// TestForwardBusyHost: a connection waits while the host is busy.
func TestForwardBusyHost(t *testing.T) {
	to := target(t, echo)
	r := newRig(t, to)
	dials := 0
	busy := forward.NewClient(func(ctx context.Context) (net.Conn, error) {
		if dials++; dials <= 3 {
			return nil, fmt.Errorf("planted: %w", forward.ErrBusy)
		}
		return stream.Config{Ring: stream.MinRing}.Dialer(r.here.Node)(ctx, "", r.there.Addr().String()+"/"+forward.Service)
	}, r.said.say)
	wantOK(t, "Check", busy.Check(soon(t), to))
}

// TestForwardGreedyClient: a Client gets its share of a Server's connections. Further ones wait.
func TestForwardGreedyClient(t *testing.T) {
	to := target(t, echo)
	r := newRig(t, to)
	r.server.SetPlaces(8)
	addr := r.forward(to)
	var open []*net.TCPConn
	for range 4 {
		c := dial(t, addr)
		say(t, c, "hello")
		open = append(open, c)
	}
	waits := dial(t, addr)
	eventually(t, "the server says that the client has its share", func() bool { return r.saidFar.count("its share of 8") == 1 })
	_ = open[0].Close()
	say(t, waits, "hello")
	for _, c := range open[1:] {
		say(t, c, "still there")
	}
}

// TestForwardFloodOfFailures: connections that alternately fail and work print a bounded number of
// lines.
func TestForwardFloodOfFailures(t *testing.T) {
	to := target(t, echo)
	r := newRig(t, to)
	dials := 0
	r.client = forward.NewClient(func(ctx context.Context) (net.Conn, error) {
		if dials++; dials%2 == 1 {
			return nil, errors.New("planted")
		}
		return stream.Config{Ring: stream.MinRing}.Dialer(r.here.Node)(ctx, "", r.there.Addr().String()+"/"+forward.Service)
	}, r.said.say)
	addr := r.forward(to)
	for range 15 {
		wantReset(t, addr)
		say(t, dial(t, addr), "hello")
	}
	if n := r.said.count(""); n != 20 {
		t.Errorf("%d lines for 15 failures, want 20: %q", n, r.said.lines)
	}
}

// TestCheckEnds: a host that accepts a stream without replying delays a Check at most until ctx is
// done.
func TestCheckEnds(t *testing.T) {
	l := listen(t)
	client := forward.NewClient(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	}, t.Logf)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := client.Check(ctx, "db:1"); err == nil {
		t.Error("Check of a silent host: got no error")
	}
}
