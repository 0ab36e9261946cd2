//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"errors"
	"runtime"
	"sync"
	"testing"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// postUntil posts chains until it gets a non-transient error, and returns that error.
func postUntil(qp verbs.QP) error {
	wrs := make([]verbs.SendWR, 3)
	for i := range wrs {
		wrs[i].Opcode = verbs.OpRDMAWrite
	}
	for {
		n, err := qp.PostSend(wrs)
		switch {
		case n == len(wrs) && err == nil:
		case n == 0 && errors.Is(err, verbs.ErrState):
			runtime.Gosched()
		default:
			return err
		}
	}
}

// Posts to one QP are serialized, and none runs while the QP is closed or reset. Later posts return
// an error until the QP is connected again.
func TestGate(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	for _, linger := range []uint64{1, 20, 20_000} { // with the last one, waiters stop spinning and sleep
		r.state.linger = linger
		for range 5 {
			qp := r.newQP(t, verbs.QPConfig{Type: verbs.RC})
			ok(t, connect(qp), "Connect")
			before := rdmacore.Crossings(qp)
			const posters = 4
			ends := make([]error, posters)
			var wg sync.WaitGroup
			for i := range ends {
				wg.Go(func() { ends[i] = postUntil(qp) })
			}
			for rdmacore.Crossings(qp) < before+20 {
				runtime.Gosched()
			}
			ok(t, qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState), "Modify to RESET under posts")
			ok(t, connect(qp), "Connect again")
			for rdmacore.Crossings(qp) < before+40 {
				runtime.Gosched()
			}
			ok(t, qp.Close(), "Close under posts")
			wg.Wait()
			for i, err := range ends {
				if !errors.Is(err, verbs.ErrClosed) {
					t.Errorf("poster %d ended with %v, want %v", i, err, verbs.ErrClosed)
				}
			}
		}
	}
	if r.state.overlaps != 0 {
		t.Errorf("%d posts met another post or the end of their QP, want 0", r.state.overlaps)
	}
}

// The same for receives. After Close, this package returns the error, and the handle stays valid
// while the QP is reachable.
func TestGateRecv(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	for range 20 {
		qp := r.newQP(t, verbs.QPConfig{Type: verbs.RC})
		ok(t, connect(qp), "Connect")
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					if n, err := qp.PostRecv(make([]verbs.RecvWR, 2)); err != nil {
						if n != 0 || !errors.Is(err, verbs.ErrClosed) {
							t.Errorf("PostRecv = %d, %v, want 0, %v", n, err, verbs.ErrClosed)
						}
						return
					}
				}
			})
		}
		for rdmacore.Crossings(qp) < 20 {
			runtime.Gosched()
		}
		ok(t, qp.Close(), "Close under posts")
		wg.Wait()
		runtime.GC()
	}
}
