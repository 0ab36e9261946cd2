package traffic_test

import (
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestClosedRegionIsRefused: every use of a closed region with freed memory returns an error before the
// memory is accessed.
func TestClosedRegionIsRefused(t *testing.T) {
	forEachWidth(t, func(t *testing.T, cfg ibverbx.Config) {
		a, b := enginetest.NewPair(t, enginetest.MemoryLinks(2), cfg)
		open, remote := a.Region(4096), b.Region(4096)
		mem, err := verbs.AllocMemory(4096, nil)
		enginetest.Must(t, err)
		closed, err := a.Rails.Register(mem, verbs.AccessAll)
		enginetest.Must(t, err)
		enginetest.Must(t, closed.Close())
		enginetest.Must(t, mem.Free())
		enginetest.Must(t, closed.Close()) // closing twice is harmless
		for _, sges := range [][]ibverbx.SGE{{closed.SGE(0, 8)}, {closed.SGE(0, 0)}, {open.SGE(0, 8), closed.SGE(8, 8)}} {
			for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead, verbs.OpSend, verbs.OpAtomicFetchAndAdd} {
				for _, flags := range []verbs.SendFlags{0, verbs.SendInline} {
					wr := ibverbx.SendWR{Opcode: op, Flags: flags | verbs.SendSignaled, Remote: remote.Remote()}
					wr.SetSGE(sges...)
					if n, err := a.QP.PostSend([]ibverbx.SendWR{wr}); n != 0 || !errors.Is(err, verbs.ErrClosed) {
						t.Errorf("PostSend of %s with %v and %d SGEs = %d, %v; want %v", op, flags, len(sges), n, err, verbs.ErrClosed)
					}
				}
			}
			wr := ibverbx.RecvWR{}
			wr.SetSGE(sges...)
			if n, err := a.QP.PostRecv([]ibverbx.RecvWR{wr}); n != 0 || !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("PostRecv with %d SGEs = %d, %v; want %v", len(sges), n, err, verbs.ErrClosed)
			}
		}
		if closed.Bytes() != nil || closed.Len() != 0 || len(closed.Remote().RKeys) != 0 {
			t.Errorf("a closed region has %d bytes, Len %d and the keys %v; want none", len(closed.Bytes()), closed.Len(), closed.Remote().RKeys)
		}
		// The VirtualQP still works.
		wr := ibverbx.SendWR{WRID: 7, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
		wr.SetSGE(open.SGE(0, 8))
		a.PostSend(wr)
		if wc := a.Wait(1)[0]; wc.WRID != 7 || wc.Err() != nil {
			t.Errorf("completion = %+v, %v; want request 7", wc, wc.Err())
		}
	})
}
