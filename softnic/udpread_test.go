//go:build linux

package softnic

import (
	"net/netip"
	"testing"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// TestUDPLongAnswer: a peer requests a long READ. The response is sent in slices, so that others are served
// in between, and completes without any call to the NIC.
func TestUDPLongAnswer(t *testing.T) {
	s := newBesieged(t)
	q := s.qps[0]
	const packets = 2*respondBudget + 100
	mem, err := verbs.AllocMemory(256*packets, nil)
	check(t, err)
	t.Cleanup(func() { check(t, mem.Free()) })
	mr, err := q.pd.RegisterMemory(mem, verbs.AccessAll)
	check(t, err)
	t.Cleanup(func() { check(t, mr.Close()) })
	b := s.datagram(t, 50000, roce.Header{
		Opcode: roce.OpReadRequest, DestQPN: q.num, VA: mr.Addr(), RKey: mr.RKey(), DMALen: 256 * packets,
	})
	u := s.nic.udp
	u.reading.Lock()
	q.core.mu.Lock()
	d := s.from
	d.Data, d.Segment = b, len(b)
	u.serve(&d)
	u.nic.core.settle()
	first := s.nic.stats.PacketsSent
	q.core.mu.Unlock()
	u.reading.Unlock()
	if first != respondBudget {
		t.Errorf("%d packets of the answer in one call, want %d", first, respondBudget)
	}
	for deadline := time.Now().Add(2 * time.Minute); s.nic.Stats().PacketsSent < packets; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d packets of the answer after 2 minutes, want %d", s.nic.Stats().PacketsSent, packets)
		}
	}
}

// TestUDPPollWithoutQPs: a poll skips the system call if no QP can receive, and otherwise reads the sockets
// of the QPs that can.
func TestUDPPollWithoutQPs(t *testing.T) {
	link, err := NewUDPLink(&UDPConfig{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.12")}})
	check(t, err)
	s := newNICRig(t, link, 4, Config{})
	var wcs [1]verbs.WC
	polls := func() uint32 {
		_, err := s.cq.Poll(wcs[:])
		check(t, err)
		return s.nic.udp.background.polls.Load()
	}
	if n := polls(); n != 0 {
		t.Errorf("%d polls read the socket of a NIC without QPs", n)
	}
	q := s.qp(verbs.UD, 1)
	if n := polls(); n != 1 {
		t.Errorf("%d polls read the socket of a NIC with a QP, want 1", n)
	}
	check(t, q.Close())
	if n := polls(); n != 1 {
		t.Errorf("%d polls read the socket, want none after the QP was closed", n-1)
	}
}
