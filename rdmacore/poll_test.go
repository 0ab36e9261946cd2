//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// cqKinds runs a test with plain CQs on devices with and without extended CQs, with an extended CQ,
// and with an extended CQ whose driver skips entries like Soft-RoCE's.
func cqKinds(t *testing.T, run func(t *testing.T, r *rig)) {
	for _, kind := range []struct {
		name     string
		plain    bool
		old, rxe bool
		extended uint64 // whether the device has extended CQs
	}{
		{name: "plain", plain: true},
		{name: "old", old: true},
		{name: "extended", extended: 1},
		{name: "rxe", rxe: true, extended: 1},
	} {
		t.Run(kind.name, func(t *testing.T) {
			lib, s := loadStandin(t, rdmacore.Config{PlainCQ: kind.plain})
			if kind.old {
				s.device.oldContext = 1
			}
			if kind.rxe {
				s.beRXE(t)
			}
			r := newRigOn(t, lib, s, verbs.RC)
			if got := s.cq.made; got != kind.extended {
				t.Fatalf("%d extended CQs were made, want %d", got, kind.extended)
			}
			run(t, r)
		})
	}
}

// post posts n signaled writes, numbered from first.
func (r *rig) post(tb testing.TB, qp verbs.QP, first, n int) {
	tb.Helper()
	wrs := make([]verbs.SendWR, n)
	for i := range wrs {
		wrs[i] = verbs.SendWR{WRID: uint64(first + i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Imm: 0x01020304}
	}
	if got, err := qp.PostSend(wrs); got != n || err != nil {
		tb.Fatalf("PostSend of %d = %d, %v, want all", n, got, err)
	}
}

// Each kind of CQ sets all meaningful fields of a completion, and zeroes the others.
func TestPollFields(t *testing.T) {
	cqKinds(t, func(t *testing.T, r *rig) {
		qpn := r.qp.Num()
		datagrams := false
		for _, tt := range []struct {
			what string
			want verbs.WC
		}{
			{"a write", verbs.WC{Opcode: verbs.WCRDMAWrite}},
			{"a read", verbs.WC{Opcode: verbs.WCRDMARead, ByteLen: 1234}},
			{"an atomic", verbs.WC{Opcode: verbs.WCFetchAdd, ByteLen: 1234}},
			{"a receive", verbs.WC{Opcode: verbs.WCRecv, ByteLen: 1234, Flags: verbs.WCGRH | verbs.WCWithImm, Imm: 0x01020304}},
			{"a failure", verbs.WC{Status: verbs.StatusRemAccessErr, VendorErr: 0x77}},
			{"a datagram", verbs.WC{
				Opcode: verbs.WCRecv, ByteLen: 1234, Flags: verbs.WCGRH | verbs.WCWithImm, Imm: 0x01020304, SrcQPN: 0x99, SLID: 6, SL: 7,
			}},
			{"a write beside datagrams", verbs.WC{Opcode: verbs.WCRDMAWrite}},
			{"a failure beside datagrams", verbs.WC{Status: verbs.StatusRemAccessErr, VendorErr: 0x77}},
		} {
			if tt.want.SrcQPN != 0 && !datagrams {
				datagrams = true
				r.newQP(t, verbs.QPConfig{Type: verbs.UD}) // receives into the same CQ
			}
			r.state.opcode, r.state.status = uint64(tt.want.Opcode)+1, uint64(tt.want.Status)
			if tt.want.Status != verbs.StatusSuccess {
				r.state.opcode = uint64(verbs.WCRecv) + 1 // invalid, and must not be delivered
			}
			r.post(t, r.qp, 42, 1)
			wcs := []verbs.WC{{WRID: 1, Status: 2, Opcode: 3, Flags: 0xff, ByteLen: 5, SrcQPN: 6, PKeyIndex: 7, Timestamp: 8}, {WRID: 99}}
			n, err := r.cq.Poll(wcs)
			tt.want.WRID, tt.want.QPN = 42, qpn
			if n != 1 || err != nil || wcs[0] != tt.want || wcs[1] != (verbs.WC{WRID: 99}) {
				t.Errorf("Poll of %s = %d, %v with %+v, want %+v and the second untouched", tt.what, n, err, wcs, tt.want)
			}
		}
	})
}

// A poll calls the driver of a plain CQ once and starts an extended CQ once. Soft-RoCE cannot
// advance to the next entry, so there each completion needs a start.
func TestPollAsksOnce(t *testing.T) {
	cqKinds(t, func(t *testing.T, r *rig) {
		r.post(t, r.qp, 0, 16)
		polls, crossings := r.state.polls, rdmacore.Crossings(r.cq)
		if n, err := r.cq.Poll(make([]verbs.WC, 16)); n != 16 || err != nil {
			t.Fatalf("Poll = %d, %v, want 16, nil", n, err)
		}
		want := uint64(1)
		if r.state.cq.steps != 0 {
			want = 16
		}
		if got := r.state.polls - polls; got != want {
			t.Errorf("the driver was called %d times for 16 completions, want %d", got, want)
		}
		if got := rdmacore.Crossings(r.cq) - crossings; got != 1 {
			t.Errorf("%d crossings for one poll, want 1", got)
		}
	})
}

// Completions are delivered oldest first, whatever the batch size.
func TestPollBatches(t *testing.T) {
	cqKinds(t, func(t *testing.T, r *rig) {
		next := uint64(0)
		for _, size := range []int{1, 3, 16, 300, 2, 256} {
			r.post(t, r.qp, int(next), min(size, 200))
			left := min(size, 200)
			for left > 0 {
				wcs := make([]verbs.WC, size)
				n, err := r.cq.Poll(wcs)
				if n < 1 || err != nil {
					t.Fatalf("Poll into %d = %d, %v with %d left, want some", size, n, err, left)
				}
				for _, wc := range wcs[:n] {
					if wc.WRID != next {
						t.Fatalf("got completion %d, want %d next", wc.WRID, next)
					}
					next++
				}
				left -= n
			}
			for _, dst := range [][]verbs.WC{make([]verbs.WC, 4), nil} {
				if n, err := r.cq.Poll(dst); n != 0 || err != nil {
					t.Fatalf("Poll of an empty CQ = %d, %v, want 0, nil", n, err)
				}
			}
		}
	})
}

// A driver's poll error is returned.
func TestPollError(t *testing.T) {
	cqKinds(t, func(t *testing.T, r *rig) {
		r.state.failWith(verbPoll, syscall.EIO)
		n, err := r.cq.Poll(make([]verbs.WC, 4))
		if n != 0 {
			t.Errorf("Poll of a broken CQ = %d, want 0", n)
		}
		wants(t, "Poll of a broken CQ", err, verbs.ErrDeviceFatal, "poll CQ")
		r.state.failWith(verbPoll, 0)
	})
}

// Closing or resetting a QP removes its completions from its CQ. Completions of other QPs stay, in
// order, although QP numbers are soon reused.
func TestDiscard(t *testing.T) {
	cqKinds(t, func(t *testing.T, r *rig) {
		other := r.newQP(t, verbs.QPConfig{Type: verbs.RC})
		ok(t, connect(other), "Connect")
		r.post(t, other, 99, 1)
		ok(t, other.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState), "Modify to RESET")
		if n, err := r.cq.Poll(make([]verbs.WC, 4)); n != 0 || err != nil {
			t.Fatalf("Poll after RESET = %d, %v, want 0, nil", n, err)
		}
		ok(t, connect(other), "Connect again")
		for i := range 30 {
			r.post(t, r.qp, i, 1)
			r.post(t, other, 100+i, 1)
		}
		ok(t, other.Close(), "Close")
		r.post(t, r.qp, 30, 1)
		wcs := make([]verbs.WC, 7)
		next := uint64(0)
		for next <= 30 {
			n, err := r.cq.Poll(wcs)
			if n < 1 || err != nil {
				t.Fatalf("Poll = %d, %v after %d completions, want 31", n, err, next)
			}
			for _, wc := range wcs[:n] {
				if wc.WRID != next || wc.QPN != r.qp.Num() {
					t.Fatalf("completion %d of QP %#x, want %d of %#x", wc.WRID, wc.QPN, next, r.qp.Num())
				}
				next++
			}
		}
		if n, err := r.cq.Poll(wcs); n != 0 || err != nil {
			t.Errorf("Poll at the end = %d, %v, want 0, nil", n, err)
		}
	})
}

