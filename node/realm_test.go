package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"ibverbx/bootstrap"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/service"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// byName admits a peer to the realm of its name.
func byName(c *Config) {
	c.Authorize = func(p bootstrap.Peer) (Grant, error) { return Grant{Realm: p.Name}, nil }
}

// TestRealmsCannotReadEachOther: a peer obtains the key of memory granted to a peer in another realm. Its
// request is refused and fails only its own operation. A peer in the same realm can use the key.
func TestRealmsCannotReadEachOther(t *testing.T) {
	n := newNetwork(1)
	server := n.start(t, byName)
	red, blue := n.start(t, named("red")), n.start(t, named("blue"))
	fromRed, _ := red.meet(server)
	fromBlue, _ := blue.meet(server)
	stolen := blue.grantBy(fromBlue)
	copy(server.mem.Bytes(), "secret")
	j := red.jobOn(fromRed, stolen, verbs.OpRDMARead, 0, 6)
	fromRed.Service().Submit(&j.Op)
	var wc *verbs.WCError
	if err := j.result(t); !errors.As(err, &wc) || wc.Status != verbs.StatusRemAccessErr {
		t.Errorf("a read with a key of another realm ended with %v, want %v", err, verbs.StatusRemAccessErr)
	}
	if got := string(red.mem.Bytes()[:6]); got == "secret" {
		t.Error("a peer has read memory of another realm")
	}
	blue.do(fromBlue, blue.job(fromBlue, verbs.OpRDMARead, 0, 6))
	if got := string(blue.mem.Bytes()[:6]); got != "secret" {
		t.Errorf("a peer of the realm has read %q, want the memory", got)
	}
	if s := server.node.Stats(); s.Realms != 3 {
		t.Errorf("Stats: got %d realms, want 3 with the first", s.Realms)
	}
}

// TestBadKeyEndsOnlyItsOperation: an operation with a key that the peer rejects fails alone. The session's
// other operations continue, in the next session if necessary.
func TestBadKeyEndsOnlyItsOperation(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	there, _ := a.meet(b)
	remote := *a.grantBy(there)
	bad := remote
	bad.RKeys = []uint32{remote.RKeys[0] + 1<<8}
	jobs := make([]*job, 40)
	for i := range jobs {
		jobs[i] = a.jobOn(there, &remote, verbs.OpRDMAWrite, uint64(i)*64<<10, 64<<10)
		if i == 20 {
			jobs[i].Blocks[0].Remote = &bad
		}
	}
	there.shard.mu.Lock()
	for _, j := range jobs {
		there.Service().Submit(&j.Op)
	}
	there.shard.unlock()
	for i, j := range jobs {
		switch err := j.result(t); {
		case i == 20 && err == nil:
			t.Error("an operation with a bad key ended without an error")
		case i != 20 && err != nil:
			t.Errorf("operation %d beside one with a bad key ended with %v, want no error", i, err)
		}
	}
	if block, offset := jobs[20].Failed(); block != 0 || offset != 0 {
		t.Errorf("Failed = %d, %d, want the first byte", block, offset)
	}
}

// TestTwoRealmsOneContext: when a port goes down, sessions of two realms on the same NIC are notified.
func TestTwoRealmsOneContext(t *testing.T) {
	n := newNetwork(2)
	server := n.start(t, byName)
	var peers []*Peer
	for _, name := range []string{"red", "blue"} {
		_, here := n.start(t, named(name)).meet(server)
		peers = append(peers, here)
	}
	if peers[0].Realm() != "red" || peers[0].shard == peers[1].shard {
		t.Fatalf("realms %q and %q share a shard", peers[0].Realm(), peers[1].Realm())
	}
	server.nics[1].SetPort(false)
	for _, p := range peers {
		eventually(t, "rail 1 has no lane", func() bool { return lanes(p, 1) == 0 })
		server.do(p, server.write(p, 0, 1000, 1))
	}
}

// TestRealmCannotChange: a returning peer that was assigned another realm is refused while it is
// known, because its granted memory is registered in the first realm.
func TestRealmCannotChange(t *testing.T) {
	n := newNetwork(1)
	var realm atomic.Value
	realm.Store("red")
	server := n.start(t, func(c *Config) {
		c.Authorize = func(bootstrap.Peer) (Grant, error) { return Grant{Realm: realm.Load().(string)}, nil }
	})
	there, here := n.start(t, named("x")).meet(server)
	realm.Store("blue")
	lose(here)
	eventually(t, "the peer is refused", func() bool {
		var refused *refusedError
		return errors.As(there.Err(), &refused) && refused.code == refusedRealm
	})
	realm.Store("red")
	wait(t, there, StateReady)
}

