package node

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/internal/service"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestReconnect: sessions are lost repeatedly while goroutines write. All operations succeed, and services
// see sessions open and close alternately.
func TestReconnect(t *testing.T) {
	const goroutines, losses, block = 8, 10, 256 << 10
	link, err := softnic.NewFaultLink(&softnic.FaultConfig{Impairment: softnic.Impairment{Delay: 100 * time.Microsecond}})
	if err != nil {
		t.Fatalf("NewFaultLink: got %v, want no error", err)
	}
	n := network{link}
	a, b := n.start(t), n.start(t)
	a.node.backoff.most = 2 * time.Millisecond
	there, here := a.meet(b)
	remote := a.grantBy(there) // stays valid: neither the process nor the registration changes
	for i := range a.mem.Bytes() {
		a.mem.Bytes()[i] = byte(i / 3)
	}
	var all sync.WaitGroup
	var enough atomic.Bool
	for i := range goroutines {
		all.Go(func() {
			for !enough.Load() {
				a.do(there, a.jobOn(there, remote, verbs.OpRDMAWrite, uint64(i*block), block))
			}
		})
	}
	for i := range losses {
		sessions := there.Stats().Sessions
		eventually(t, "requests are outstanding", func() (busy bool) {
			there.shard.do(func() { busy = there.queue.ledger.Len() > 0 })
			return busy
		})
		lose([]*Peer{there, here}[i%2])
		eventually(t, "there is another session", func() bool { return there.State() == StateReady && there.Stats().Sessions > sessions })
	}
	enough.Store(true)
	all.Wait()
	if !bytes.Equal(a.mem.Bytes()[:goroutines*block], b.mem.Bytes()[:goroutines*block]) {
		t.Error("the bytes differ")
	}
	if s := a.node.Stats(); s.Losses < losses || s.Counters.Failed != 0 || s.Counters.Replays == 0 {
		t.Errorf("Stats: got %+v, want losses, replays and no failed operations", s)
	}
}

// hangUp listens at an address and closes every connection. It returns their times.
func hangUp(t *testing.T, addr string) <-chan time.Time {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	dials := make(chan time.Time, 1000)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			now := time.Now() // before Close, which starts the next pause
			_ = c.Close()
			dials <- now
		}
	}()
	return dials
}

// goes closes the Node of h, which the peer loses, and hangs up on every dialer of its address. See
// hangUp.
func goes(t *testing.T, h *host, p *Peer) (dials <-chan time.Time) {
	t.Helper()
	addr := h.node.Addr().String()
	if err := h.node.Close(); err != nil {
		t.Fatalf("Close: got %v, want no error", err)
	}
	wait(t, p, StateLost)
	return hangUp(t, addr)
}

// TestReconnectStorm: many goroutines use a lost peer. The Node dials with growing backoff, however many
// operations wait.
func TestReconnectStorm(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t, alone)
	a.node.backoff = backoff{first: 8 * time.Millisecond, most: 64 * time.Millisecond, health: time.Hour}
	there, _ := a.meet(b)
	jobs := make([]*job, 500)
	for i := range jobs {
		jobs[i] = a.job(there, verbs.OpRDMAWrite, 0, 8)
	}
	dials := goes(t, b, there)
	var all sync.WaitGroup
	for _, j := range jobs {
		all.Go(func() { there.Service().Submit(&j.Op) })
	}
	first, last := <-dials, time.Time{}
	for range 7 {
		last = <-dials
	}
	// Seven pauses of at least half of 8, 16, 32, 64, 64, 64 and 64 ms. The bound omits one of
	// them.
	if took := last.Sub(first); took < (8+16+32+64+64+64)/2*time.Millisecond {
		t.Errorf("8 attempts within %v: there are no growing pauses", took)
	}
	all.Wait()
	there.Close()
	for _, j := range jobs {
		if err := j.result(t); !errors.Is(err, ErrClosed) {
			t.Fatalf("an operation ended with %v, want ErrClosed", err)
		}
	}
}

