package transfer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/internal/nullnic"
	"ibverbx/internal/service"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

func TestMain(m *testing.M) {
	enginetest.Main(m)
}

// What tests of several packages share.
var (
	soon       = enginetest.Soon
	wantOK     = enginetest.WantOK
	wantErr    = enginetest.WantErr
	eventually = enginetest.Eventually
)

// network connects hosts: a memory link per rail, or UDP on loopback if links is empty.
type network struct {
	links []softnic.Link
	// link is node.Config.Link without links.
	link peer.Link
	// null selects null NICs, which do not move data.
	null bool
	// wrapped uses package reliable to build RC QPs from UC rails.
	wrapped bool
	// node changes the Nodes of a pair.
	node func(*node.Config)
}

func (n *network) wrap() *network {
	n.wrapped = true
	return n
}

func memoryNetwork(rails int) *network { return &network{links: enginetest.MemoryLinks(rails)} }

func faultNetwork(t testing.TB, rails int, imp softnic.Impairment) *network {
	t.Helper()
	return &network{links: enginetest.FaultLinks(t, rails, imp)}
}

// hold delays the packets from one host to another on a rail, until release.
func (n *network) hold(from, to *host, rail int) (release func()) {
	l := n.links[rail].(*softnic.FaultLink)
	l.Hold(from.nics[rail], to.nics[rail])
	return sync.OnceFunc(func() { l.Release(from.nics[rail], to.nics[rail]) })
}

// hostConfig describes a host of a test.
type hostConfig struct {
	name   string
	listen string
	node   func(*node.Config)
	engine Config
}

// host is a Node with an Engine.
type host struct {
	*Engine
	t    testing.TB
	cfg  hostConfig
	net  *network
	node *node.Node
	nics []*softnic.NIC
	rig  *nodetest.Host
	down bool
}

// start starts a host, closed at the end of the test.
func (n *network) start(t testing.TB, cfg hostConfig) *host {
	t.Helper()
	h := &host{t: t, cfg: cfg, net: n}
	h.rig = &nodetest.Host{Links: n.links, Link: n.link, Wrap: n.wrapper()}
	h.node = h.rig.Start(t, func(c *node.Config) {
		c.Auth.Name, c.Listen, c.Open = cfg.name, cmp.Or(cfg.listen, nodetest.Alone()), h.open
		if cfg.node != nil {
			cfg.node(c)
		}
	}).Node
	h.nics = h.rig.NICs
	var err error
	cfg.engine.Node = h.node
	if h.Engine, err = New(cfg.engine); err != nil {
		t.Fatalf("New: got %v, want no error", err)
	}
	t.Cleanup(h.stop)
	return h
}

func (h *host) open() (nics peer.NICs, err error) {
	if h.net.null {
		nics.Rails = []ibverbx.RailConfig{{Context: nullnic.New("null0", 0x11)}}
		return nics, nil
	}
	return h.rig.Open()
}

// wrapper returns the Wrap of hosts.
func (n *network) wrapper() func(verbs.Context) (verbs.Context, error) {
	if !n.wrapped {
		return nil
	}
	return func(ctx verbs.Context) (verbs.Context, error) { return reliable.Wrap(ctx, reliable.Config{Paths: 2}) }
}

// stop closes the host as a program does.
func (h *host) stop() {
	if h.down {
		return
	}
	h.down = true
	if err := errors.Join(h.Close(soon(h.t)), h.node.Close()); err != nil {
		h.t.Errorf("Close: got %v, want no error", err)
	}
}

// restart kills the process without notice and starts another one with the same name and address.
func (h *host) restart() *host {
	h.t.Helper()
	h.down = true
	addr := h.node.Addr().String()
	if err := errors.Join(h.node.Close(), h.Close(soon(h.t))); err != nil {
		h.t.Errorf("Close: got %v, want no error", err)
	}
	cfg := h.cfg
	cfg.listen = addr
	return h.net.start(h.t, cfg)
}

// startAgain closes the process cleanly and starts another one with the same name and address.
func (h *host) startAgain() *host {
	h.t.Helper()
	cfg := h.cfg
	cfg.listen = h.node.Addr().String()
	h.stop()
	return h.net.start(h.t, cfg)
}

func (h *host) alloc(name string, size int64, public Access) *Segment {
	h.t.Helper()
	s, err := h.Alloc(name, size, SegmentConfig{DefaultAccess: public, Local: name == ""})
	if err != nil {
		h.t.Fatalf("Alloc: got %v, want no error", err)
	}
	return s
}

