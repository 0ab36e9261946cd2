//go:build !race

package traffic_test

import (
	"runtime"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestIdleVirtualQPIsSmall: an idle, connected VirtualQP with the default Config on two rails uses at most
// 110 KiB, including its software QPs and their posted receives, even after a few messages. The test is
// skipped under the race detector, which allocates memory itself.
func TestIdleVirtualQPIsSmall(t *testing.T) {
	const pairs, limit = 32, 110 << 10
	links := enginetest.MemoryLinks(2)
	a, b := enginetest.NewRails(t, links), enginetest.NewRails(t, links)
	a.NewCQ(ibverbx.CQConfig{Depth: 1 << 16})
	b.NewCQ(ibverbx.CQConfig{Depth: 1 << 16})
	local, remote := a.Region(64), b.Region(64)
	pair := func() (x, y *ibverbx.VirtualQP) {
		here, there := ibverbx.ControlPair()
		x, y = a.NewQP(ibverbx.Config{Control: here}), b.NewQP(ibverbx.Config{Control: there})
		enginetest.Connect(t, x, y)
		return x, y
	}
	pair() // warms up one-time allocations
	before := heap()
	var ends [pairs][2]*ibverbx.VirtualQP
	for i := range ends {
		ends[i][0], ends[i][1] = pair()
	}
	if each := (heap() - before) / (2 * pairs); each > limit {
		t.Errorf("an idle VirtualQP takes %d bytes, want at most %d", each, limit)
	}
	for i := range ends {
		for range 20 {
			n, err := ends[i][1].PostRecv([]ibverbx.RecvWR{{}})
			if n != 1 || err != nil {
				t.Fatalf("PostRecv = %d, %v", n, err)
			}
			wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote()}
			wr.SetSGE(local.SGE(0, 64))
			if n, err := ends[i][0].PostSend([]ibverbx.SendWR{wr}); n != 1 || err != nil {
				t.Fatalf("PostSend = %d, %v", n, err)
			}
			a.Wait(1)
			b.Wait(1)
		}
	}
	if each := (heap() - before) / (2 * pairs); each > limit {
		t.Errorf("a VirtualQP that has carried a few messages takes %d bytes, want at most %d", each, limit)
	}
	runtime.KeepAlive(&ends)
}

// heap returns the heap bytes in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
