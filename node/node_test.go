package node

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// TestWriteAndRead: operations of any length move data in both directions, and immediates arrive after the
// data.
func TestWriteAndRead(t *testing.T) {
	n := newNetwork(2)
	a, b := n.start(t), n.start(t)
	there, here := a.meet(b)
	for i := range a.mem.Bytes() {
		a.mem.Bytes()[i] = byte(i * 7)
	}
	a.do(there, a.job(there, verbs.OpRDMAWrite, 0, slabBytes))
	a.do(there, a.write(there, 0, 64, 5))
	b.eventually("the immediate has come", func() bool { return b.count() == 1 })
	if !bytes.Equal(a.mem.Bytes(), b.mem.Bytes()) {
		t.Error("the bytes differ after a write")
	}
	clear(a.mem.Bytes())
	b.do(here, b.job(here, verbs.OpRDMARead, 64, 1000))
	for i, v := range b.mem.Bytes()[64:1064] {
		if v != 0 {
			t.Fatalf("byte %d is %d after a read, want 0", i, v)
		}
	}
	if s := a.node.Stats(); s.Ready != 1 || s.Counters.BytesWritten != slabBytes+64 || s.Counters.Notified != 1 || s.Counters.Operations != 2 {
		t.Errorf("Stats of the writer: got %+v", s)
	}
	if s := b.node.Stats(); s.Counters.BytesRead != 1000 || s.Counters.Notifications != 1 {
		t.Errorf("Stats of the reader: got %+v", s)
	}
}

// TestPeerIsShared: goroutines that request the same address, or another address of the same peer, get the
// same Peer over one session.
func TestPeerIsShared(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	_, port, _ := net.SplitHostPort(b.node.Addr().String())
	var all sync.WaitGroup
	peers := make([]*Peer, 16)
	for i := range peers {
		all.Go(func() {
			addr := net.JoinHostPort([]string{"127.0.0.1", "localhost"}[i%2], port)
			var err error
			if peers[i], err = a.node.Peer(soon(t), addr); err != nil {
				t.Errorf("Peer(%s): got %v, want no error", addr, err)
			}
		})
	}
	all.Wait()
	for i, p := range peers {
		if p != peers[0] {
			t.Errorf("call %d returned another Peer", i)
		}
	}
	if s := a.node.Stats(); s.Ready != 1 || s.Sessions != 1 {
		t.Errorf("Stats: got %+v, want one session", s)
	}
}

// TestFirstErrorAtOnce: dialing an address without a listener, or a peer that refuses, fails the call.
func TestFirstErrorAtOnce(t *testing.T) {
	n := newNetwork(1)
	a := n.start(t)
	b := n.start(t, func(c *Config) {
		c.Authorize = func(bootstrap.Peer) (Grant, error) { return Grant{}, errors.New("nobody") }
	})
	if _, err := a.node.Peer(soon(t), b.node.Addr().String()); !errors.Is(err, bootstrap.ErrAuth) {
		t.Errorf("Peer of a Node that admits nobody: got %v, want bootstrap.ErrAuth", err)
	}
	addr := b.node.Addr().String()
	if err := b.node.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
	if _, err := a.node.Peer(soon(t), addr); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Peer where nobody listens: got %v, want an error at once", err)
	}
	if _, err := a.node.Peer(soon(t), a.node.Addr().String()); !errors.Is(err, ErrRefused) {
		t.Errorf("Peer of the Node itself: got %v, want ErrRefused", err)
	}
	if s := a.node.Stats(); s.Ready+s.Lost+s.Connecting != 0 {
		t.Errorf("Stats: got %+v, want no peers", s)
	}
}

// TestSilentPeerBlocksNobody: silent authenticated peers do not block others from being served.
func TestSilentPeerBlocksNobody(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	var silent []*bootstrap.Conn
	for range 20 {
		c, err := bootstrap.Dial(soon(t), b.node.Addr().String(), bootstrap.Config{InsecurePlaintextOnLoopback: true})
		if err != nil {
			t.Fatalf("Dial: got %v, want no error", err)
		}
		defer func() { _ = c.Close() }()
		silent = append(silent, c)
	}
	began := time.Now()
	there, _ := a.meet(b)
	a.do(there, a.write(there, 0, 8, 1))
	if time.Since(began) >= helloTime {
		t.Skip("the machine is too slow to tell")
	}
	for _, c := range silent {
		if c.Err() != nil {
			t.Errorf("a silent peer was closed early: %v", c.Err())
		}
	}
}