// TestRedialStorm: goroutines request a lost peer in a loop. The Node redials repeatedly, one
// attempt at a time, with the minimum pause in between.
func TestRedialStorm(t *testing.T) {
	const least, attempts = 20 * time.Millisecond, 8
	n := newNetwork(1)
	a, b := n.start(t), n.start(t, alone)
	a.node.SetPauses(least)
	there, _ := a.meet(b)
	addr := b.node.Addr().String()
	dials := goes(t, b, there)
	var all sync.WaitGroup
	var enough atomic.Bool
	for range 20 {
		all.Go(func() {
			for !enough.Load() {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Microsecond)
				_, _ = a.node.Peer(ctx, addr) // the peer does not return
				cancel()
				there.Service().Redial()
			}
		})
	}
	first, last := <-dials, time.Time{}
	for range attempts - 1 {
		last = <-dials
	}
	enough.Store(true)
	all.Wait()
	if took := last.Sub(first); took < (attempts-1)*least {
		t.Errorf("%d attempts within %v, want at least %v between two", attempts, took, least)
	}
}

// TestRedialAfterHeard: the Node would wait an hour before redialing a lost peer. The peer dials,
// and that session is lost as well. The Node redials immediately.
func TestRedialAfterHeard(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t, named("a")), n.start(t, alone, named("b"))
	a.node.SetPauses(time.Millisecond)
	there, _ := a.meet(b)
	addr := b.node.Addr()
	if err := b.node.Close(); err != nil {
		t.Fatalf("Close: got %v, want no error", err)
	}
	wait(t, there, StateLost)
	b = n.start(t, named("b"), at(addr))
	b.node.SetPauses(time.Hour) // only a redials
	b.meet(a)
	sessions := there.Stats().Sessions
	lose(there)
	eventually(t, "there is another session", func() bool { return there.State() == StateReady && there.Stats().Sessions > sessions })
}

// TestOutstandingOperationRedials: a session is lost with an operation outstanding, and the Node
// would wait an hour before redialing. The operation makes it redial immediately.
func TestOutstandingOperationRedials(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t, alone)
	a.node.SetPauses(time.Millisecond)
	there, _ := a.meet(b)
	a.nics[0].SetPort(false)
	j := a.job(there, verbs.OpRDMAWrite, 0, 8)
	j.Replay = true
	there.Service().Submit(&j.Op)
	lose(there)
	wait(t, there, StateLost)
	a.nics[0].SetPort(true)
	if err := j.result(t); err != nil {
		t.Errorf("the operation failed with %v, want no error", err)
	}
}

// TestBackoff: pauses double up to a limit, with jitter.
func TestBackoff(t *testing.T) {
	b := backoff{first: 100 * time.Millisecond, most: 30 * time.Second}
	for attempts, want := range map[int]time.Duration{0: 100 * time.Millisecond, 3: 800 * time.Millisecond, 20: 30 * time.Second, 1000: 30 * time.Second} {
		if got := b.delay(attempts, 0.5); got != want {
			t.Errorf("after(%d, 0.5) = %v, want %v", attempts, got, want)
		}
		if low, high := b.delay(attempts, 0), b.delay(attempts, 1); low != want/2 || high != want*3/2 {
			t.Errorf("after(%d) is between %v and %v, want half and one and a half of %v", attempts, low, high, want)
		}
	}
}

// TestOldSessionCannotWriteAfterReady: packets of a lost session still in flight when the next one
// is ready have no effect.
func TestOldSessionCannotWriteAfterReady(t *testing.T) {
	link, err := softnic.NewFaultLink(nil)
	if err != nil {
		t.Fatalf("NewFaultLink: got %v, want no error", err)
	}
	n := network{link}
	a, b := n.start(t), n.start(t)
	there, here := a.meet(b)
	link.Hold(a.nics[0], b.nics[0])
	copy(a.mem.Bytes(), "the old bytes")
	old := a.job(there, verbs.OpRDMAWrite, 0, 13)
	old.Replay = false
	there.Service().Submit(&old.Op)
	eventually(t, "packets are held", func() bool { return link.Held(a.nics[0], b.nics[0]) > 0 })
	sessions := here.Stats().Sessions
	lose(there)
	if err := old.result(t); !errors.Is(err, ErrLost) {
		t.Errorf("the operation ended with %v, want ErrLost", err)
	}
	eventually(t, "both have a new session", func() bool {
		return there.State() == StateReady && here.State() == StateReady && here.Stats().Sessions > sessions
	})
	b.grantBy(here)
	link.Release(a.nics[0], b.nics[0])
	copy(a.mem.Bytes()[64:], "the new bytes")
	a.do(there, a.write(there, 64, 13, 1)) // behind the old packets
	if got := b.mem.Bytes()[:13]; !bytes.Equal(got, make([]byte, 13)) {
		t.Errorf("a session that was lost wrote %q", got)
	}
	if got := string(b.mem.Bytes()[64:77]); got != "the new bytes" {
		t.Errorf("the new session wrote %q", got)
	}
}

