package node_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/node"
	"ibverbx/softnic"
	"ibverbx/stream"
	"ibverbx/transfer"
)

// process is a Node with an Engine, a segment "x" and a stream listener "x".
type process struct {
	*nodetest.Host
	engine *transfer.Engine
	x      *transfer.Segment
}

func startProcess(t *testing.T, links []softnic.Link, name, listen string, lostTimeout time.Duration) *process {
	t.Helper()
	return startProcessWith(t, links, name, listen, lostTimeout, transfer.Config{})
}

func startProcessWith(t *testing.T, links []softnic.Link, name, listen string, lostTimeout time.Duration, cfg transfer.Config) *process {
	t.Helper()
	p := &process{Host: (&nodetest.Host{Links: links}).Start(t, func(c *node.Config) {
		c.Listen, c.LostTimeout, c.Auth.Name = listen, lostTimeout, name
	})}
	var err error
	cfg.Node = p.Node
	p.engine, err = transfer.New(cfg)
	enginetest.WantOK(t, "transfer.New", err)
	p.x, err = p.engine.Alloc("x", 4096, transfer.SegmentConfig{DefaultAccess: transfer.Write})
	enginetest.WantOK(t, "Alloc", err)
	l, err := stream.Listen(p.Node, "x")
	enginetest.WantOK(t, "Listen", err)
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { p.kill(t) })
	return p
}

// kill closes the Node first, so that peers observe a lost process.
func (p *process) kill(t *testing.T) {
	t.Helper()
	enginetest.WantOK(t, "Close", errors.Join(p.Close(), p.engine.Close(enginetest.Soon(t))))
}

// restarted is a restarted peer with its earlier handles.
type restarted struct {
	here   *process
	addr   string
	peer   *transfer.Peer
	remote *transfer.Remote
}

// TestRestartedPeerIsFoundAtOnce: a peer is restarted while the Node would wait an hour before
// redialing. Each kind of call makes it redial immediately. After LostTimeout, calls may fail
// first.
func TestRestartedPeerIsFoundAtOnce(t *testing.T) {
	calls := map[string]func(ctx context.Context, r *restarted) error{
		"Node.Peer": func(ctx context.Context, r *restarted) error {
			_, err := r.here.Peer(ctx, r.addr)
			return err
		},
		"Engine.Peer": func(ctx context.Context, r *restarted) error {
			_, err := r.here.engine.Peer(ctx, r.addr)
			return err
		},
		"Open": func(ctx context.Context, r *restarted) error {
			_, err := r.peer.Open(ctx, "x", transfer.Write)
			return err
		},
		"Put": func(ctx context.Context, r *restarted) error {
			return r.peer.Put(ctx, r.remote.At(0), r.here.x.Slice(0, 8)).Wait(ctx)
		},
		"Notify": func(ctx context.Context, r *restarted) error { return r.peer.Notify(ctx, []byte("x")) },
		"stream.Dial": func(ctx context.Context, r *restarted) error {
			c, err := stream.Dial(ctx, r.peer.Node(), "x")
			if err == nil {
				err = c.Close()
			}
			return err
		},
		"stream.Dialer": func(ctx context.Context, r *restarted) error {
			c, err := stream.Dialer(r.here.Node)(ctx, "", r.addr+"/x")
			if err == nil {
				err = c.Close()
			}
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			r := restartPeer(t, time.Hour)
			if err := call(enginetest.Soon(t), r); err != nil && !errors.Is(err, node.ErrRestarted) { // only the new process causes ErrRestarted
				t.Errorf("got %v, want no error", err)
			}
		})
		t.Run(name+" after LostTimeout", func(t *testing.T) {
			r := restartPeer(t, time.Millisecond)
			enginetest.Eventually(t, "the peer is found", func() bool {
				err := call(enginetest.Soon(t), r)
				if err != nil && !errors.Is(err, node.ErrPeerGone) && !errors.Is(err, node.ErrRestarted) {
					t.Fatalf("got %v, want no error, ErrPeerGone or ErrRestarted", err)
				}
				return r.peer.Node().State() == node.StateReady
			})
		})
	}
}

// restartPeer connects a process to a peer and restarts the peer.
func restartPeer(t *testing.T, lostTimeout time.Duration) *restarted {
	t.Helper()
	links := enginetest.MemoryLinks(1)
	r := &restarted{here: startProcess(t, links, "here", nodetest.Alone(), lostTimeout)}
	r.here.SetPauses(time.Millisecond)
	old := startProcess(t, links, "there", nodetest.Alone(), time.Hour)
	r.addr = old.Addr().String()
	var err error
	r.peer, err = r.here.engine.Peer(enginetest.Soon(t), r.addr)
	enginetest.WantOK(t, "Peer", err)
	r.remote, err = r.peer.Open(enginetest.Soon(t), "x", transfer.Write)
	enginetest.WantOK(t, "Open", err)
	old.kill(t)
	enginetest.Eventually(t, "the peer is lost", func() bool { return r.peer.Node().State() == node.StateLost })
	startProcess(t, links, "there", r.addr, time.Hour)
	return r
}

// TestOutstandingRequestRedials: a session is lost with a request outstanding, and the Node would
// wait an hour before redialing. The request makes it redial immediately.
func TestOutstandingRequestRedials(t *testing.T) {
	links := enginetest.MemoryLinks(1)
	here := startProcess(t, links, "here", nodetest.Alone(), time.Hour)
	here.SetPauses(time.Millisecond)
	asked := make(chan struct{}, 1)
	var blocked atomic.Bool
	there := startProcessWith(t, links, "there", nodetest.Alone(), time.Hour, transfer.Config{
		Authorize: func(ctx context.Context, _ *node.Peer, _ string, _ transfer.Access) (transfer.Access, error) {
			if !blocked.Swap(true) {
				asked <- struct{}{}
				<-ctx.Done()
			}
			return transfer.Write, nil
		},
	})
	p, err := here.engine.Peer(enginetest.Soon(t), there.Addr().String())
	enginetest.WantOK(t, "Peer", err)
	opened := make(chan error, 1)
	go func() {
		_, err := p.Open(enginetest.Soon(t), "x", transfer.Write)
		opened <- err
	}()
	<-asked
	p.Node().Lose()
	enginetest.WantOK(t, "Open", <-opened)
}