// TestBothDial: two Nodes that dial each other concurrently share one session, and operations work in both
// directions at the same time.
func TestBothDial(t *testing.T) {
	for range 8 {
		n := newNetwork(1)
		a, b := n.start(t), n.start(t)
		var there, here *Peer
		var both sync.WaitGroup
		var errs [2]error
		both.Go(func() { there, errs[0] = a.node.Peer(soon(t), b.node.Addr().String()) })
		both.Go(func() { here, errs[1] = b.node.Peer(soon(t), a.node.Addr().String()) })
		both.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatalf("Peer: got %v, want no error", err)
		}
		a.do(there, a.write(there, 0, 8, 1))
		b.do(here, b.write(here, 64, 8, 1))
		eventually(t, "both have one session", func() bool { return a.node.Stats().Ready == 1 && b.node.Stats().Ready == 1 })
		if len(a.node.Peers()) != 1 || len(b.node.Peers()) != 1 {
			t.Errorf("got %d and %d Peers, want one each", len(a.node.Peers()), len(b.node.Peers()))
		}
		if err := errors.Join(a.node.Close(), b.node.Close()); err != nil {
			t.Errorf("Close: got %v, want no error", err)
		}
	}
}

// TestCloseAsASessionBegins: closing a Node while the other side starts to use the session does not leak a
// VirtualQP.
func TestCloseAsASessionBegins(t *testing.T) {
	for range 16 {
		n := newNetwork(1)
		a, b := n.start(t), n.start(t)
		if _, err := a.node.Peer(soon(t), b.node.Addr().String()); err != nil {
			t.Fatalf("Peer: got %v, want no error", err)
		}
		if err := errors.Join(b.node.Close(), a.node.Close()); err != nil {
			t.Fatalf("Close: got %v, want no error", err)
		}
	}
}

// TestShutdownWaits: Shutdown waits for operations, Close does not.
func TestShutdownWaits(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	there, here := a.meet(b)
	jobs := make([]*job, 32)
	for i := range jobs {
		jobs[i] = a.job(there, verbs.OpRDMAWrite, 0, slabBytes)
		there.Service().Submit(&jobs[i].Op)
	}
	if err := a.node.Shutdown(soon(t)); err != nil {
		t.Errorf("Shutdown: got %v, want no error", err)
	}
	for _, j := range jobs {
		if err := j.result(t); err != nil {
			t.Fatalf("an operation during Shutdown ended with %v, want no error", err)
		}
	}
	wait(t, here, StateLost)
	j := &job{done: make(chan error, 1)}
	j.Op = service.Op{Blocks: jobs[0].Blocks, Sink: j}
	there.Service().Submit(&j.Op)
	if err := j.result(t); !errors.Is(err, ErrClosed) {
		t.Errorf("an operation after Shutdown ended with %v, want ErrClosed", err)
	}
}

// TestShutdownWaitsForInbox: shutdown waits for a submitted operation, even one that no goroutine has picked
// up.
func TestShutdownWaitsForInbox(t *testing.T) {
	a, there, hold, release := held(t)
	j := a.job(there, verbs.OpRDMAWrite, 0, 8)
	hold()
	there.shard.mu.Lock()
	there.Service().Submit(&j.Op)
	there.shard.mu.Unlock() // unlike unlock it leaves the operation in the inbox
	time.AfterFunc(10*time.Millisecond, release)
	if err := a.node.Shutdown(soon(t)); err != nil {
		t.Errorf("Shutdown: got %v, want no error", err)
	}
	if err := j.result(t); err != nil {
		t.Errorf("an operation during Shutdown ended with %v, want no error", err)
	}
}

// TestDefaultPort: an address without a port is dialed at DefaultPort, also an IPv6 address in brackets.
func TestDefaultPort(t *testing.T) {
	a := newNetwork(1).start(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for addr, want := range map[string]string{
		"127.0.0.1": "127.0.0.1:18510", "::1": "[::1]:18510", "[::1]": "[::1]:18510", "[fe80::1%none]": "[fe80::1%none]:18510", "[::1]:0": "[::1]:0",
	} {
		if _, err := a.node.Peer(ctx, addr); err == nil || !strings.HasPrefix(err.Error(), "peer at "+want+": ") {
			t.Errorf("Peer(%q): got %v, want the error of %s", addr, err, want)
		}
	}
}

// TestCountersOfClosedPeer: the Node counts operations that fail because their Peer is closed.
func TestCountersOfClosedPeer(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	there, _ := a.meet(b)
	a.nics[0].SetPort(false)
	jobs := make([]*job, 3)
	for i := range jobs {
		jobs[i] = a.job(there, verbs.OpRDMAWrite, 0, 8)
		there.Service().Submit(&jobs[i].Op)
	}
	if err := there.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
	for _, j := range jobs {
		if err := j.result(t); !errors.Is(err, ErrClosed) {
			t.Errorf("an operation ended with %v, want ErrClosed", err)
		}
	}
	if got := a.node.Stats().Counters; got != there.Stats().Counters || got.Failed != 3 {
		t.Errorf("Stats: got %+v, want those of the Peer, %+v", got, there.Stats().Counters)
	}
}
