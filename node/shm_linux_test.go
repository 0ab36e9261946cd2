package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// overUDP configures a software NIC on UDP and a link.
func overUDP(last byte, link peer.Link) func(*Config) {
	return func(c *Config) {
		c.Open, c.Link, c.Unsealed = peer.OpenSoftNICs(netip.AddrFrom4([4]byte{127, 0, 1, last})), link, true
	}
}

// sealed makes a host authenticate with a token and seal its packets.
func sealed(c *Config) {
	c.Auth.InsecurePlaintextOnLoopback, c.Auth.Token, c.Unsealed = false, []byte("a token of this test only"), false
}

// direct returns the number of requests that the host's NICs executed in peers' memory.
func (h *host) direct() (n uint64) {
	for _, r := range h.node.realms[""].rails.Configs() {
		n += r.Context.Device().(*softnic.NIC).Stats().Direct
	}
	return n
}

// share reads from a Peer until the NIC does so directly in the peer's memory.
func (h *host) share(p *Peer) {
	h.t.Helper()
	was := h.direct()
	h.eventually("a READ is executed in the peer's memory", func() bool {
		h.do(p, h.job(p, verbs.OpRDMARead, 0, 256<<10))
		return h.direct() > was
	})
}

// TestSharedMemory: Nodes of one user on one host share memory, with sealed and plain sessions,
// after a session was lost and after one was parked. Stats report it.
func TestSharedMemory(t *testing.T) {
	for name, change := range map[string]func(*Config){"plain": func(*Config) {}, "sealed": sealed} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(0)
			a := n.start(t, overUDP(1, peer.LinkShm), change, idleAfter(100*time.Millisecond))
			b := n.start(t, overUDP(2, peer.LinkAuto), change, idleAfter(100*time.Millisecond))
			there, here := a.meet(b)
			for _, p := range []*Peer{there, here} {
				if s := p.Stats(); s.Link != peer.LinkShm || s.LinkReason != "" || s.Agreed.Sealed != (name == "sealed") {
					t.Errorf("link %q (%q), sealed %v, want shm", s.Link, s.LinkReason, s.Agreed.Sealed)
				}
			}
			a.share(there)
			b.share(here)
			lose(there)
			a.share(there)
			wait(t, there, StateParked)
			a.share(there)
			a.do(there, a.write(there, 0, 100, 7))
			b.eventually("the immediate arrives", func() bool { return b.count() == 1 })
		})
	}
}

// TestSharedMemoryLost: a session that loses its shared memory continues over UDP, with its operations in flight.
func TestSharedMemoryLost(t *testing.T) {
	n := newNetwork(0)
	a, b := n.start(t, overUDP(3, peer.LinkAuto), sealed), n.start(t, overUDP(4, peer.LinkAuto), sealed)
	there, here := a.meet(b)
	a.share(there)
	b.share(here)
	var jobs []*job
	for i := range 100 {
		if i == 50 {
			cutSharedMemory(t)
		}
		j := a.write(there, 0, 64<<10, uint32(i))
		there.Service().Submit(&j.Op)
		jobs = append(jobs, j)
	}
	for _, j := range jobs {
		if err := j.result(t); err != nil {
			t.Fatalf("an operation ended with %v, want no error", err)
		}
	}
	b.eventually("all immediates arrive", func() bool { return b.count() == 100 })
	a.eventually("a READ is sent in packets", func() bool { // the NICs notice the loss some time later
		was := a.direct()
		a.do(there, a.job(there, verbs.OpRDMARead, 0, 256<<10))
		return a.direct() == was
	})
	if s := there.Stats(); s.Sessions != 1 {
		t.Errorf("%d sessions, want 1", s.Sessions)
	}
}

// cutSharedMemory shuts down this process's shared-memory sockets.
func cutSharedMemory(t *testing.T) {
	t.Helper()
	cut := 0
	for fd := range 1024 {
		if typ, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_TYPE); err == nil && typ == syscall.SOCK_SEQPACKET {
			if syscall.Shutdown(fd, syscall.SHUT_RDWR) == nil {
				cut++
			}
		}
	}
	if cut == 0 {
		t.Fatal("no socket of shared memory was found")
	}
}

// TestSharedMemoryRefused: with a missing or different Link, or on NICs without shared memory,
// sessions use the NICs and report the reason. A Node that requires shared memory refuses such
// sessions.
func TestSharedMemoryRefused(t *testing.T) {
	n := newNetwork(0)
	b := n.start(t, overUDP(5, ""))
	a := n.start(t, overUDP(6, peer.LinkAuto))
	there, here := a.meet(b)
	for _, p := range []*Peer{there, here} {
		if s := p.Stats(); s.Link != peer.LinkUDP || s.LinkReason == "" {
			t.Errorf("link %q (%q), want udp with a reason", s.Link, s.LinkReason)
		}
	}
	strict := n.start(t, overUDP(7, peer.LinkShm))
	ctx, cancel := context.WithCancel(soon(t))
	ended := make(chan error)
	go func() {
		_, err := strict.node.Peer(ctx, b.node.Addr().String())
		ended <- err
	}()
	strict.eventually("the peer is lost because of the link", func() bool {
		peers := strict.node.Peers()
		return len(peers) > 0 && errors.Is(peers[0].Err(), peer.ErrMismatch) && strings.Contains(peers[0].Err().Error(), "wants udp")
	})
	cancel()
	if err := <-ended; !errors.Is(err, peer.ErrMismatch) {
		t.Errorf("Peer: got %v, want %v", err, peer.ErrMismatch)
	}
	if _, err := New(soon(t), Config{Auth: bootstrap.Config{InsecurePlaintextOnLoopback: true}, Fabric: peer.Fabric{Link: "tcp"}}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("New with Link tcp: got %v, want %v", err, verbs.ErrInvalid)
	}
}

