//go:build linux

package softnic_test

import (
	"bytes"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/shm"
	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// socketPair returns two connected unix sockets.
func socketPair(tb testing.TB) (a, b *net.UnixConn) {
	tb.Helper()
	pair, err := shm.Pair()
	must(tb, err)
	return pair[0], pair[1]
}

// shmRig is a rig over shared memory.
func shmRig(tb testing.TB) *rig {
	tb.Helper()
	a, b := shmLinks(tb)
	r := &rig{tb: tb}
	r.a, r.ca, r.pa = plug(tb, a)
	r.b, r.cb, r.pb = plug(tb, b)
	return r
}

// shmLinks returns the two ends of a link.
func shmLinks(tb testing.TB) (a, b *softnic.ShmLink) {
	tb.Helper()
	ca, cb := socketPair(tb)
	type made struct {
		l   *softnic.ShmLink
		err error
	}
	other := make(chan made, 1)
	go func() {
		l, err := softnic.NewShmLink(cb)
		other <- made{l, err}
	}()
	a, err := softnic.NewShmLink(ca)
	must(tb, err)
	m := <-other
	must(tb, m.err)
	return a, m.l
}

// noRaces skips a test of two links in one process with the build tag heapmem.
func noRaces(t *testing.T) {
	t.Helper()
	if heapMemory {
		t.Skip("two links share no lock, and the race detector does not see that a packet comes after it was sent")
	}
}

// TestConformanceShm runs the suite over shared memory, between two links.
func TestConformanceShm(t *testing.T) {
	pickShared(t, 0)
	noRaces(t)
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		a, b := shmLinks(tb)
		var p verbstest.Pair
		_, p.A, _ = plug(tb, a)
		_, p.B, _ = plug(tb, b)
		return p
	})
}

// shmPair returns two connected sides with regions of size bytes.
func shmPair(tb testing.TB, size int) (x, y *shmSide) {
	tb.Helper()
	a, b := shmLinks(tb)
	x, y = newShmSide(tb, a, size), newShmSide(tb, b, size)
	x.connect(y.card())
	y.connect(x.card())
	return x, y
}

// awaitPublished waits until s can access its peer's memory directly.
func (s *shmSide) awaitPublished() {
	s.tb.Helper()
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		before := s.nic.Stats().Direct
		s.send([]verbs.SendWR{s.request(verbs.OpRDMARead, 8)})
		s.await(1)
		if s.nic.Stats().Direct > before {
			return
		}
		if time.Now().After(deadline) {
			s.tb.Fatal("the peer has not published its memory")
		}
	}
}

// TestShmDirect: WRITEs and READs of shareable memory send no packets, and an immediate sends one.
func TestShmDirect(t *testing.T) {
	noRaces(t)
	const size = 300 << 10
	x, y := shmPair(t, size)
	x.awaitPublished()
	was := x.nic.Stats()
	for i := range x.mem.Bytes() {
		x.mem.Bytes()[i] = byte(i * 13)
	}
	x.send([]verbs.SendWR{x.request(verbs.OpRDMAWrite, size)})
	x.await(1)
	if !bytes.Equal(x.mem.Bytes(), y.mem.Bytes()) {
		t.Error("the WRITE has not arrived")
	}
	copy(y.mem.Bytes()[1000:], "what the peer has")
	x.send([]verbs.SendWR{x.request(verbs.OpRDMARead, size)})
	x.await(1)
	if !bytes.Equal(x.mem.Bytes(), y.mem.Bytes()) {
		t.Error("the READ has not brought what the peer has")
	}
	if now := x.nic.Stats(); now.Direct != was.Direct+2 || now.PacketsSent != was.PacketsSent {
		t.Errorf("a WRITE and a READ: %d direct and %d packets, want 2 and none", now.Direct-was.Direct, now.PacketsSent-was.PacketsSent)
	}
	y.receive(make([]verbs.RecvWR, 1))
	wr := x.request(verbs.OpRDMAWriteWithImm, size)
	wr.Imm = 77
	x.mem.Bytes()[size-1]++
	x.send([]verbs.SendWR{wr})
	var got verbs.WC
	for got.QPN == 0 {
		for _, wc := range y.poll() {
			got = wc
		}
	}
	if got.Imm != 77 || got.ByteLen != size || !bytes.Equal(x.mem.Bytes(), y.mem.Bytes()) {
		t.Errorf("the notice is %+v, want immediate 77 and %d bytes that are there", got, size)
	}
	x.await(1)
	if now := x.nic.Stats(); now.Direct != was.Direct+3 || now.PacketsSent != was.PacketsSent+1 {
		t.Errorf("with the notified WRITE: %d direct and %d packets, want 3 and 1", now.Direct-was.Direct, now.PacketsSent-was.PacketsSent)
	}
}

