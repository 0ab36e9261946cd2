//go:build linux

package softnic_test

import (
	"bytes"
	"net/netip"
	"os"
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// nearPair returns two connected sides on UDPLinks. The first discovers neighbors, and so does the second if
// look is set.
func nearPair(t *testing.T, look bool) (x, y *shmSide) {
	t.Helper()
	cfg := softnic.UDPConfig{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.9")}, SharedMemory: true}
	other := cfg
	other.SharedMemory = look
	return nearPairWith(t, 64<<10, cfg, other)
}

// nearPairWith returns two connected sides on UDPLinks with regions of size bytes.
func nearPairWith(tb testing.TB, size int, cfg, other softnic.UDPConfig) (x, y *shmSide) {
	tb.Helper()
	a, err := softnic.NewUDPLink(&cfg)
	must(tb, err)
	b, err := softnic.NewUDPLink(&other)
	must(tb, err)
	x, y = newShmSide(tb, a, size), newShmSide(tb, b, size)
	x.connect(y.card())
	y.connect(x.card())
	return x, y
}

// TestConformanceNeighbors runs the suite over UDP, between neighbors.
func TestConformanceNeighbors(t *testing.T) {
	pickShared(t, 1)
	noRaces(t)
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		return openUDP(tb, &softnic.UDPConfig{SharedMemory: true}, softnic.Config{}, "127.0.0.1", "127.0.0.2")
	})
}

// TestNeighbors: NICs on UDPLinks that discover each other execute WRITEs and READs directly on each other's
// memory. All other requests travel as packets. Closed regions and closed NICs are unreachable.
func TestNeighbors(t *testing.T) {
	noRaces(t)
	x, y := nearPair(t, true)
	x.awaitPublished()
	y.awaitPublished()
	was := x.nic.Stats()
	copy(x.mem.Bytes(), "to the neighbor")
	x.send([]verbs.SendWR{x.request(verbs.OpRDMAWrite, 64<<10)})
	x.await(1)
	// A READ that y has retried on a slow machine may be answered only now.
	if now := x.nic.Stats(); now.Direct != was.Direct+1 || now.PacketsSent-was.PacketsSent >= (64<<10)/4096 {
		t.Errorf("a WRITE: %d direct and %d packets, want 1 and fewer than it has", now.Direct-was.Direct, now.PacketsSent-was.PacketsSent)
	}
	y.receive(make([]verbs.RecvWR, 2))
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWriteWithImm} {
		was := x.nic.Stats().PacketsSent
		n := 64 << 10
		if op == verbs.OpSend {
			n = 0
		}
		x.send([]verbs.SendWR{x.request(op, n)})
		x.await(1)
		y.await(1)
		if x.nic.Stats().PacketsSent == was {
			t.Errorf("%v: no packets, want some", op)
		}
	}
	if !bytes.Equal(x.mem.Bytes(), y.mem.Bytes()) {
		t.Error("the memory of the neighbor is not what was written")
	}
	late, mr := memoryWith(t, y.pd, 4096, &verbs.MemoryConfig{Shared: true})
	x.peer.Addr, x.peer.RKey = late.Addr(), mr.RKey()
	x.awaitPublished()
	must(t, mr.Close())
	x.send([]verbs.SendWR{x.request(verbs.OpRDMAWrite, 4096)})
	x.fails(verbs.StatusRemAccessErr)
	must(t, y.nic.Close())
	must(t, x.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
	x.connect(x.peer)
	x.send([]verbs.SendWR{x.request(verbs.OpRDMAWrite, 4096)})
	x.fails(verbs.StatusRetryExcErr)
}

