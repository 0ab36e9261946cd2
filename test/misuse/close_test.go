package misuse

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/files"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/peer"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/stream"
	"ibverbx/transfer"
	"ibverbx/verbs"
)

func TestMain(m *testing.M) { enginetest.Main(m) }

// together calls a Close method from several goroutines concurrently, and once more. One call
// closes, the others wait for it, and all succeed.
func together(t *testing.T, what string, shut func() error) {
	t.Helper()
	var all sync.WaitGroup
	begin := make(chan struct{})
	for range 4 {
		all.Go(func() {
			<-begin
			if err := shut(); err != nil && !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s.Close with others: got %v, want no error", what, err)
			}
		})
	}
	close(begin)
	all.Wait()
	if err := shut(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("%s.Close again: got %v, want no error", what, err)
	}
}

// until adapts a Close method with a context.
func until(t *testing.T, shut func(context.Context) error) func() error {
	return func() error { return shut(enginetest.Soon(t)) }
}

// engines is two connected Nodes with segments, exports and streams.
type engines struct {
	nodes     [2]*nodetest.Host
	transfers [2]*transfer.Engine
	files     [2]*files.Engine
	segment   *transfer.Segment
	export    *files.Export
	listener  net.Listener
	conns     [2]net.Conn
}

func newEngines(t *testing.T) *engines {
	t.Helper()
	x := &engines{}
	links := enginetest.MemoryLinks(2)
	for i := range x.nodes {
		x.nodes[i] = (&nodetest.Host{Links: links}).Start(t, nil)
		var err error
		x.transfers[i], err = transfer.New(transfer.Config{Node: x.nodes[i].Node})
		enginetest.WantOK(t, "transfer.New", err)
		x.files[i], err = files.New(files.Config{Transfer: x.transfers[i]})
		enginetest.WantOK(t, "files.New", err)
	}
	var err error
	x.segment, err = x.transfers[1].Alloc("kv", 1<<16, transfer.SegmentConfig{DefaultAccess: transfer.Write})
	enginetest.WantOK(t, "Alloc", err)
	dir := t.TempDir()
	enginetest.WantOK(t, "WriteFile", os.WriteFile(filepath.Join(dir, "f"), []byte("text"), 0o600))
	x.export, err = x.files[1].Serve(files.ExportConfig{Name: "dir", Path: dir, DefaultAccess: files.Read})
	enginetest.WantOK(t, "Export", err)
	x.listener, err = stream.Listen(x.nodes[1].Node, "echo")
	enginetest.WantOK(t, "Listen", err)
	x.use(t)
	return x
}

// use transfers data through every part once.
func (x *engines) use(t *testing.T) {
	t.Helper()
	ctx := enginetest.Soon(t)
	p, err := x.transfers[0].Peer(ctx, x.nodes[1].Addr().String())
	enginetest.WantOK(t, "Peer", err)
	remote, err := p.Open(ctx, "kv", transfer.Write)
	enginetest.WantOK(t, "Open", err)
	local, err := x.transfers[0].Alloc("", 1<<16, transfer.SegmentConfig{Local: true})
	enginetest.WantOK(t, "Alloc", err)
	enginetest.WantOK(t, "Do", p.Batch().Put(remote.At(0), local.Slice(0, 1<<16)).Notify([]byte("x")).Do(ctx))
	f, err := x.files[0].Peer(ctx, x.nodes[1].Addr().String())
	enginetest.WantOK(t, "files.Peer", err)
	enginetest.WantOK(t, "Get", f.Get("dir/f", filepath.Join(t.TempDir(), "f"), files.TransferConfig{}).Wait(ctx))
	c, err := stream.Dial(ctx, p.Node(), "echo")
	enginetest.WantOK(t, "Dial", err)
	x.conns[0] = c
	x.conns[1], err = x.listener.Accept()
	enginetest.WantOK(t, "Accept", err)
}

// TestConcurrentClose closes each part of two connected Nodes from several goroutines, from the outermost part inward.
func TestConcurrentClose(t *testing.T) {
	x := newEngines(t)
	together(t, "stream.Conn", x.conns[0].Close)
	together(t, "stream.Conn", x.conns[1].Close)
	together(t, "stream.Listener", x.listener.Close)
	together(t, "files.Export", x.export.Close)
	together(t, "transfer.Segment", until(t, x.segment.Close))
	for i := range x.nodes {
		together(t, "files.Engine", until(t, x.files[i].Close))
		together(t, "transfer.Engine", until(t, x.transfers[i].Close))
	}
	for _, p := range x.nodes[0].Peers() {
		together(t, "node.Peer", p.Close)
	}
	for i := range x.nodes {
		together(t, "node.Node", x.nodes[i].Close)
	}
}