// TestShmNotShareable: memory that cannot be shared, and an observed NIC, are served by packets.
func TestShmNotShareable(t *testing.T) {
	noRaces(t)
	const size = 100 << 10
	x, y := shmPair(t, size)
	x.awaitPublished()
	for name, hide := range map[string]func(){
		"an observed NIC of the peer": func() { y.nic.Observe(func(softnic.MemoryAccess) {}) },
		"an observed NIC":             func() { y.nic.Observe(nil); x.nic.Observe(func(softnic.MemoryAccess) {}) },
	} {
		hide()
		was := x.nic.Stats().Direct
		for i := range x.mem.Bytes() {
			x.mem.Bytes()[i]++
		}
		x.send([]verbs.SendWR{x.request(verbs.OpRDMAWrite, size)})
		x.await(1)
		if !bytes.Equal(x.mem.Bytes(), y.mem.Bytes()) {
			t.Errorf("%s: the WRITE has not arrived", name)
		}
		if n := x.nic.Stats().Direct - was; n != 0 {
			t.Errorf("%s: %d requests were direct, want none", name, n)
		}
		x.nic.Observe(nil)
		y.nic.Observe(nil)
	}
}

// TestShmRegionClose: when MR.Close returns, the peer no longer writes the memory, even if it was in the middle of
// a WRITE. The request behind it fails.
func TestShmRegionClose(t *testing.T) {
	noRaces(t)
	const size = 256 << 10
	for round := range 20 {
		x, y := shmPair(t, size)
		x.awaitPublished()
		var wg sync.WaitGroup
		begun := make(chan struct{})
		wg.Go(func() {
			wrs := []verbs.SendWR{x.request(verbs.OpRDMAWrite, size)}
			for k := 0; ; k++ {
				for i := 0; i < size; i += 512 {
					x.mem.Bytes()[i] = byte(k)
				}
				x.send(wrs)
				wcs := x.poll()
				for len(wcs) == 0 {
					wcs = x.poll()
				}
				if s := wcs[0].Status; s == verbs.StatusRemAccessErr {
					return
				} else if s != verbs.StatusSuccess {
					t.Errorf("round %d: the WRITE to a closed region ends with %v, want %v", round, s, verbs.StatusRemAccessErr)
					return
				}
				if k == 3 {
					close(begun)
				}
			}
		})
		<-begun
		must(t, y.mr.Close())
		after := bytes.Clone(y.mem.Bytes())
		wg.Wait()
		if !bytes.Equal(after, y.mem.Bytes()) {
			t.Fatalf("round %d: the peer has written a closed region", round)
		}
	}
}

// TestShmBackPressure: a peer that does not read applies back-pressure to a sender without acknowledgements,
// and no message is lost. The sender resumes without a poll.
func TestShmBackPressure(t *testing.T) {
	noRaces(t)
	r := shmRig(t)
	const messages, size = 1000, 4096
	qa, qb := r.pair(verbs.UC, newCQ(t, r.ca, messages), newCQ(t, r.cb, messages), messages)
	_, mrA := memory(t, r.pa, size)
	_, mrB := memory(t, r.pb, size)
	recvs, sends := make([]verbs.RecvWR, messages), make([]verbs.SendWR, messages)
	for i := range messages {
		recvs[i].SetSGE(verbs.SGE{Addr: mrB.Addr(), Length: size, LKey: mrB.LKey()})
		sends[i].Opcode = verbs.OpSend
		sends[i].SetSGE(verbs.SGE{Addr: mrA.Addr(), Length: size, LKey: mrA.LKey()})
	}
	sends[messages-1].Flags = verbs.SendSignaled
	postRecv(t, qb, recvs)
	hold, held := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.b.Observe(func(softnic.MemoryAccess) {
		once.Do(func() { close(held) })
		<-hold
	})
	if n, err := qa.PostSend(sends); n != messages {
		t.Fatalf("PostSend = %d, %v, want %d", n, err, messages)
	}
	<-held
	if sent := r.a.Stats().PacketsSent; sent == 0 || sent == messages {
		t.Errorf("%d of %d packets have left while the peer reads none", sent, messages)
	}
	close(hold)
	for deadline := time.Now().Add(time.Minute); r.b.Stats().PacketsReceived < messages; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d packets have arrived", r.b.Stats().PacketsReceived, messages)
		}
	}
	if s := r.a.Stats(); s.SendDrops != 0 {
		t.Errorf("%d packets were dropped", s.SendDrops)
	}
}

// TestShmLinkRefuses: NewShmLink rejects nil and a peer with another protocol, and a ShmLink a second NIC.
func TestShmLinkRefuses(t *testing.T) {
	_, err := softnic.NewShmLink(nil)
	if !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("NewShmLink(nil) = %v, want %v", err, verbs.ErrInvalid)
	}
	for name, said := range map[string]string{"another protocol": strings.Repeat("x", 100), "nothing": ""} {
		a, b := socketPair(t)
		_, err := b.Write([]byte(said))
		must(t, err)
		must(t, b.Close())
		if _, err := softnic.NewShmLink(a); err == nil {
			t.Errorf("NewShmLink with a peer that says %s = nil, want an error", name)
		}
	}
	a, b := shmLinks(t)
	plug(t, a)
	plug(t, b)
	if _, err := softnic.New(a, softnic.Config{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a second NIC on a ShmLink = %v, want %v", err, verbs.ErrInvalid)
	}
}

