package reliable_test

import (
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/verbs"
)

// TestPathsEnd sends chunks of nine packets. Losing any packet but the first fails an rxe path, so
// paths constantly fail and recover with a half-used receive. More paths fail than there are
// receive buffers, so a failed path must not leak its buffers.
func TestPathsEnd(t *testing.T) {
	const size, buffers = 100_000, 16
	lose(t, "net0", "net1")
	cfg := onePacket()
	cfg.ChunkBytes, cfg.RecvBytes, cfg.Paths = 32<<10, buffers*32<<10, 4
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