// TestRealmsAreBounded: a Node has at most 64 realms. A peer that needs another one is refused, and so is one
// with an overlong realm name.
func TestRealmsAreBounded(t *testing.T) {
	n := newNetwork(1)
	server := n.start(t, func(c *Config) {
		c.Authorize = func(p bootstrap.Peer) (Grant, error) {
			if p.Name == "long" {
				return Grant{Realm: strings.Repeat("r", maxRealmName+1)}, nil
			}
			return Grant{Realm: "realm " + p.Name}, nil
		}
	})
	for i := range maxRealms - 1 {
		r, err := server.node.realmOf(bootstrap.Peer{Name: fmt.Sprint(i)})
		if err != nil || r == nil {
			t.Fatalf("realm %d: got %v, want no error", i, err)
		}
	}
	for _, name := range []string{"one more", "long"} {
		if _, err := n.start(t, named(name)).node.Peer(soon(t), server.node.Addr().String()); !errors.Is(err, ErrRefused) && !errors.Is(err, bootstrap.ErrPeerClosed) {
			t.Errorf("%s: got %v, want a refusal", name, err)
		}
	}
}

// TestRegisteredOnce: memory is registered once per realm and access, whichever peer needs it, and Close
// deregisters all.
func TestRegisteredOnce(t *testing.T) {
	n := newNetwork(1)
	server := n.start(t, func(c *Config) {
		c.Authorize = func(p bootstrap.Peer) (Grant, error) {
			return Grant{Realm: strings.TrimRight(p.Name, "12")}, nil
		}
	})
	var peers []service.Peer
	for _, name := range []string{"red1", "red2", "blue"} {
		_, here := n.start(t, named(name)).meet(server)
		peers = append(peers, here.Service())
	}
	mem, err := verbs.AllocMemory(4096, nil)
	if err != nil {
		t.Fatalf("AllocMemory: got %v, want no error", err)
	}
	m := server.node.Service().Register(mem)
	region := func(p service.Peer, access verbs.Access) uint32 {
		g, err := m.Region(p, access)
		if err != nil {
			t.Fatalf("Region: got %v, want no error", err)
		}
		remote, err := m.Remote(p, access)
		if err != nil || access != 0 && !slices.Equal(remote.RKeys, g.Remote().RKeys) {
			t.Fatalf("Remote: got %+v, %v, want that of the Region", remote, err)
		}
		return g.Remote().RKeys[0]
	}
	red1, red2, blue, read := region(peers[0], 0), region(peers[1], 0), region(peers[2], 0), region(peers[0], verbs.AccessRemoteRead)
	if red1 != red2 || red1 == blue || read == red1 {
		t.Errorf("keys are %#x, %#x of one realm, %#x of another, %#x for reads: want the first two equal", red1, red2, blue, read)
	}
	if err := errors.Join(m.Close(), mem.Free()); err != nil {
		t.Errorf("Close and Free: got %v, want no error", err)
	}
	if _, err := m.Region(peers[0], 0); !errors.Is(err, ErrClosed) {
		t.Errorf("Region after Close: got %v, want ErrClosed", err)
	}
}

// TestRemoteWhileClosed: Remote may be called while the registration is being closed; it then returns
// ErrClosed.
func TestRemoteWhileClosed(t *testing.T) {
	n := newNetwork(1)
	server := n.start(t)
	_, here := n.start(t).meet(server)
	mem, err := verbs.AllocMemory(4096, nil)
	if err != nil {
		t.Fatalf("AllocMemory: got %v, want no error", err)
	}
	m := server.node.Service().Register(mem)
	begun, ended := make(chan struct{}), make(chan error)
	go func() {
		_, err := m.Remote(here.Service(), verbs.AccessRemoteRead)
		for close(begun); err == nil; {
			_, err = m.Remote(here.Service(), verbs.AccessRemoteRead)
		}
		ended <- err
	}()
	<-begun
	err = m.Close()
	if last := <-ended; err != nil || !errors.Is(last, ErrClosed) {
		t.Errorf("Close: got %v, and Remote %v, want ErrClosed from Remote only", err, last)
	}
	if err := mem.Free(); err != nil {
		t.Errorf("Free: got %v, want no error", err)
	}
}

// TestAuthorizeBeforeCard: an unauthorized peer gets neither a response to its hello nor any address or key.
// A peer whose authorization is revoked loses its session.
func TestAuthorizeBeforeCard(t *testing.T) {
	n := newNetwork(1)
	denied := make(chan struct{})
	server := n.start(t, func(c *Config) {
		c.Authorize = func(p bootstrap.Peer) (Grant, error) {
			select {
			case <-denied:
				return Grant{}, errors.New("no more")
			default:
			}
			if p.Name != "friend" {
				return Grant{}, errors.New("a stranger")
			}
			return Grant{}, nil
		}
	})
	if _, err := n.start(t, named("foe")).node.Peer(soon(t), server.node.Addr().String()); !errors.Is(err, bootstrap.ErrAuth) {
		t.Errorf("Peer of a Node that does not admit this side: got %v, want bootstrap.ErrAuth", err)
	}
	if len(server.node.Peers()) != 0 {
		t.Error("a peer that is not authorized is known")
	}
	friend, _ := n.start(t, named("friend")).meet(server)
	close(denied)
	wait(t, friend, StateLost)
}