// TestNewSessionWaitsForOld: a peer has lost its session and redials while this side still serves the old
// one. The new session is ready only after the old one and its queue pairs are closed here.
func TestNewSessionWaitsForOld(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	there, here := a.meet(b)
	old := here.Service().Session().(*session)
	b.mu.Lock() // blocks Message and Down of b's service
	if err := there.Service().Session().Send(soon(t), service.IDs-1, []byte("wait")); err != nil {
		t.Errorf("Send: got %v, want no error", err)
	}
	lose(there)
	eventually(t, "the peer dials again", func() bool {
		b.node.mu.Lock()
		defer b.node.mu.Unlock()
		return here.current != nil && here.current != old
	})
	for range 20 {
		if time.Sleep(time.Millisecond); here.State() == StateReady || there.State() == StateReady { // the sleep only gives a bug time to show
			t.Fatal("a session is ready while the one before it has not ended")
		}
	}
	b.mu.Unlock()
	wait(t, there, StateReady)
	select {
	case <-old.done:
	default:
		t.Error("the old session has not ended")
	}
}

// TestRestartedPeerDropsKeys: a named peer is restarted. Operations for the old process fail with
// ErrRestarted, including late ones. The Peer is the same, and operations with new keys work.
func TestRestartedPeerDropsKeys(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t, named("b"), alone)
	there, _ := a.meet(b)
	first := there.Identity().Incarnation
	waits, vague, late := a.job(there, verbs.OpRDMAWrite, 0, 8), a.job(there, verbs.OpRDMAWrite, 0, 8), a.job(there, verbs.OpRDMAWrite, 0, 8)
	waits.Incarnation, late.Incarnation = first, first
	addr := b.node.Addr()
	if err := b.node.Close(); err != nil {
		t.Fatalf("Close: got %v, want no error", err)
	}
	wait(t, there, StateLost)
	there.Service().Submit(&waits.Op)
	there.Service().Submit(&vague.Op)
	again := n.start(t, named("b"), at(addr))
	wait(t, there, StateReady)
	there.Service().Submit(&late.Op)
	for _, j := range []*job{waits, vague, late} {
		if err := j.result(t); !errors.Is(err, ErrRestarted) {
			t.Errorf("an operation for the old process ended with %v, want ErrRestarted", err)
		}
	}
	if there.Identity().Incarnation == first {
		t.Error("the incarnation has not changed")
	}
	j := a.write(there, 0, 8, 7)
	j.Incarnation = there.Identity().Incarnation
	a.do(there, j)
	eventually(t, "the new process has the notification", func() bool { return again.count() == 1 })
}