// TestConcurrentCloseOfEngine closes an Engine while it has segments, grants and a session. Its mailboxes are freed once.
func TestConcurrentCloseOfEngine(t *testing.T) {
	for range 5 {
		x := newEngines(t)
		for i := range x.nodes {
			together(t, "files.Engine", until(t, x.files[i].Close))
		}
		var both sync.WaitGroup
		for i := range x.nodes {
			both.Go(func() { together(t, "transfer.Engine", until(t, x.transfers[i].Close)) })
		}
		both.Wait()
	}
}

// TestConcurrentCloseOfSession closes both ends of a VirtualQP and the Listener.
func TestConcurrentCloseOfSession(t *testing.T) {
	ctx := enginetest.Soon(t)
	cfg := peer.Config{Auth: bootstrap.Config{Token: []byte("a token of this test only")}, Regions: []peer.RegionConfig{{Name: "inbox", Size: 4096}}}
	l, err := peer.Listen(ctx, "127.0.0.1:0", cfg)
	enginetest.WantOK(t, "Listen", err)
	ends := [2]*peer.Session{}
	var both sync.WaitGroup
	both.Go(func() {
		if ends[0], err = l.Accept(ctx); err != nil {
			t.Errorf("Accept: got %v, want no error", err)
		}
	})
	dialed, dialErr := peer.Dial(ctx, l.Addr().String(), cfg)
	enginetest.WantOK(t, "Dial", dialErr)
	both.Wait()
	ends[1] = dialed
	if ends[0] == nil {
		t.FailNow()
	}
	for _, s := range ends {
		together(t, "peer.Session", s.Close)
	}
	together(t, "peer.Listener", l.Close)
}

// TestConcurrentCloseOfNICs closes the objects of a software NIC and of a wrapped one.
func TestConcurrentCloseOfNICs(t *testing.T) {
	for name, wrap := range map[string]func(verbs.Context) (verbs.Context, error){
		"softnic":  func(c verbs.Context) (verbs.Context, error) { return c, nil },
		"reliable": func(c verbs.Context) (verbs.Context, error) { return reliable.Wrap(c, reliable.Config{}) },
	} {
		t.Run(name, func(t *testing.T) {
			nic, err := softnic.New(enginetest.MemoryLinks(1)[0], softnic.Config{})
			enginetest.WantOK(t, "New", err)
			inner, err := nic.Open()
			enginetest.WantOK(t, "Open", err)
			ctx, err := wrap(inner)
			enginetest.WantOK(t, "Wrap", err)
			cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 16})
			enginetest.WantOK(t, "CreateCQ", err)
			pd, err := ctx.AllocPD()
			enginetest.WantOK(t, "AllocPD", err)
			qp, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxRecvWR: 4})
			enginetest.WantOK(t, "CreateQP", err)
			for _, o := range []struct {
				what string
				shut func() error
			}{{"QP", qp.Close}, {"PD", pd.Close}, {"CQ", cq.Close}, {"Context", ctx.Close}, {"NIC", nic.Close}} {
				together(t, o.what, o.shut)
			}
		})
	}
}

// TestConcurrentCloseOfRails closes a Region and the Rails. VirtualQPs and VirtualCQs belong to one goroutine at a time.
func TestConcurrentCloseOfRails(t *testing.T) {
	_, cfgs, shut, err := enginetest.OpenNICs(enginetest.MemoryLinks(2), softnic.Config{}, nil)
	enginetest.WantOK(t, "OpenNICs", err)
	defer func() { enginetest.WantOK(t, "Close", shut()) }()
	rails, err := ibverbx.NewRails(cfgs...)
	enginetest.WantOK(t, "NewRails", err)
	mem, err := verbs.AllocMemory(4096, nil)
	enginetest.WantOK(t, "AllocMemory", err)
	region, err := rails.Register(mem, verbs.AccessAll)
	enginetest.WantOK(t, "Register", err)
	together(t, "Region", region.Close)
	together(t, "Rails", rails.Close)
	enginetest.WantOK(t, "Free", mem.Free())
}
