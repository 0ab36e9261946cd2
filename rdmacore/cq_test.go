//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// TestCQFlags: CQ creation is retried with fewer flags, unless the errno has another cause than a
// missing feature.
func TestCQFlags(t *testing.T) {
	const single = 1<<32 | 1 // the flag, and the mask bit that enables it
	usual := verbs.CQConfig{Depth: 4}
	stamped := verbs.CQConfig{Depth: 4, Timestamp: true}
	for _, tt := range []struct {
		name     string
		cfg      verbs.CQConfig
		plain    bool
		prepare  func(*standin)
		tries    []uint64
		extended uint64
		err      error
	}{
		{name: "usual", cfg: usual, tries: []uint64{single}, extended: 1},
		{name: "no flags", cfg: usual, prepare: func(s *standin) { s.cq.noFlags = 1 }, tries: []uint64{single, 0}, extended: 1},
		{name: "no extended CQs", cfg: usual, prepare: func(s *standin) { s.cq.none = 1 }, tries: []uint64{single, 0}},
		{name: "plain", cfg: usual, plain: true},
		{name: "out of memory", cfg: usual, prepare: func(s *standin) { s.failWith(verbCQ, syscall.ENOMEM) }, tries: []uint64{single}, err: syscall.ENOMEM},
		{name: "timestamps, no flags", cfg: stamped, prepare: func(s *standin) { s.cq.noFlags = 1 }, tries: []uint64{single, 0}, extended: 1},
		{name: "timestamps, no extended CQs", cfg: stamped, prepare: func(s *standin) { s.cq.none = 1 }, tries: []uint64{single, 0}, err: verbs.ErrNotSupported},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lib, s := loadStandin(t, rdmacore.Config{PlainCQ: tt.plain})
			s.cq.timestamps = 1
			ctx := openFirst(t, lib)
			if tt.prepare != nil {
				tt.prepare(s)
			}
			cq, err := ctx.CreateCQ(tt.cfg)
			if tt.err != nil {
				wants(t, "CreateCQ", err, tt.err)
			} else {
				ok(t, err, "CreateCQ")
				ok(t, cq.Close(), "Close")
			}
			if got := s.cq.flags[:s.cq.tries]; !slices.Equal(got, tt.tries) || s.cq.made != tt.extended {
				t.Errorf("the driver was asked for the flags %#x and made %d extended CQs, want %#x and %d", got, s.cq.made, tt.tries, tt.extended)
			}
		})
	}
}

// TestCQHasOneThread: driver calls on a CQ never overlap, so the CQ may be created without the
// driver's lock.
func TestCQHasOneThread(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	r.state.linger = 2000
	other, err := r.ctx.CreateCQ(verbs.CQConfig{Depth: 64, Waker: r.waker})
	ok(t, err, "CreateCQ")
	var (
		done atomic.Bool
		wait sync.WaitGroup
	)
	for _, cq := range []verbs.CQ{r.cq, other} {
		wait.Go(func() {
			wcs := make([]verbs.WC, 8)
			for !done.Load() {
				if _, err := cq.Poll(wcs); err != nil {
					t.Errorf("Poll = %v, want none", err)
				}
				if err := cq.Arm(false); err != nil {
					t.Errorf("Arm = %v, want nil", err)
				}
				runtime.Gosched()
			}
		})
	}
	for i := 0; i < 8 || atomic.LoadUint64(&r.state.cq.visits) < 1000; i++ {
		qp, err := r.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: r.cq, RecvCQ: other, MaxSendWR: 8, MaxRecvWR: 8})
		ok(t, err, "CreateQP")
		ok(t, connect(qp), "Connect")
		r.post(t, qp, 1, 4)
		ok(t, qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState), "Modify to RESET")
		ok(t, qp.Close(), "Close")
	}
	done.Store(true)
	wait.Wait()
	if r.state.cq.overlaps != 0 {
		t.Errorf("%d of %d accesses to CQs met another one, want 0", r.state.cq.overlaps, r.state.cq.visits)
	}
	ok(t, other.Close(), "Close")
}