// TestGiveUp: a peer is lost permanently. Operations fail with ErrPeerGone after the timeout. A dialed Peer
// is kept; one that cannot be dialed is removed.
func TestGiveUp(t *testing.T) {
	n := newNetwork(1)
	soonGone := func(c *Config) { c.LostTimeout = 20 * time.Millisecond }
	a, b, c := n.start(t, soonGone), n.start(t), n.start(t)
	there, _ := a.meet(b)
	_, inbound := c.meet(a)
	jobs := []*job{a.job(there, verbs.OpRDMAWrite, 0, 8), a.job(inbound, verbs.OpRDMAWrite, 0, 8), a.job(there, verbs.OpRDMAWrite, 0, 8)}
	if err := errors.Join(b.node.Close(), c.node.Close()); err != nil {
		t.Fatalf("Close: got %v, want no error", err)
	}
	wait(t, there, StateLost)
	there.Service().Submit(&jobs[0].Op)
	inbound.Service().Submit(&jobs[1].Op)
	for i, j := range jobs {
		if i == 2 {
			there.Service().Submit(&j.Op) // delays the end of the wait
		}
		if err := j.result(t); !errors.Is(err, ErrPeerGone) {
			t.Errorf("operation %d ended with %v, want ErrPeerGone", i, err)
		}
	}
	wait(t, inbound, StateClosed)
	eventually(t, "one Peer is left", func() bool { return len(a.node.Peers()) == 1 })
	if there.State() != StateLost && there.State() != StateConnecting {
		t.Errorf("the Peer that was dialed is %v, want lost", there.State())
	}
}

// TestOtherPeerAtAddress: a peer with another name answers at a lost peer's address. The lost peer's error
// reports that. Once it is closed, the other peer can be dialed.
func TestOtherPeerAtAddress(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t, alone, named("b"))
	addr := b.node.Addr()
	p, _ := a.meet(b)
	if err := b.node.Close(); err != nil {
		t.Fatalf("Close: got %v, want no error", err)
	}
	c := n.start(t, at(addr), named("c"))
	for !errors.Is(p.Err(), ErrOther) {
		changed := p.Changed()
		if errors.Is(p.Err(), ErrOther) {
			break
		}
		select {
		case <-changed:
		case <-soon(t).Done():
			t.Fatalf("after a minute the error is %v, want ErrOther", p.Err())
		}
	}
	if got := p.State(); got != StateLost {
		t.Errorf("State: got %v, want %v", got, StateLost)
	}
	if err := p.Close(); err != nil {
		t.Fatalf("Close: got %v, want no error", err)
	}
	if q, _ := a.meet(c); q.Identity().Name != "c" {
		t.Errorf("the peer that was met is %q, want the other one", q.Identity().Name)
	}
}

// TestUnnamedPeerRestartsAndDials: an unnamed peer is restarted at its address and dials before the Node does. The Node finds the new process
// at the address: Peer returns it, and the Peer of the old process is closed with ErrRestarted.
func TestUnnamedPeerRestartsAndDials(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t, alone)
	a.node.SetPauses(time.Millisecond) // a dials only on demand
	old, _ := a.meet(b)
	addr := b.node.Addr()
	if err := b.node.Close(); err != nil {
		t.Fatalf("Close: got %v, want no error", err)
	}
	wait(t, old, StateLost)
	b = n.start(t, at(addr))
	_, dialed := b.meet(a)
	p, err := a.node.Peer(soon(t), addr.String())
	if err != nil || p != dialed {
		t.Fatalf("Peer: got %v and %v, want the new process", p, err)
	}
	wait(t, old, StateClosed)
	if !errors.Is(old.Err(), ErrRestarted) {
		t.Errorf("the old process: got %v, want ErrRestarted", old.Err())
	}
}

// TestFirstDialWithoutTokenFile: a Node that listens dials for the first time while its token file is missing. It dials again with the next
// file.
func TestFirstDialWithoutTokenFile(t *testing.T) {
	n := newNetwork(1)
	dir := t.TempDir()
	token := func(name string) (string, func(*Config)) {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte("a token of 16 bytes or more"), 0o600); err != nil {
			t.Fatalf("WriteFile: got %v, want no error", err)
		}
		return file, func(c *Config) { c.Auth = bootstrap.Config{TokenFile: file} }
	}
	file, use := token("a")
	_, useOther := token("b")
	a, b := n.start(t, use), n.start(t, useOther)
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatalf("Rename: got %v, want no error", err)
	}
	if _, err := a.node.Peer(soon(t), b.node.Addr().String()); !errors.Is(err, bootstrap.ErrConfig) {
		t.Errorf("Peer without a token file: got %v, want %v", err, bootstrap.ErrConfig)
	}
	if err := os.Rename(file+".away", file); err != nil {
		t.Fatalf("Rename: got %v, want no error", err)
	}
	a.meet(b)
}
