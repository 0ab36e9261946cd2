//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"bytes"
	"runtime"
	"testing"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// Registered memory, and the slices of requests and completions, stay in place while the
// garbage collector runs.
func TestCollectorRXE(t *testing.T) {
	ctx := openRXE(t, rxeDevices(t, rdmacore.Config{})["rxe0"])
	pd, err := ctx.AllocPD()
	ok(t, err, "AllocPD")
	cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 64})
	ok(t, err, "CreateCQ")
	qp, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 16})
	ok(t, err, "CreateQP")
	ok(t, connect(qp), "Connect to itself")
	const size = 64 << 10
	mem, err := verbs.AllocMemory(2*size, nil)
	ok(t, err, "AllocMemory")
	mr, err := pd.RegisterMemory(mem, verbs.AccessAll)
	ok(t, err, "RegisterMemory")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	for round := range 200 {
		src, dst := mem.Bytes()[:size], mem.Bytes()[size:]
		for i := range src {
			src[i] = byte(i*7 + round)
		}
		wr := verbs.SendWR{WRID: uint64(round), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: mr.Addr() + size, RKey: mr.RKey()}
		wr.SetSGE(verbs.SGE{Addr: mr.Addr(), Length: size, LKey: mr.LKey()})
		if n, err := qp.PostSend([]verbs.SendWR{wr}); n != 1 || err != nil {
			t.Fatalf("PostSend = %d, %v, want 1, nil", n, err)
		}
		wcs := make([]verbs.WC, 1)
		for n := 0; n == 0; {
			if n, err = cq.Poll(wcs); err != nil {
				t.Fatalf("Poll = %v, want nil", err)
			}
		}
		if wcs[0].Err() != nil || wcs[0].WRID != uint64(round) || !bytes.Equal(src, dst) {
			t.Fatalf("round %d: wr_id %d, %v, bytes the same: %v, want success", round, wcs[0].WRID, wcs[0].Err(), bytes.Equal(src, dst))
		}
	}
	close(stop)
	<-stopped
	ok(t, ctx.Close(), "Close of the context")
	ok(t, mem.Free(), "Free")
}
