//go:build linux

package softnic

import (
	"testing"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// TestUDPLongAnswer: a peer asks for a long READ with one request. It is answered in turns, so
// that others are served in between, and to its end, though nobody calls the NIC.
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