// asNode runs the test binary as a Node whose peers write to it, until it is killed.
const asNode = "IBVERBX_TEST_NODE"

// TestSharedMemoryKilled: after a process with shared memory is killed, operations fail or wait as
// over UDP, the next process is found, and the shared memory's mappings, descriptors and files
// disappear.
func TestSharedMemoryKilled(t *testing.T) {
	if os.Getenv(asNode) != "" {
		h := newNetwork(0).start(t, overUDP(8, peer.LinkShm), named("far"), at(testAddr(os.Getenv(asNode))))
		fmt.Println("listening", h.node.Addr())
		select {}
	}
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	a := newNetwork(0).start(t, overUDP(9, peer.LinkAuto), named("near"))
	addr, own := "127.0.1.8:0", sharedFiles(t)
	var there *Peer
	for round := range 2 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSharedMemoryKilled$")
		cmd.Env, cmd.Stderr = append(os.Environ(), asNode+"="+addr), os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if _, scan := fmt.Sscanf(line, "listening %s", &addr); err != nil || scan != nil {
			t.Fatalf("the other process prints %q, %v", line, err)
		}
		if there, err = a.node.Peer(soon(t), addr); err != nil {
			t.Fatalf("round %d: Peer: got %v, want no error", round, err)
		}
		a.share(there)
		if s := there.Stats(); s.Link != peer.LinkShm {
			t.Errorf("round %d: link %q (%q), want shm", round, s.Link, s.LinkReason)
		}
		j := a.job(there, verbs.OpRDMARead, 0, slabBytes)
		there.Service().Submit(&j.Op)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		wait(t, there, StateLost)
	}
	a.eventually("segments are unmapped and sockets closed", func() bool { return sharedFiles(t) == own })
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
		t.Errorf("files %v are left, %v, want none", left, err)
	}
}

// testAddr is an address in text.
type testAddr string

func (testAddr) Network() string  { return "tcp" }
func (a testAddr) String() string { return string(a) }

// sharedFiles returns the numbers of mapped segments and of shared-memory sockets in this process.
func sharedFiles(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	n := strings.Count(string(maps), "memfd:ibverbx")
	for fd := range 1024 {
		if typ, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_TYPE); err == nil && typ == syscall.SOCK_SEQPACKET {
			n++
		}
	}
	return n
}

// TestRequireSealed: a Node that requires sealed packets refuses plain-text sessions, whichever
// side dials, and accepts a sealing peer.
func TestRequireSealed(t *testing.T) {
	n := newNetwork(0)
	require := func(c *Config) { c.RequireSealed, c.Unsealed = true, false }
	a, b := n.start(t, overUDP(1, peer.LinkUDP), require), n.start(t, overUDP(2, peer.LinkUDP), func(c *Config) { c.Unsealed = false })
	for _, pair := range [][2]*host{{a, b}, {b, a}} {
		ctx, cancel := context.WithCancel(soon(t))
		done := make(chan error, 1)
		go func() {
			_, err := pair[0].node.Peer(ctx, pair[1].node.Addr().String())
			done <- err
		}()
		eventually(t, "the session is refused", func() bool {
			return slices.ContainsFunc(a.node.Peers(), func(p *Peer) bool { return errors.Is(p.Err(), peer.ErrMismatch) })
		})
		cancel()
		if err := <-done; err == nil {
			t.Error("Peer over plain text: got no error, want one")
		}
		for _, p := range a.node.Peers() {
			_ = p.Close()
		}
	}
	if s := a.node.Stats(); s.Sessions != 0 {
		t.Errorf("there were %d sessions over plain text, want none", s.Sessions)
	}
	c, d := n.start(t, overUDP(3, peer.LinkUDP), require, sealed), n.start(t, overUDP(4, peer.LinkUDP), sealed)
	there, _ := c.meet(d)
	if !there.Stats().Agreed.Sealed {
		t.Error("the session of a Node that requires sealed packets is not sealed")
	}
	if _, err := New(soon(t), Config{Fabric: peer.Fabric{RequireSealed: true, Unsealed: true}, Open: a.node.cfg.Open}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("New with Unsealed and RequireSealed: got %v, want %v", err, verbs.ErrInvalid)
	}
}
