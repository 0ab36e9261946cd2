package forward_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	rigs "ibverbx/internal/enginetest"
	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/internal/forward"
	"ibverbx/softnic"
	"ibverbx/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Helpers shared by several packages.
var (
	soon       = rigs.Soon
	wantOK     = rigs.WantOK
	wantErr    = rigs.WantErr
	eventually = rigs.Eventually
)

// said records the lines printed by one side.
type said struct {
	mu    sync.Mutex
	lines []string
}

func (s *said) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// count returns the number of lines that contain text.
func (s *said) count(text string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lines {
		if strings.Contains(l, text) {
			n++
		}
	}
	return n
}

// rig is a Client and a Server on two Nodes.
type rig struct {
	t             *testing.T
	here, there   *nodetest.Host
	client        *forward.Client
	server        *forward.Server
	said, saidFar said
	// ctx is the Client's context; stopClient cancels it. stop also stops the Server, and waits for
	// both.
	ctx              context.Context
	stop, stopClient func()
	runs             sync.WaitGroup
}

// newRig returns a Server with the given targets and a Client of it.
func newRig(t *testing.T, targets ...forward.Target) *rig {
	t.Helper()
	r := &rig{t: t}
	links := []softnic.Link{softnic.NewMemoryLink(nil), softnic.NewMemoryLink(nil)}
	r.here, r.there = (&nodetest.Host{Links: links}).Start(t, nil), (&nodetest.Host{Links: links}).Start(t, nil)
	ctx, cancel := context.WithCancel(soon(t))
	r.ctx, r.stopClient = context.WithCancel(ctx)
	r.stop = sync.OnceFunc(func() {
		cancel()
		r.runs.Wait()
	})
	t.Cleanup(r.stop)
	cfg := stream.Config{Ring: stream.MinRing, Backlog: forward.MaxConns}
	l, err := cfg.Listen(r.there.Node, forward.Service)
	wantOK(t, "Listen", err)
	r.server = forward.NewServer(targets, r.saidFar.say)
	r.run(func() error { return r.server.Serve(ctx, l) })
	addr := r.there.Addr().String() + "/" + forward.Service
	r.client = forward.NewClient(func(ctx context.Context) (net.Conn, error) { return cfg.Dialer(r.here.Node)(ctx, "", addr) }, r.said.say)
	return r
}

// newEchoRig forwards addr to an echo target. ends receives the error of each of its connections.
func newEchoRig(t *testing.T) (r *rig, addr string, ends chan error) {
	t.Helper()
	ends = make(chan error, 1)
	to := target(t, func(c *net.TCPConn) {
		_, err := io.Copy(c, c)
		ends <- err
	})
	r = newRig(t, to)
	return r, r.forward(to), ends
}

// run runs a Serve function, which must return nil.
func (r *rig) run(f func() error) {
	r.runs.Go(func() {
		if err := f(); err != nil {
			r.t.Errorf("Serve: got %v, want no error", err)
		}
	})
}

// forward makes the Client forward to a target, and returns its listening address.
func (r *rig) forward(target forward.Target) string {
	r.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	wantOK(r.t, "Listen", err)
	return r.forwardOn(l, target)
}

// forwardOn is forward with a Listener, which Serve closes.
func (r *rig) forwardOn(l net.Listener, target forward.Target) string {
	r.run(func() error { return r.client.Serve(r.ctx, l, target) })
	return l.Addr().String()
}

// lose closes the session.
func (r *rig) lose() {
	for _, p := range r.here.Peers() {
		if s := p.Service().Session(); s != nil {
			s.End(fmt.Errorf("planted: %w", io.EOF))
		}
	}
}

// target starts a TCP server that handles every connection with f.
func target(t *testing.T, f func(*net.TCPConn)) forward.Target {
	t.Helper()
	l := listen(t)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = c.Close() }()
				f(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return forward.Target(l.Addr().String())
}

// echo returns all received data.
func echo(c *net.TCPConn) { _, _ = io.Copy(c, c) }

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	wantOK(t, "Listen", err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// dial connects to an address. The connection is closed after the test.
func dial(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	wantOK(t, "Dial", err)
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

// wantReset connects to an address and expects a reset, possibly before Dial has returned.
func wantReset(t *testing.T, addr string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, err = io.ReadAll(c)
		_ = c.Close()
	}
	wantErr(t, "Dial and Read", err, syscall.ECONNRESET)
}

// say sends a text and expects it back.
func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := c.Write([]byte(text))
	wantOK(t, "Write", err)
	b := make([]byte, len(text))
	_, err = io.ReadFull(c, b)
	wantOK(t, "Read", err)
	if string(b) != text {
		t.Errorf("got %q, want %q", b, text)
	}
}

// wantNone waits until all streams are closed.
func (r *rig) wantNone() {
	r.t.Helper()
	for _, s := range []*nodetest.Host{r.here, r.there} {
		eventually(r.t, "there are no streams", func() bool { return stream.NodeStats(s.Node).Streams == 0 })
	}
}
