package reliable_test

import (
	"fmt"
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestChunkOfDevice: where a post moves the data on the caller's core a chunk has 64 KiB by default, elsewhere
// 32 KiB, because a lost packet costs a chunk.
func TestChunkOfDevice(t *testing.T) {
	reliable.OverUC(t, "chunks of several packets")
	for name, want := range map[string]uint64{"memory": 1, "udp": 1, "udp, loss=1%": 2, "clean": 2, "loss=1%": 2} {
		t.Run(name, func(t *testing.T) {
			a, b := newPair(t, links(t)[name](), reliable.Config{}, 64<<10)
			transfer(t, a, b, verbs.OpRDMAWrite, 64<<10)
			if got := chunksOf(a); got != want {
				t.Errorf("64 KiB took %d chunks, want %d", got, want)
			}
		})
	}
}

// TestSmallerChunkCounts connects ends with different chunk sizes. Each must send chunks that fit the other's
// buffers, including retransmitted ones.
func TestSmallerChunkCounts(t *testing.T) {
	const size = 8000
	for _, flows := range []int{1, 3} {
		for name, loss := range map[string]float64{"clean": 0, "loss=10%": 0.1} {
			t.Run(fmt.Sprintf("flows=%d/%s", flows, name), func(t *testing.T) {
				link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 1, Impairment: softnic.Impairment{Loss: loss}})
				must(t, err)
				cfg := reliable.Config{Paths: 2, Flows: flows, ChunkBytes: 4000}
				a := newSide(t, link, cfg, size)
				cfg.ChunkBytes = 1000
				b := newSide(t, link, cfg, size)
				connect(t, a, b)
				for op := verbs.OpRDMAWrite; op <= verbs.OpRDMARead; op++ {
					transfer(t, a, b, op, size)
					transfer(t, b, a, op, size)
				}
				before := [2]uint64{chunksOf(a), chunksOf(b)}
				transfer(t, a, b, verbs.OpRDMAWrite, size)
				transfer(t, b, a, verbs.OpRDMAWrite, size)
				if got := [2]uint64{chunksOf(a) - before[0], chunksOf(b) - before[1]}; got != [2]uint64{8, 8} {
					t.Errorf("%d bytes each way took %d chunks, want 8 of 1000 bytes each", size, got)
				}
			})
		}
	}
}

// chunksOf returns the number of distinct chunks the QP has sent.
func chunksOf(s *side) uint64 { return s.qp.(reliable.StatsReader).Stats().Chunks }
