//go:build linux

package softnic

import (
	"testing"

	"ibverbx/verbs"
)

// TestUncorkAfterClose: packets collected by a cork leave when the NIC closes. A later Uncork does not use the closed sockets, whose
// descriptors may belong to another file by then.
func TestUncorkAfterClose(t *testing.T) {
	s := newBesieged(t)
	q := s.qps[1] // UC, which does not retransmit
	x := q.pd.ctx
	x.Cork()
	post(t, q, verbs.SendWR{Opcode: verbs.OpRDMAWrite})
	check(t, s.nic.Close())
	x.Uncork()
	if got := s.nic.Stats(); got.PacketsSent != 1 || got.SendDrops != 0 {
		t.Errorf("%d packets and %d drops, want 1 packet that was sent", got.PacketsSent, got.SendDrops)
	}
}