// TestShmRetry: a request first sent as a packet is retransmitted as a packet, even if direct access has
// become possible. Its PSN is already used.
func TestShmRetry(t *testing.T) {
	noRaces(t)
	r := shmRig(t)
	cqA, cqB := newCQ(t, r.ca, 64), newCQ(t, r.cb, 64)
	qa, qb := r.pair(verbs.RC, cqA, cqB, 16)
	_, mrA := memory(t, r.pa, 4096)
	_, mrB := memoryWith(t, r.pb, 4096, &verbs.MemoryConfig{Shared: true})
	x := &shmSide{tb: t, nic: r.a, cq: cqA, qp: qa, peer: shmCard{Addr: mrB.Addr(), RKey: mrB.RKey()}, mr: mrA}
	y := &shmSide{tb: t, nic: r.b, cq: cqB, qp: qb}
	x.awaitPublished()
	for range 3 {
		y.receive(make([]verbs.RecvWR, 1))
		was, drops := r.a.Stats(), r.b.Stats().PortDownDrops
		r.b.SetPort(false)
		x.send([]verbs.SendWR{x.request(verbs.OpRDMAWrite, 100), x.request(verbs.OpSend, 0)})
		for r.b.Stats().PortDownDrops < drops+2 {
			runtime.Gosched()
		}
		r.b.SetPort(true)
		x.await(2)
		y.await(1)
		if now := r.a.Stats(); now.Direct != was.Direct || now.Retransmits == was.Retransmits {
			t.Errorf("%d direct, %d retransmissions, want none and some", now.Direct-was.Direct, now.Retransmits-was.Retransmits)
		}
		x.send([]verbs.SendWR{x.request(verbs.OpRDMAWrite, 100)})
		x.await(1)
		if now := r.a.Stats(); now.Direct != was.Direct+1 {
			t.Errorf("%d requests after the retransmission were direct, want 1", now.Direct-was.Direct)
		}
	}
}

// TestShmNotGranted: a peer's QP that would not accept a packet does not allow direct access either.
func TestShmNotGranted(t *testing.T) {
	noRaces(t)
	for name, spoil := range map[string]func(x, y *shmSide){
		"a QP that has failed": func(_, y *shmSide) {
			wr := y.request(verbs.OpRDMAWrite, 8)
			wr.SGE[0].LKey++
			y.send([]verbs.SendWR{wr})
		},
		"a QP that was modified to ERR": func(_, y *shmSide) { must(t, y.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState)) },
		"a QP that was reset":           func(_, y *shmSide) { must(t, y.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState)) },
		"a QP that was closed":          func(_, y *shmSide) { must(t, y.qp.Close()) },
		"a port that is down":           func(_, y *shmSide) { y.nic.SetPort(false) },
		"a QP with another PSN": func(x, y *shmSide) {
			must(t, y.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
			peer := x.card().Endpoint
			peer.PSN = (peer.PSN + 1) & 0xffffff
			must(t, y.qp.Connect(peer))
		},
	} {
		x, y := shmPair(t, 4096)
		x.awaitPublished()
		spoil(x, y)
		was := x.nic.Stats().Direct
		x.send([]verbs.SendWR{x.request(verbs.OpRDMAWrite, 8)})
		if n := x.nic.Stats().Direct - was; n != 0 {
			t.Errorf("%s: the WRITE was done directly", name)
		}
	}
}

// TestShmReregister: a region that keeps its key with fewer rights refuses the removed ones. The peer may
// still know the key with the old access. It does so only for a moment, so one round may not meet it.
func TestShmReregister(t *testing.T) {
	noRaces(t)
	r := shmRig(t)
	for range 20 {
		cqA := newCQ(t, r.ca, 64)
		qa, _ := r.pair(verbs.RC, cqA, newCQ(t, r.cb, 64), 16)
		_, mrA := memory(t, r.pa, 4096)
		mem, mrB := memoryWith(t, r.pb, 4096, &verbs.MemoryConfig{Shared: true})
		x := &shmSide{tb: t, nic: r.a, cq: cqA, qp: qa, peer: shmCard{Addr: mrB.Addr(), RKey: mrB.RKey()}, mr: mrA}
		x.awaitPublished()
		pd := r.pb.(interface {
			ReregisterMemoryAt(old verbs.MR, m *verbs.Memory, iova uint64, access verbs.Access) (verbs.MR, error)
		})
		changed, err := pd.ReregisterMemoryAt(mrB, mem, mem.Addr(), verbs.AccessRemoteRead)
		must(t, err)
		defer func() { must(t, changed.Close()) }()
		x.send([]verbs.SendWR{x.request(verbs.OpRDMAWrite, 4096)})
		x.fails(verbs.StatusRemAccessErr)
	}
}