// An armed CQ wakes its Waker through the completion channel, once.
func TestArm(t *testing.T) {
	cqKinds(t, func(t *testing.T, r *rig) {
		for i := range 3 {
			ok(t, r.cq.Arm(false), "Arm")
			r.post(t, r.qp, i, 1)
			wcs := make([]verbs.WC, 2)
			ok(t, r.waker.Wait(t.Context()), "Wait for the wake")
			if n, err := r.cq.Poll(wcs); n != 1 || err != nil {
				t.Fatalf("Poll after the wake = %d, %v, want 1, nil", n, err)
			}
		}
		r.state.failWith(verbArm, syscall.EINVAL)
		wants(t, "Arm that the driver refuses", r.cq.Arm(false), verbs.ErrInvalid, "arm CQ")
		r.state.failWith(verbArm, 0)
	})
}

// Wait returns when its context is canceled or its CQ is closed.
func TestWaitEnds(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := verbs.Wait(ctx, r.cq, r.waker, make([]verbs.WC, 1))
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Wait on a context that was cancelled = %v, want context.Canceled", err)
	}
	go func() {
		_, err := verbs.Wait(t.Context(), r.cq, r.waker, make([]verbs.WC, 1))
		ended <- err
	}()
	wants(t, "Close of a CQ in use", r.cq.Close(), verbs.ErrBusy)
	ok(t, r.qp.Close(), "Close of the QP")
	ok(t, r.cq.Close(), "Close of the CQ")
	if err := <-ended; !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Wait on a CQ that was closed = %v, want ErrClosed", err)
	}
}

