package node

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/service"
	"ibverbx/internal/wire"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

func TestMain(m *testing.M) {
	enginetest.Main(m)
}

// Shared with the tests of other packages.
var (
	soon       = enginetest.Soon
	eventually = enginetest.Eventually
)

// network is a set of in-memory rails. Every host has a NIC on each.
type network []softnic.Link

func newNetwork(rails int) network { return enginetest.MemoryLinks(rails) }

// host is a Node on a network, with the test service.
type host struct {
	*testService
	nics []*softnic.NIC
}

// open returns a Config.Open for a host.
func (n network) open(h *host) func() (peer.NICs, error) {
	return func() (nics peer.NICs, err error) {
		h.nics, nics.Rails, nics.Close, err = enginetest.OpenNICs(n, softnic.Config{}, nil)
		return nics, err
	}
}

// start starts a host. change may modify its Config.
func (n network) start(t testing.TB, change ...func(*Config)) *host {
	t.Helper()
	h := &host{}
	cfg := Config{Auth: bootstrap.Config{InsecurePlaintextOnLoopback: true}, Listen: "127.0.0.1:0", Shards: 1, IdleAfter: -1}
	cfg.Open = n.open(h)
	for _, f := range change {
		f(&cfg)
	}
	node, err := New(soon(t), cfg)
	if err != nil {
		t.Fatalf("New: got %v, want no error", err)
	}
	node.backoff = backoff{first: time.Millisecond, most: 50 * time.Millisecond, health: time.Second}
	h.testService = newService(t, node)
	return h
}

// alone makes a host listen on a unique address, so that its port stays free.
func alone(c *Config) {
	c.Listen = fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}

// at makes a host listen at an address.
func at(addr net.Addr) func(*Config) { return func(c *Config) { c.Listen = addr.String() } }

// idleAfter makes a host park idle sessions.
func idleAfter(d time.Duration) func(*Config) { return func(c *Config) { c.IdleAfter = d } }

// named gives a host a name.
func named(name string) func(*Config) { return func(c *Config) { c.Auth.Name = name } }

// meet makes h dial another host and returns both Peers, once both services have the other's grant.
func (h *host) meet(other *host) (there, here *Peer) {
	h.t.Helper()
	there, err := h.node.Peer(soon(h.t), other.node.Addr().String())
	if err != nil {
		h.t.Fatalf("Peer: got %v, want no error", err)
	}
	h.grantBy(there)
	h.eventually("the peer is known on the other side", func() bool {
		for _, p := range other.node.Peers() {
			if p.Identity().Incarnation == h.node.auth.Incarnation {
				here = p
			}
		}
		return here != nil
	})
	other.grantBy(here)
	return there, here
}

// eventually waits until f returns true.
func (h *host) eventually(what string, f func() bool) {
	h.t.Helper()
	eventually(h.t, what, f)
}

// wait waits until a Peer has a state.
func wait(t testing.TB, p *Peer, want State) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		changed := p.Changed()
		if p.State() == want {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("after a minute the state is %v (%v), want %v", p.State(), p.Err(), want)
		}
	}
}

// testService is a service that grants every peer read and write access to its slab.
type testService struct {
	t    testing.TB
	node *Node
	mem  *verbs.Memory
	slab service.Memory

	mu      sync.Mutex
	granted map[*Peer]*ibverbx.RemoteRegion
	// sessions holds the sessions that are up.
	sessions map[*Peer]service.Session
	ups      int
	downs    int
	gone     []error // causes passed to Gone
	imms     []uint32
	messages []string
}

const slabBytes = 4 << 20

// testClass is the tests' class of immediates.
const testClass = 9

func newService(t testing.TB, n *Node) *testService {
	t.Helper()
	sv := &testService{t: t, node: n, granted: map[*Peer]*ibverbx.RemoteRegion{}, sessions: map[*Peer]service.Session{}}
	var err error
	if sv.mem, err = n.Service().Alloc(slabBytes, nil); err != nil {
		t.Fatalf("Alloc: got %v, want no error", err)
	}
	sv.slab = n.Service().Register(sv.mem)
	if err := n.Service().Attach(service.Service{ID: service.IDs - 1, Version: 1, Classes: 1 << testClass, Handler: sv}); err != nil {
		t.Fatalf("Attach: got %v, want no error", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(n.Close(), sv.mem.Free()); err != nil {
			t.Errorf("Close and Free: got %v, want no error", err)
		}
	})
	return sv
}