// TestTokenHoldersAreEqual: two processes with the same token and no name are different peers.
func TestTokenHoldersAreEqual(t *testing.T) {
	n := newNetwork(1)
	token := func(c *Config) {
		c.Auth.InsecurePlaintextOnLoopback, c.Auth.Token = false, []byte("a token for tests, and long enough")
	}
	server := n.start(t, token)
	quiet := func(c *Config) { c.Listen = "" }
	n.start(t, token, quiet).meet(server)
	n.start(t, token, quiet).meet(server)
	if got := len(server.node.Peers()); got != 2 {
		t.Errorf("the Node knows %d peers, want 2", got)
	}
}

// stuckContext wraps a NIC that fails to allocate protection domains and to deregister memory while stuck is set.
type stuckContext struct {
	verbs.Context
	stuck *atomic.Bool
}

type stuckPD struct {
	verbs.PD
	stuck *atomic.Bool
}

type stuckMR struct {
	verbs.MR
	stuck *atomic.Bool
}

func (c stuckContext) AllocPD() (verbs.PD, error) {
	if c.stuck.Load() {
		return nil, fmt.Errorf("%w: %s", verbs.ErrBusy, c.Device().Name())
	}
	pd, err := c.Context.AllocPD()
	return stuckPD{pd, c.stuck}, err
}

func (p stuckPD) RegisterMemory(m *verbs.Memory, access verbs.Access) (verbs.MR, error) {
	mr, err := p.PD.RegisterMemory(m, access)
	return stuckMR{mr, p.stuck}, err
}

func (m stuckMR) Close() error {
	if m.stuck.Load() {
		return verbs.ErrBusy
	}
	return m.MR.Close()
}

// stuckNIC makes a host use a stuckContext.
func stuckNIC(n network, stuck *atomic.Bool) func(*Config) {
	return func(c *Config) {
		c.Open = func() (nics peer.NICs, err error) {
			_, nics.Rails, nics.Close, err = enginetest.OpenNICs(n, softnic.Config{}, func(ctx verbs.Context) (verbs.Context, error) {
				return stuckContext{ctx, stuck}, nil
			})
			return nics, err
		}
	}
}

// TestRefusalHidesLocalErrors: the realm of a peer cannot be created. The peer does not get the name of the realm or of the NIC.
func TestRefusalHidesLocalErrors(t *testing.T) {
	n := newNetwork(1)
	var stuck atomic.Bool
	server := n.start(t, stuckNIC(n, &stuck), func(c *Config) {
		c.Authorize = func(bootstrap.Peer) (Grant, error) { return Grant{Realm: "secret"}, nil }
	})
	stuck.Store(true)
	defer stuck.Store(false)
	c := stranger(t, server.node.Addr().String())
	hello := message{kind: kindHello, lowest: version, highest: version, session: 1}
	if err := c.Send(soon(t), bootstrap.KindService, hello.encode()); err != nil {
		t.Fatalf("Send: got %v, want no error", err)
	}
	if got := closedBy(t, c).Error(); !strings.Contains(got, "the session failed") || strings.Contains(got, "secret") || strings.Contains(got, "soft0") {
		t.Errorf("the peer gets %q, want no local detail", got)
	}
}

// TestDeregistrationFails: a NIC does not deregister memory at first. Memory.Close reports it each time, and deregisters it later, as does
// Node.Close.
func TestDeregistrationFails(t *testing.T) {
	n := newNetwork(1)
	var stuck atomic.Bool
	a := n.start(t, stuckNIC(n, &stuck))
	there, _ := a.meet(n.start(t))
	register := func() (*verbs.Memory, service.Memory) {
		mem, err := a.node.Service().Alloc(4096, nil)
		if err != nil {
			t.Fatalf("Alloc: got %v, want no error", err)
		}
		registered := a.node.Service().Register(mem)
		if _, err := registered.Region(there.Service(), 0); err != nil {
			t.Fatalf("Region: got %v, want no error", err)
		}
		return mem, registered
	}
	mem, registered := register()
	last, left := register()
	stuck.Store(true)
	for range 2 {
		if err := registered.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("Close: got %v, want ErrBusy", err)
		}
	}
	if err := left.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Close: got %v, want ErrBusy", err)
	}
	stuck.Store(false)
	if err := errors.Join(registered.Close(), mem.Free()); err != nil {
		t.Errorf("Close and Free: got %v, want no error", err)
	}
	if err := errors.Join(a.node.Close(), last.Free()); err != nil {
		t.Errorf("Close of the Node, and Free: got %v, want no error", err)
	}
}
