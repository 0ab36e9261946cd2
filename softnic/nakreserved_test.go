//go:build linux

package softnic

import (
	"testing"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// TestNAKReservedBit: bit 7 of a syndrome is reserved and ignored, including in a NAK.
func TestNAKReservedBit(t *testing.T) {
	const reserved = 1 << 7
	s := newBesieged(t)
	q := s.qps[0]
	q.core.mu.Lock()
	q.attr.Timeout = 0 // only NAKs cause retransmissions
	q.core.mu.Unlock()
	nak := func(syndrome uint8) {
		t.Helper()
		s.strike(s.forge(roce.Header{Opcode: roce.RC | roce.OpAck, DestQPN: q.num, PSN: q.una, Syndrome: syndrome}, 0))
	}
	post(t, q, verbs.SendWR{Opcode: verbs.OpRDMAWrite})
	if nak(roce.NAKSequence | reserved); s.nic.Stats().GoBacks != 1 || q.State() != verbs.StateRTS {
		t.Errorf("after a sequence NAK the QP is in %v and went back %d times, want %v and once", q.State(), s.nic.Stats().GoBacks, verbs.StateRTS)
	}
	nak(roce.NAKRemoteAccess | reserved)
	if wcs := completions(q); len(wcs) == 0 || wcs[0].Status != verbs.StatusRemAccessErr {
		t.Errorf("completions = %+v, want the first with %v", wcs, verbs.StatusRemAccessErr)
	}
}