// Hello grants the peer access to the slab.
func (sv *testService) Hello(s service.Session) ([]byte, bool) {
	g, err := sv.slab.Region(s.Peer(), verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
	if err != nil {
		if !errors.Is(err, ErrClosed) {
			sv.t.Errorf("Region: got %v, want no error", err)
		}
		return nil, false
	}
	return service.AppendRegion(nil, g.Remote(), service.Length64), true
}

// Up records the memory granted by the peer.
func (sv *testService) Up(s service.Session, body []byte) {
	r := wire.NewReader(body)
	m := service.ReadRegion(&r, service.Length64)
	if !r.End() {
		sv.t.Errorf("Up: got %x, want a region", body)
	}
	p := s.Peer().Owner().(*Peer)
	sv.mu.Lock()
	sv.ups++
	if old := sv.sessions[p]; old != nil {
		sv.t.Errorf("session %d is up while session %d is", s.Number(), old.Number())
	}
	sv.sessions[p] = s
	sv.granted[p] = &m
	sv.mu.Unlock()
}

func (sv *testService) Down(s service.Session, _ error) {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	p := s.Peer().Owner().(*Peer)
	if sv.sessions[p] != s {
		sv.t.Errorf("session %d is down and was not up", s.Number())
	}
	sv.downs++
	delete(sv.sessions, p)
	delete(sv.granted, p)
}

func (sv *testService) Gone(p service.Peer, cause error) {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	if s := sv.sessions[p.Owner().(*Peer)]; s != nil {
		sv.t.Errorf("a peer is gone while session %d is up", s.Number())
	}
	sv.gone = append(sv.gone, cause)
}

func (sv *testService) Message(_ service.Session, body []byte) {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	sv.messages = append(sv.messages, string(body))
}

func (sv *testService) Immediate(_ service.Session, imm, _ uint32) {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	sv.imms = append(sv.imms, imm&service.ArgMask)
}

// lose drops the connection of a Peer's session, like a network failure.
func lose(p *Peer) {
	p.node.mu.Lock()
	s := p.current
	p.node.mu.Unlock()
	if s != nil {
		_ = s.conn.CloseWith("a network failure")
	}
}

// grantBy waits for a peer's grant.
func (sv *testService) grantBy(p *Peer) (m *ibverbx.RemoteRegion) {
	sv.t.Helper()
	eventually(sv.t, "the peer has granted its memory", func() bool {
		sv.mu.Lock()
		defer sv.mu.Unlock()
		m = sv.granted[p]
		return m != nil
	})
	return m
}

// count returns the number of received immediates.
func (sv *testService) count() int {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	return len(sv.imms)
}

// job is an operation that a test waits for.
type job struct {
	service.Op
	done chan error
}

func (j *job) End(_ *service.Op, err error) { j.done <- err }

// job returns an operation with one block, which moves data between equal offsets of both slabs.
func (sv *testService) job(p *Peer, op verbs.Opcode, offset, length uint64) *job {
	sv.t.Helper()
	return sv.jobOn(p, sv.grantBy(p), op, offset, length)
}

// jobOn is job with a given region of the peer.
func (sv *testService) jobOn(p *Peer, remote *ibverbx.RemoteRegion, op verbs.Opcode, offset, length uint64) *job {
	sv.t.Helper()
	g, err := sv.slab.Region(p.Service(), 0)
	if err != nil {
		sv.t.Fatalf("Region: got %v, want no error", err)
	}
	j := &job{done: make(chan error, 1)}
	j.Blocks = []service.Block{{Opcode: op, Local: g, LocalOffset: offset, Remote: remote, RemoteOffset: offset, Length: length}}
	j.Replay, j.Sink = true, j
	return j
}

// write returns a job that writes and notifies.
func (sv *testService) write(p *Peer, offset, length uint64, imm uint32) *job {
	sv.t.Helper()
	j := sv.job(p, verbs.OpRDMAWrite, offset, length)
	j.Notify, j.Imm = true, service.Immediate(testClass, imm)
	return j
}

// result waits for a job to complete.
func (j *job) result(t testing.TB) error {
	t.Helper()
	select {
	case err := <-j.done:
		return err
	case <-time.After(time.Minute):
		t.Fatal("an operation has not ended after a minute")
		return nil
	}
}

// do submits a job that must succeed.
func (sv *testService) do(p *Peer, j *job) {
	sv.t.Helper()
	p.Service().Submit(&j.Op)
	if err := j.result(sv.t); err != nil {
		sv.t.Fatalf("an operation ended with %v, want no error", err)
	}
}
