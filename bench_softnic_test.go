package ibverbx_test

import (
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/internal/rig"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

var benchSizes = []struct {
	name  string
	bytes int
}{{"8B", 8}, {"64KiB", 64 << 10}, {"1MiB", 1 << 20}, {"64MiB", 64 << 20}}

// BenchmarkVirtualWrite writes over sixteen lanes on two rails of softnic, with up to 16
// requests and 64 MiB outstanding. Its measure is BenchmarkCopy.
func BenchmarkVirtualWrite(b *testing.B) {
	for _, s := range benchSizes {
		b.Run(fmt.Sprintf("size=%s/lanes=16/rails=2", s.name), func(b *testing.B) {
			links := []softnic.Link{softnic.NewMemoryLink(nil), softnic.NewMemoryLink(nil)}
			x, y := rig.NewPair(b, links, ibverbx.Config{Lanes: 16})
			local, remote := x.Region(s.bytes), y.Region(s.bytes)
			wrs := make([]ibverbx.SendWR, max(1, min(16, 64<<20/s.bytes)))
			for i := range wrs {
				wrs[i] = ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
				wrs[i].SetSGE(local.SGE(0, uint32(s.bytes)))
			}
			wcs := make([]ibverbx.WC, len(wrs))
			b.ReportAllocs()
			b.SetBytes(int64(s.bytes))
			b.ResetTimer()
			for done := 0; done < b.N; {
				n, err := x.QP.PostSend(wrs[:min(len(wrs), b.N-done)])
				rig.Must(b, err)
				for polled := 0; polled < n; {
					polled += pollAll(b, x.CQ, wcs)
				}
				done += n
			}
		})
	}
}

// BenchmarkCopy is what a WRITE within one process must come close to: a copy of as many
// bytes between the same kind of memory.
func BenchmarkCopy(b *testing.B) {
	for _, s := range benchSizes {
		b.Run("size="+s.name, func(b *testing.B) {
			h := rig.NewRails(b, rig.MemoryLinks(1))
			from, to := h.Region(s.bytes).Bytes(), h.Region(s.bytes).Bytes()
			b.ReportAllocs()
			b.SetBytes(int64(s.bytes))
			for b.Loop() {
				copy(to, from)
			}
		})
	}
}
