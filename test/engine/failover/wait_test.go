package failover_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// newSleepers returns two hosts in real time, connected with a Control that wakes them.
func newSleepers(t *testing.T, rails, lanes int) (a, b *enginetest.Host) {
	t.Helper()
	links, wakers := enginetest.MemoryLinks(rails), [2]*verbs.Waker{verbs.NewWaker(), verbs.NewWaker()}
	var hosts [2]*enginetest.Host
	ends := [2]ibverbx.Control{}
	ends[0], ends[1] = ibverbx.ControlPair()
	for i := range hosts {
		hosts[i] = enginetest.NewRails(t, links)
		hosts[i].NewCQ(ibverbx.CQConfig{Waker: wakers[i]})
		hosts[i].NewQP(ibverbx.Config{Lanes: lanes, Control: ends[i]})
	}
	enginetest.Connect(t, hosts[0].QP, hosts[1].QP)
	return hosts[0], hosts[1]
}

// serve drives a host until the end of the test or until stop is called.
func serve(t *testing.T, h *enginetest.Host) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := h.CQ.Serve(ctx, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("Serve = %v, want %v", err, context.Canceled)
		}
	}()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return stop
}

// TestWaitReturnsNoEvent: lanes are lost and recover while a program waits for a message. Wait returns when
// the message arrives, and not for the events.
func TestWaitReturnsNoEvent(t *testing.T) {
	a, b := newSleepers(t, 2, 4)
	local, remote := a.Region(8), b.Region(8)
	b.PostRecv(ibverbx.RecvWR{WRID: 7})
	enginetest.Must(t, b.QP.KillLane(1))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sent := make(chan error, 1)
	go func() {
		// The peer notices the loss and recovers the lane before it sends.
		for lost := false; !lost || a.QP.Stats().Out > 0; lost = lost || a.QP.Stats().Out > 0 {
			var wcs [1]ibverbx.WC
			if _, err := a.CQ.Poll(wcs[:]); err != nil || ctx.Err() != nil {
				sent <- errors.Join(err, ctx.Err())
				return
			}
		}
		wr := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote()}
		wr.SetSGE(local.SGE(0, 8))
		_, err := a.QP.PostSend([]ibverbx.SendWR{wr})
		var wcs [1]ibverbx.WC
		if n, waited := a.CQ.Wait(ctx, wcs[:]); err == nil && n != 1 {
			err = fmt.Errorf("Wait of the sender = %d, %w", n, waited)
		}
		sent <- errors.Join(err, wcs[0].Err())
	}()
	var wcs [4]ibverbx.WC
	n, err := b.CQ.Wait(ctx, wcs[:])
	if n != 1 || err != nil || wcs[0].Err() != nil || wcs[0].WRID != 7 {
		t.Errorf("Wait = %d, %v with %+v; want the completion of receive 7", n, err, wcs[0])
	}
	serve(t, b)
	enginetest.Must(t, <-sent)
}

// TestWaitEndsWithIdleVirtualQP: a VirtualQP that fails while idle does not produce a completion. Wait
// returns its error, once. Serve returns it too.
func TestWaitEndsWithIdleVirtualQP(t *testing.T) {
	for _, lanes := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d lanes", lanes), func(t *testing.T) {
			a, b := newSleepers(t, 1, lanes)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			closeSoon(t, a)
			n, err := b.CQ.Wait(ctx, make([]ibverbx.WC, 1))
			if n != 0 || !errors.Is(err, ibverbx.ErrPeerGone) || !strings.Contains(fmt.Sprint(err), fmt.Sprintf("virtual QP %d", b.QP.Num())) {
				t.Errorf("Wait = %d, %v; want an error that names the virtual QP and wraps %v", n, err, ibverbx.ErrPeerGone)
			}
			wantSleep(t, b)
		})
	}
	t.Run("Serve", func(t *testing.T) {
		a, b := newSleepers(t, 1, 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		closeSoon(t, a)
		if err := b.CQ.Serve(ctx, nil); !errors.Is(err, ibverbx.ErrPeerGone) {
			t.Errorf("Serve = %v, want %v", err, ibverbx.ErrPeerGone)
		}
	})
}

// closeSoon closes a host's VirtualQP while the test waits for something else, at the latest at the end of
// the test.
func closeSoon(t *testing.T, h *enginetest.Host) {
	closed := make(chan error, 1)
	go func() { closed <- h.QP.Close() }()
	t.Cleanup(func() { enginetest.Must(t, <-closed) })
}

// wantSleep checks that Wait blocks.
func wantSleep(t *testing.T, h *enginetest.Host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if n, err := h.CQ.Wait(ctx, make([]ibverbx.WC, 1)); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait after that = %d, %v; want it to sleep", n, err)
	}
}

// TestWaitReturnsFlushes: a VirtualQP that fails with outstanding requests reports failed completions. Wait
// returns these without an error.
func TestWaitReturnsFlushes(t *testing.T) {
	for name, post := range map[string]func(b *enginetest.Host){
		"notification receive": func(b *enginetest.Host) { b.PostRecv(ibverbx.RecvWR{WRID: 7}) },
		"data receive": func(b *enginetest.Host) {
			wr := ibverbx.RecvWR{WRID: 7}
			wr.SetSGE(b.Region(8).SGE(0, 8))
			b.PostRecv(wr)
		},
		"request": func(b *enginetest.Host) {
			wr := ibverbx.SendWR{WRID: 7, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
			wr.SetSGE(b.Region(8).SGE(0, 8))
			b.PostSend(wr)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newSleepers(t, 1, 2)
			post(b)
			closeSoon(t, a)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var wcs [4]ibverbx.WC
			if n, err := b.CQ.Wait(ctx, wcs[:]); n != 1 || err != nil || wcs[0].WRID != 7 || wcs[0].Err() == nil {
				t.Errorf("Wait = %d, %v with %+v; want number 7 to fail", n, err, wcs[0])
			}
			wantSleep(t, b)
		})
	}
}

// TestZeroCompletionIsNoSuccess: a completion that no call has filled in is an error.
func TestZeroCompletionIsNoSuccess(t *testing.T) {
	if err := (&ibverbx.WC{}).Err(); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Err of a zero completion = %v, want %v", err, verbs.ErrInvalid)
	}
}
