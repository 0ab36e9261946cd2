package stream_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network is a kind of link between two Nodes.
type network struct {
	name string
	// links returns the links of the client's NICs and of the server's. Nil means UDP on loopback.
	links func(t testing.TB) (client, server []softnic.Link)
}

var networks = []network{
	{"memory", func(testing.TB) (client, server []softnic.Link) {
		links := []softnic.Link{softnic.NewMemoryLink(nil), softnic.NewMemoryLink(nil)}
		return links, links
	}},
	{"fault", func(t testing.TB) (client, server []softnic.Link) {
		var links []softnic.Link
		for i := range 2 {
			imp := softnic.Impairment{Loss: 0.001, Reorder: 0.01, Delay: 10 * time.Microsecond}
			link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: uint64(i + 1), Impairment: imp})
			if err != nil {
				t.Fatalf("NewFaultLink: got %v, want no error", err)
			}
			links = append(links, link)
		}
		return links, links
	}},
	{"udp", nil},
	{"shm", shmLinks},
}

// shmLinks returns the two ends of a shared-memory link, which works within one process.
func shmLinks(t testing.TB) (client, server []softnic.Link) {
	if runtime.GOOS != "linux" {
		t.Skip("shared memory is for Linux")
	}
	l, err := net.Listen("unixpacket", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	defer l.Close()
	var ends [2]softnic.Link
	var errs [2]error
	end := func(i int, open func() (net.Conn, error)) {
		c, err := open()
		if err == nil {
			ends[i], err = softnic.NewShmLink(c.(*net.UnixConn))
		}
		errs[i] = err
	}
	var both sync.WaitGroup // each end waits for the other
	both.Go(func() { end(0, func() (net.Conn, error) { return net.Dial("unixpacket", l.Addr().String()) }) })
	both.Go(func() { end(1, l.Accept) })
	both.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatalf("NewShmLink: got %v, want no error", err)
	}
	return ends[:1], ends[1:]
}

// pair is two Nodes.
type pair struct{ client, server *node.Node }

// connect returns two Nodes, closed at the end of the test.
func connect(t testing.TB, n network) *pair {
	t.Helper()
	var client, server []softnic.Link
	if n.links != nil {
		client, server = n.links(t)
	}
	return &pair{start(t, client), start(t, server)}
}

// start starts a Node with a NIC on each link.
func start(t testing.TB, links []softnic.Link) *node.Node {
	t.Helper()
	n, err := node.New(soon(t), node.Config{
		Auth:   bootstrap.Config{InsecurePlaintextOnLoopback: true},
		Listen: "127.0.0.1:0", IdleAfter: -1, Shards: 1, Fabric: peer.Fabric{Unsealed: true},
		Open: func() (nics peer.NICs, err error) { return open(links) },
	})
	if err != nil {
		t.Fatalf("node.New: got %v, want no error", err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("Node.Close: got %v, want no error", err)
		}
	})
	return n
}

func open(links []softnic.Link) (nics peer.NICs, err error) {
	if links == nil {
		return peer.OpenSoftNICs(netip.MustParseAddr("127.0.0.1"))()
	}
	var all []*softnic.NIC
	nics.Close = func() (err error) {
		for _, nic := range all {
			err = errors.Join(err, nic.Close())
		}
		return err
	}
	for _, link := range links {
		nic, err := softnic.New(link, softnic.Config{})
		if err != nil {
			return nics, err
		}
		all = append(all, nic)
		ctx, err := nic.Open()
		if err != nil {
			return nics, err
		}
		nics.Rails = append(nics.Rails, ibverbx.RailConfig{Context: ctx})
	}
	return nics, nil
}

// listen creates a service on the server, closed at the end of the test.
func (p *pair) listen(t testing.TB, service string) net.Listener {
	t.Helper()
	l, err := stream.Listen(p.server, service)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// addr returns the address of a service on the server.
func (p *pair) addr(service string) string { return p.server.Addr().String() + "/" + service }

func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// onNetworks runs a test on every kind of link.
func onNetworks(t *testing.T, f func(t *testing.T, p *pair)) {
	for _, n := range networks {
		t.Run(n.name, func(t *testing.T) { f(t, connect(t, n)) })
	}
}