// device has memory that the CPU cannot access: a GPU or a stand-in.
type device interface {
	Alloc(size int) (*verbs.Memory, error)
}

// on is alloc on a device, if d is one. The memory is freed at the end of the test.
func (h *host) on(d device, name string, size int64, public Access) *Segment {
	h.t.Helper()
	if d == nil {
		return h.alloc(name, size, public)
	}
	mem, err := d.Alloc(int(size))
	wantOK(h.t, "Alloc on a device", err)
	s, err := h.Adopt(name, mem, SegmentConfig{DefaultAccess: public, Local: name == ""})
	wantOK(h.t, "Adopt", err)
	h.t.Cleanup(func() {
		wantOK(h.t, "Close of a segment on a device", s.Close(soon(h.t)))
		wantOK(h.t, "Free", mem.Free())
	})
	return s
}

// to connects to another host.
func (h *host) to(other *host) *Peer {
	h.t.Helper()
	p, err := h.Peer(soon(h.t), other.node.Addr().String())
	if err != nil {
		h.t.Fatalf("Peer: got %v, want no error", err)
	}
	return p
}

func open2(t testing.TB, p *Peer, name string, want Access) *Remote {
	t.Helper()
	r, err := p.Open(soon(t), name, want)
	if err != nil {
		t.Fatalf("Open: got %v, want no error", err)
	}
	return r
}

// pair is two hosts; the first uses a segment of the second.
type pair struct {
	here, there *host
	peer        *Peer
	// local and target have the same size, and remote is target as the first host sees it.
	local, target *Segment
	remote        *Remote
	// back is the first host as the second one sees it.
	back *Peer
}

// publish fills the target and notifies the first host, so that later requests see the data.
func (p *pair) publish(t testing.TB, seed uint64) {
	t.Helper()
	fill(p.target.Bytes(), seed)
	wantOK(t, "Notify", p.back.Notify(soon(t), []byte("filled")))
	wantNote(t, p.here, "filled")
}

func newPair(t testing.TB, n *network, size int64) *pair {
	t.Helper()
	return newPairOn(t, n, size, nil, nil)
}

// newPairOn creates a pair whose segments are device memory, or host memory where the device is nil.
func newPairOn(t testing.TB, n *network, size int64, here, there device) *pair {
	t.Helper()
	a, b := n.start(t, hostConfig{name: "a", node: n.node}), n.start(t, hostConfig{name: "b", node: n.node})
	p := &pair{here: a, there: b, local: a.on(here, "local", size, 0), target: b.on(there, "target", size, Read|Write), peer: a.to(b)}
	p.remote = open2(t, p.peer, "target", Read|Write)
	p.back = b.named("a")
	return p
}

// fill fills b with bytes that depend on a seed.
func fill(b []byte, seed uint64) {
	var key [32]byte
	little.PutUint64(key[:], seed)
	_, _ = rand.NewChaCha8(key).Read(b)
}

func wantSame(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		t.Fatalf("%s: %d bytes differ from %d wanted ones from byte %d on", what, len(got), len(want), at)
	}
}

func wantNote(t testing.TB, h *host, want string) Notification {
	t.Helper()
	n, err := h.Recv(soon(t))
	if err != nil || string(n.Body) != want {
		t.Fatalf("Recv: got %q and error %v, want %q", n.Body, err, want)
	}
	return n
}

// onLinks runs a test on a network in memory with two rails, on UDP and, on Linux, on UDP with shared memory.
func onLinks(t *testing.T, f func(t *testing.T, n *network)) {
	t.Run("memory", func(t *testing.T) { f(t, memoryNetwork(2)) })
	t.Run("udp", func(t *testing.T) { f(t, &network{}) })
	if runtime.GOOS == "linux" {
		t.Run("shm", func(t *testing.T) { f(t, &network{link: peer.LinkShm}) })
	}
}

func number(i int) []byte { return fmt.Appendf(nil, "note %d", i) }

// nodePeer is the argument of Config.Authorize.
type nodePeer = node.Peer

// quiet fails if a notification arrives within some milliseconds.
func quiet(t testing.TB, h *host, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if n, err := h.Recv(ctx); err == nil {
		t.Fatalf("Recv: got %q %s, want nothing", n.Body, what)
	}
}

// session returns the service's session with a peer, or nil. The service has it before the Node reports it
// ready.
func (p *Peer) session() service.Session {
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	return p.link.Session
}

// lose closes the session with a peer.
func lose(p *Peer) {
	if s := p.session(); s != nil {
		s.End(errors.New("planted"))
	}
}