// Timestamps require an extended CQ. Otherwise creating the CQ fails.
func TestTimestamps(t *testing.T) {
	for _, tt := range []struct {
		name                   string
		timestamps, oldContext uint64
		refused                bool
	}{
		{"device has them", 1, 0, false},
		{"device has none", 0, 0, true},
		{"context is old", 1, 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lib, s := loadStandin(t, rdmacore.Config{})
			s.cq.timestamps, s.device.oldContext = tt.timestamps, tt.oldContext
			devices, err := lib.Devices()
			ok(t, err, "Devices")
			ctx, err := devices[0].Open()
			ok(t, err, "Open")
			defer func() { ok(t, ctx.Close(), "Close") }()
			attr, err := ctx.QueryDevice()
			ok(t, err, "QueryDevice")
			if has := attr.Capabilities&verbs.CapTimestamp != 0; has == tt.refused {
				t.Errorf("CapTimestamp is %v, want %v", has, !tt.refused)
			}
			cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 16, Timestamp: true})
			ticks, hz, clock := ctx.(verbs.ClockReader).ReadClock()
			if tt.refused {
				wants(t, "CreateCQ with Timestamp", err, verbs.ErrNotSupported)
				wants(t, "ReadClock", clock, verbs.ErrNotSupported)
				return
			}
			ok(t, err, "CreateCQ")
			if clock != nil || ticks != 5e9 || hz != 156_250_000 {
				t.Errorf("ReadClock = %d, %d, %v, want 5000000000 ticks at 156250000 Hz", ticks, hz, clock)
			}
			s.failWith(verbClock, syscall.EIO)
			_, _, clock = ctx.(verbs.ClockReader).ReadClock()
			wants(t, "ReadClock of a driver that fails", clock, syscall.EIO)
			pd, err := ctx.AllocPD()
			ok(t, err, "AllocPD")
			r := &rig{state: s, ctx: ctx, pd: pd, cq: cq}
			qp := r.newQP(t, verbs.QPConfig{Type: verbs.RC})
			ok(t, connect(qp), "Connect")
			r.post(t, qp, 1, 2)
			wcs := make([]verbs.WC, 2)
			if n, err := cq.Poll(wcs); n != 2 || err != nil || wcs[0].Timestamp != 1000 || wcs[1].Timestamp != 1001 {
				t.Errorf("Poll = %d, %v with timestamps %d and %d, want 1000 and 1001", n, err, wcs[0].Timestamp, wcs[1].Timestamp)
			}
		})
	}
}
