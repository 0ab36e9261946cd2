package node_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/internal/rig"
	"ibverbx/internal/rig/noderig"
	"ibverbx/node"
	"ibverbx/softnic"
	"ibverbx/stream"
	"ibverbx/transfer"
)

// process is a Node with an Engine that has a segment "x", and a stream listener "x".
type process struct {
	*noderig.Host
	engine *transfer.Engine
	x      *transfer.Segment
}

func startProcess(t *testing.T, links []softnic.Link, name, listen string, lostTimeout time.Duration) *process {
	t.Helper()
	return startProcessWith(t, links, name, listen, lostTimeout, transfer.Config{})
}

func startProcessWith(t *testing.T, links []softnic.Link, name, listen string, lostTimeout time.Duration, cfg transfer.Config) *process {
	t.Helper()
	p := &process{Host: (&noderig.Host{Links: links}).Start(t, func(c *node.Config) {
		c.Listen, c.LostTimeout, c.Auth.Name = listen, lostTimeout, name
	})}
	var err error
	cfg.Node = p.Node
	p.engine, err = transfer.New(cfg)
	rig.WantOK(t, "transfer.New", err)
	p.x, err = p.engine.Alloc("x", 4096, transfer.SegmentConfig{DefaultAccess: transfer.Write})
	rig.WantOK(t, "Alloc", err)
	l, err := stream.Listen(p.Node, "x")
	rig.WantOK(t, "Listen", err)
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { p.kill(t) })
	return p
}

// kill closes the Node first, so that peers see the loss of a process.
func (p *process) kill(t *testing.T) {
	t.Helper()
	rig.WantOK(t, "Close", errors.Join(p.Close(), p.engine.Close(rig.Soon(t))))
}

// restarted is a restarted peer with the handles from before.
type restarted struct {
	here   *process
	addr   string
	peer   *transfer.Peer
	remote *transfer.Remote
}

// TestRestartedPeerIsFoundAtOnce: a peer is restarted while the Node would wait an hour before it redials. Each kind of call makes it redial
// immediately. After LostTimeout, calls may fail first.
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
			if err := call(rig.Soon(t), r); err != nil && !errors.Is(err, node.ErrRestarted) { // only the new process causes ErrRestarted
				t.Errorf("got %v, want no error", err)
			}
		})
		t.Run(name+" after LostTimeout", func(t *testing.T) {
			r := restartPeer(t, time.Millisecond)
			rig.Eventually(t, "the peer is found", func() bool {
				err := call(rig.Soon(t), r)
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
	links := rig.MemoryLinks(1)
	r := &restarted{here: startProcess(t, links, "here", noderig.Alone(), lostTimeout)}
	r.here.SetPauses(time.Millisecond)
	old := startProcess(t, links, "there", noderig.Alone(), time.Hour)
	r.addr = old.Addr().String()
	var err error
	r.peer, err = r.here.engine.Peer(rig.Soon(t), r.addr)
	rig.WantOK(t, "Peer", err)
	r.remote, err = r.peer.Open(rig.Soon(t), "x", transfer.Write)
	rig.WantOK(t, "Open", err)
	old.kill(t)
	rig.Eventually(t, "the peer is lost", func() bool { return r.peer.Node().State() == node.StateLost })
	startProcess(t, links, "there", r.addr, time.Hour)
	return r
}

// TestOutstandingRequestRedials: a session is lost with a request outstanding, and the Node would wait an hour before it redials. The
// request makes it redial immediately.
func TestOutstandingRequestRedials(t *testing.T) {
	links := rig.MemoryLinks(1)
	here := startProcess(t, links, "here", noderig.Alone(), time.Hour)
	here.SetPauses(time.Millisecond)
	asked := make(chan struct{}, 1)
	var blocked atomic.Bool
	there := startProcessWith(t, links, "there", noderig.Alone(), time.Hour, transfer.Config{
		Authorize: func(ctx context.Context, _ *node.Peer, _ string, _ transfer.Access) (transfer.Access, error) {
			if !blocked.Swap(true) {
				asked <- struct{}{}
				<-ctx.Done()
			}
			return transfer.Write, nil
		},
	})
	p, err := here.engine.Peer(rig.Soon(t), there.Addr().String())
	rig.WantOK(t, "Peer", err)
	opened := make(chan error, 1)
	go func() {
		_, err := p.Open(rig.Soon(t), "x", transfer.Write)
		opened <- err
	}()
	<-asked
	p.Node().Lose()
	rig.WantOK(t, "Open", <-opened)
}
