package reliable_test

import (
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/verbs"
)

// TestPathsEnd sends chunks of nine packets, of which every loss but that of the first packet
// ends a path of rxe: paths end and come back all the time, with a receive half used. More of
// them end than there are receive buffers, so that none may be lost with a path.
func TestPathsEnd(t *testing.T) {
	const size, buffers = 100_000, 16
	lose(t, "net0", "net1")
	cfg := onePacket()
	cfg.ChunkBytes, cfg.RecvDepth, cfg.Paths = 32<<10, buffers, 4
	a, b := newPair(t, cfg, size)
	for end := time.Now().Add(patience); ; {
		ended := 0
		for _, p := range b.qp.(reliable.StatsReader).Paths() {
			ended += int(p.Epoch)
		}
		if ended > buffers {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d paths have ended within %v of losses, want more than %d: is nothing lost?", ended, patience, buffers)
		}
		transfer(t, a, b, verbs.OpSend, size)
		transfer(t, a, b, verbs.OpRDMAWriteWithImm, size)
	}
	t.Logf("A: %+v", a.qp.(reliable.StatsReader).Stats())
}
