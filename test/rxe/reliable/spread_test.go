package reliable_test

import (
	"testing"

	"ibverbx/internal/roce"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// TestPathsOfRXEHaveLabels: the kernel accepts a flow label for every path, each with a distinct source port.
// TestFlowLabelOnWire in test/rxe/interop checks the packets.
func TestPathsOfRXEHaveLabels(t *testing.T) {
	cfg := onePacket()
	cfg.Paths = 16
	a, b := newPair(t, cfg, 1<<18)
	transfer(t, a, b, verbs.OpRDMAWriteWithImm, 1<<18)
	ports := map[uint16]bool{}
	for _, p := range a.qp.(reliable.StatsReader).Paths() {
		ports[roce.SourcePort(p.FlowLabel)] = true
	}
	if len(ports) != cfg.Paths {
		t.Errorf("%d paths have %d source ports, want %d", cfg.Paths, len(ports), cfg.Paths)
	}
}