// TestNeighborPatience: a WRITE behind an unacknowledged packet is direct if it is long, or if the preceding
// WRITEs add up. Other WRITEs travel as packets, because waiting for the acknowledgement would take longer.
func TestNeighborPatience(t *testing.T) {
	noRaces(t)
	x, _ := nearPair(t, true)
	x.awaitPublished()
	for _, c := range []struct{ packets, writes, size, direct int }{{1, 1, 64 << 10, 1}, {1, 4, 16 << 10, 1}, {6, 1, 16 << 10, 0}} {
		var wrs []verbs.SendWR
		for range c.packets {
			wrs = append(wrs, x.request(verbs.OpAtomicFetchAndAdd, 8))
			for range c.writes {
				wrs = append(wrs, x.request(verbs.OpRDMAWrite, c.size))
			}
		}
		was := x.nic.Stats().Direct
		x.send(wrs)
		x.await(len(wrs))
		if n := int(x.nic.Stats().Direct - was); n != c.direct {
			t.Errorf("%+v: %d requests were direct", c, n)
		}
	}
}

// TestNoNeighbors: a NIC with discovery disabled is reached by packets only.
func TestNoNeighbors(t *testing.T) {
	noRaces(t)
	x, _ := nearPair(t, false)
	for range 100 {
		x.send([]verbs.SendWR{x.request(verbs.OpRDMAWrite, 64<<10)})
		x.await(1)
	}
	if n := x.nic.Stats().Direct; n != 0 {
		t.Errorf("%d requests to a NIC without SharedMemory were direct", n)
	}
}

// TestNeighborAgain: QPs rediscover a lost neighbor when used, if its process still runs.
func TestNeighborAgain(t *testing.T) {
	noRaces(t)
	x, y := nearPair(t, true)
	for range 3 {
		x.awaitPublished()
		y.awaitPublished()
		softnic.PartNeighbors(x.nic)
	}
	x.awaitPublished()
	copy(x.mem.Bytes(), "again")
	x.send([]verbs.SendWR{x.request(verbs.OpRDMAWrite, 64<<10)})
	x.await(1)
	if !bytes.Equal(x.mem.Bytes(), y.mem.Bytes()) {
		t.Error("the memory of the neighbor is not what was written")
	}
}

// TestNeighborWrongQP: a QP that the peer's QP is not connected to cannot use direct access, even with the
// right PSN.
func TestNeighborWrongQP(t *testing.T) {
	noRaces(t)
	x, y := nearPair(t, true)
	x.awaitPublished()
	other, err := x.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, MaxSendWR: 8, MaxRecvWR: 8, SendCQ: x.cq, RecvCQ: x.cq})
	must(t, err)
	attr := verbs.ConnectAttr(x.card().Endpoint, y.card().Endpoint, 1, 0)
	attr.Timeout, attr.RetryCount = 8, 1 // no response needed
	must(t, verbs.ConnectWith(other, attr))
	was := x.nic.Stats().Direct
	if _, err := other.PostSend([]verbs.SendWR{x.request(verbs.OpRDMAWrite, 64<<10)}); err != nil {
		t.Fatal(err)
	}
	for len(x.poll()) == 0 {
	}
	if n := x.nic.Stats().Direct - was; n != 0 {
		t.Errorf("%d requests of a QP that is not the peer were direct", n)
	}
}

// TestNeighborProcess: the kernel copies between processes whose NICs are on UDPLinks, until one is killed.
// Then requests fail as for any unresponsive peer.
func TestNeighborProcess(t *testing.T) {
	s, far := startFar(t, shmNear)
	for begin := time.Now(); s.nic.Stats().Direct < 100; {
		s.send([]verbs.SendWR{s.request(verbs.OpRDMAWrite, 64<<10), s.request(verbs.OpRDMARead, 64<<10)})
		s.await(2)
		if time.Since(begin) > 10*time.Second {
			must(t, far.Process.Signal(os.Kill))
			t.Skip("the system does not allow process_vm_writev")
		}
	}
	must(t, far.Process.Signal(os.Kill))
	wrs := []verbs.SendWR{s.request(verbs.OpRDMAWrite, 64<<10)}
	status := verbs.StatusSuccess
	for status == verbs.StatusSuccess {
		s.send(wrs)
		wcs := s.poll()
		for len(wcs) == 0 {
			wcs = s.poll()
		}
		status = wcs[0].Status
	}
	if status != verbs.StatusRetryExcErr {
		t.Errorf("a request to a process that was killed ends with %v, want %v", status, verbs.StatusRetryExcErr)
	}
	must(t, s.mr.Close())
}
