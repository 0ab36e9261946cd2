//go:build linux

package softnic

import (
	"runtime/debug"
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

// TestShmUnreportedClosed: Unreported of a QP of a closed NIC does not read the peer's memory, which is unmapped by then.
func TestShmUnreportedClosed(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	s, _ := newShmBesieged(t)
	check(t, s.nic.Close())
	if s.qps[0].Unreported() {
		t.Error("a closed QP has unreported completions, want none")
	}
}
