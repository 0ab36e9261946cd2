package stream

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/node"
	ibpeer "ibverbx/peer"
	"ibverbx/softnic"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(asSink); kind != "" {
		os.Exit(sink(kind))
	}
	enginetest.Main(m)
}

// What tests of several packages share.
var (
	soon       = enginetest.Soon
	wantOK     = enginetest.WantOK
	wantErr    = enginetest.WantErr
	eventually = enginetest.Eventually
)

// network connects Nodes: a link per rail, or UDP on loopback if links is empty.
type network struct {
	links []softnic.Link
	// link is node.Config.Link without links.
	link ibpeer.Link
}

func memoryNetwork(rails int) *network { return &network{links: enginetest.MemoryLinks(rails)} }

func faultNetwork(t testing.TB, rails int, imp softnic.Impairment) *network {
	t.Helper()
	return &network{links: enginetest.FaultLinks(t, rails, imp)}
}

// start starts a Node, closed at the end of the test.
func (n *network) start(t testing.TB, change func(*node.Config)) *nodetest.Host {
	t.Helper()
	return (&nodetest.Host{Links: n.links, Link: n.link}).Start(t, change)
}

// pair is two Nodes; the first dials the second.
type pair struct {
	here, there *nodetest.Host
	peer        *node.Peer
	l           net.Listener
	cfg         Config
}

func newPair(t testing.TB, n *network, cfg Config) *pair {
	t.Helper()
	p := &pair{here: n.start(t, nil), there: n.start(t, nil), cfg: cfg}
	var err error
	p.l, err = cfg.Listen(p.there.Node, "test")
	wantOK(t, "Listen", err)
	p.peer, err = p.here.Peer(soon(t), p.there.Addr().String())
	wantOK(t, "Peer", err)
	return p
}

// dial opens a stream and returns both ends, closed at the end of the test.
func (p *pair) dial(t testing.TB) (here, there *Conn) {
	t.Helper()
	here, err := p.cfg.Dial(soon(t), p.peer, "test")
	wantOK(t, "Dial", err)
	c, err := p.l.Accept()
	wantOK(t, "Accept", err)
	there = c.(*Conn)
	t.Cleanup(func() {
		var both sync.WaitGroup // closing one end takes seconds while the other is not read
		both.Go(func() { _ = here.Close() })
		both.Go(func() { _ = there.Close() })
		both.Wait()
	})
	return here, there
}

// lose closes the session.
func (p *pair) lose() {
	if s := p.peer.Service().Session(); s != nil {
		s.End(fmt.Errorf("planted: %w", io.EOF))
	}
}

// closeWithin fails if Close fails or does not return soon enough.
func closeWithin(t testing.TB, limit time.Duration, c *Conn) {
	t.Helper()
	began := time.Now()
	wantOK(t, "Close", c.Close())
	if d := time.Since(began); d > limit {
		t.Errorf("Close took %v, want at most %v", d, limit)
	}
}

// random returns n bytes that depend on a seed.
func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(b)
	return b
}

// readAll reads n bytes.
func readAll(t testing.TB, r io.Reader, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	wantOK(t, "Read", err)
	return b
}

// onLinks runs a test on a network in memory with two rails, on UDP and, on Linux, on UDP with shared memory.
func onLinks(t *testing.T, f func(t *testing.T, n *network)) {
	t.Run("memory", func(t *testing.T) { f(t, memoryNetwork(2)) })
	t.Run("udp", func(t *testing.T) { f(t, &network{}) })
	if runtime.GOOS == "linux" {
		t.Run("shm", func(t *testing.T) { f(t, &network{link: ibpeer.LinkShm}) })
	}
}
