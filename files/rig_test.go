package files

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/internal/service"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/transfer"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(asServer); dir != "" {
		os.Exit(serveDir(dir))
	}
	enginetest.Main(m)
}

// Shared with the tests of other packages.
var (
	soon       = enginetest.Soon
	wantOK     = enginetest.WantOK
	wantErr    = enginetest.WantErr
	eventually = enginetest.Eventually
)

// network connects hosts: a link in memory for each rail, or UDP on the loopback without links.
type network struct {
	links []softnic.Link
	// link is node.Config.Link without links.
	link peer.Link
	// node changes the Nodes of a depot.
	node func(*node.Config)
}

func memoryNetwork(rails int) *network { return &network{links: enginetest.MemoryLinks(rails)} }

// onLinks runs a test on an in-memory network with two rails, on UDP and, on Linux, on UDP with
// shared memory.
func onLinks(t *testing.T, f func(t *testing.T, n *network)) {
	t.Run("memory", func(t *testing.T) { f(t, memoryNetwork(2)) })
	t.Run("udp", func(t *testing.T) { f(t, &network{}) })
	if runtime.GOOS == "linux" {
		t.Run("shm", func(t *testing.T) { f(t, &network{link: peer.LinkShm}) })
	}
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
	t      testing.TB
	cfg    hostConfig
	net    *network
	node   *node.Node
	memory *transfer.Engine
	down   bool
}

// start starts a host, closed at the end of the test.
func (n *network) start(t testing.TB, cfg hostConfig) *host {
	t.Helper()
	h := &host{t: t, cfg: cfg, net: n}
	h.node = (&nodetest.Host{Links: n.links, Link: n.link}).Start(t, func(c *node.Config) {
		c.Auth.Name, c.Listen = cfg.name, cmp.Or(cfg.listen, nodetest.Alone())
		if cfg.node != nil {
			cfg.node(c)
		}
	}).Node
	var err error
	h.memory, err = transfer.New(transfer.Config{Node: h.node})
	wantOK(t, "transfer.New", err)
	cfg.engine.Transfer = h.memory
	h.Engine, err = New(cfg.engine)
	wantOK(t, "New", err)
	t.Cleanup(h.stop)
	return h
}

// stop closes the host as a program does.
func (h *host) stop() {
	if !h.down {
		h.down = true
		wantOK(h.t, "Close", errors.Join(h.Close(soon(h.t)), h.memory.Close(soon(h.t)), h.node.Close()))
	}
}

// restart kills the process without notice and starts another one with the same name and address.
func (h *host) restart() *host {
	h.t.Helper()
	h.down = true
	cfg := h.cfg
	cfg.listen = h.node.Addr().String()
	wantOK(h.t, "Close", errors.Join(h.node.Close(), h.Close(soon(h.t)), h.memory.Close(soon(h.t))))
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

// to connects to another host.
func (h *host) to(other *host) *Peer {
	h.t.Helper()
	p, err := h.Peer(soon(h.t), other.node.Addr().String())
	wantOK(h.t, "Peer", err)
	return p
}

// client returns the connected peer named here.
func (h *host) client() (p *Peer) {
	h.t.Helper()
	eventually(h.t, "the client is connected", func() bool {
		for _, known := range h.peers.All() {
			p = (*Peer)(known)
			p.link.Mu.Lock()
			connected := p.link.Connected()
			p.link.Mu.Unlock()
			if connected && p.Node().Identity().Name == "here" {
				return true
			}
		}
		return false
	})
	return p
}

// session returns the service's session with a peer, or nil. The service gets it before the Node
// reports the peer as ready.
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

// fill fills b with bytes that depend on a seed.
func fill(b []byte, seed uint64) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
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
