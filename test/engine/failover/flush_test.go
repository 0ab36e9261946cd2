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

// TestFlushNamesLostPeer: the peer closes while receives and a request are outstanding. Each of them
// fails with an error that wraps the error of the VirtualQP.
func TestFlushNamesLostPeer(t *testing.T) {
	for _, lanes := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d lanes", lanes), func(t *testing.T) {
			a, b := newSleepers(t, 1, lanes)
			region := b.Region(8)
			data := ibverbx.RecvWR{WRID: 2}
			data.SetSGE(region.SGE(0, 8))
			b.PostRecv(ibverbx.RecvWR{WRID: 1}, data)
			request := ibverbx.SendWR{WRID: 3, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
			request.SetSGE(region.SGE(0, 8))
			b.PostSend(request)
			closeSoon(t, a)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var wcs [4]ibverbx.WC
			for got := 0; got < 3; {
				n, err := b.CQ.Wait(ctx, wcs[:])
				enginetest.Must(t, err)
				got += n
				for _, wc := range wcs[:n] {
					wantFlush(t, &wc, ibverbx.ErrPeerGone, "the peer is gone")
				}
			}
		})
	}
}

// wantFlush checks that a failed completion's error is a *verbs.WCError, wraps the cause and contains the
// text.
func wantFlush(t *testing.T, wc *ibverbx.WC, cause error, text string) {
	t.Helper()
	var failed *verbs.WCError
	err := wc.Err()
	if !errors.As(err, &failed) || failed.Status != wc.Status || failed.WRID != wc.WRID {
		t.Errorf("Err of %d = %v, want a *verbs.WCError of it", wc.WRID, err)
	}
	if !errors.Is(err, cause) || !strings.Contains(fmt.Sprint(err), text) {
		t.Errorf("Err of %d = %v, want it to wrap %v and contain %q", wc.WRID, err, cause, text)
	}
}

// TestFlushNamesFirstFailure: a request has a wrong key. Later requests are flushed, and their errors name
// the first failure, on a single pass-through lane and on several lanes.
func TestFlushNamesFirstFailure(t *testing.T) {
	for _, lanes := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d lanes", lanes), func(t *testing.T) {
			a, b := enginetest.NewPair(t, enginetest.MemoryLinks(1), ibverbx.Config{Lanes: lanes})
			local, remote := a.Region(8), b.Region(8).Remote()
			wrong := *remote
			wrong.RKeys = []uint32{remote.RKeys[0] ^ 0xff00}
			var wrs []ibverbx.SendWR
			for id, target := range []*ibverbx.RemoteRegion{&wrong, remote, remote} {
				wr := ibverbx.SendWR{WRID: uint64(id), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled | verbs.SendFence, Remote: target}
				wr.SetSGE(local.SGE(0, 8))
				wrs = append(wrs, wr)
			}
			a.PostSend(wrs...)
			for _, wc := range a.Wait(3) {
				wantFlush(t, &wc, a.QP.Err(), verbs.StatusRemAccessErr.String())
			}
		})
	}
}

// TestFlushNamesKilledLane: a lane's QP moves to ERR without an earlier failure. The errors of the flushed
// receives report that, and do not refer to a completion that does not exist.
func TestFlushNamesKilledLane(t *testing.T) {
	for _, lanes := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d lanes", lanes), func(t *testing.T) {
			_, b := enginetest.NewPair(t, enginetest.MemoryLinks(1), ibverbx.Config{Lanes: lanes})
			b.PostRecv(ibverbx.RecvWR{WRID: 1}, ibverbx.RecvWR{WRID: 2})
			enginetest.Must(t, b.QP.KillLane(0))
			for _, wc := range b.Wait(2) {
				wantFlush(t, &wc, b.QP.Err(), "the NIC has moved its QP to ERR")
				if strings.Contains(wc.Err().Error(), "earlier failed completion") {
					t.Errorf("Err of %d = %v, and there is no earlier failed completion", wc.WRID, wc.Err())
				}
			}
		})
	}
}

// TestFlushNamesDeadline: the errors of the request that missed its deadline and of later requests name the
// deadline.
func TestFlushNamesDeadline(t *testing.T) {
	d := newDuo(t, 1, ibverbx.Config{Lanes: 2, Deadline: time.Second})
	local, remote := d.hosts[0].Region(16), d.hosts[1].Region(16)
	d.links[0].Cut(d.hosts[0].NICs[0], d.hosts[1].NICs[0])
	d.post(0, 2, 8, local, remote)
	d.until("both requests have ended", func() bool { return len(d.got[0]) == 2 })
	for _, wc := range d.got[0] {
		if err := wc.Err(); !errors.Is(err, ibverbx.ErrDeadline) {
			t.Errorf("Err of %d = %v, want %v", wc.WRID, err, ibverbx.ErrDeadline)
		}
	}
}

// TestAcknowledgedBeforeTheEnd: the news of the peer's end overtakes the acknowledgment of a request. The request succeeds, and then the
// VirtualQP fails.
func TestAcknowledgedBeforeTheEnd(t *testing.T) {
	d := newDuo(t, 1, ibverbx.Config{Lanes: 2})
	a, b := d.hosts[0], d.hosts[1]
	from, to := b.NICs[0], a.NICs[0]
	d.links[0].Hold(from, to)
	b.PostRecv(ibverbx.RecvWR{WRID: 1})
	wr := ibverbx.SendWR{WRID: 2, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: b.Region(8).Remote()}
	wr.SetSGE(a.Region(8).SGE(0, 8))
	a.PostSend(wr)
	d.until("the message", func() bool { return len(d.got[1]) > 0 })
	enginetest.Must(t, b.QP.Close())
	for end := d.now + int64(2*time.Millisecond); d.now < end; {
		d.step()
	}
	d.links[0].Release(from, to)
	d.until("the completion", func() bool { return len(d.got[0]) > 0 })
	if wc := &d.got[0][0]; wc.WRID != 2 || wc.Err() != nil {
		t.Errorf("completion %d: %v, want the success of 2", wc.WRID, wc.Err())
	}
	d.until("the failure", func() bool { return a.QP.Err() != nil })
	if err := a.QP.Err(); !errors.Is(err, ibverbx.ErrPeerGone) {
		t.Errorf("Err = %v, want %v", err, ibverbx.ErrPeerGone)
	}
}

// TestDeliveredBeforeTheEnd: the news of a lost lane and of the peer's end overtakes messages that the peer has seen complete. They
// are received, and then the VirtualQP fails.
func TestDeliveredBeforeTheEnd(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		lanes := 2
		if scheme == ibverbx.Spray {
			lanes = 3
		}
		for lane := range lanes {
			const messages = 3
			d := newDuo(t, 1, ibverbx.Config{Lanes: 1, Scheme: scheme})
			a, b := d.hosts[0], d.hosts[1]
			local, remote := a.Region(64), b.Region(64)
			d.post(0, messages, 8, local, remote)
			data := ibverbx.RecvWR{WRID: messages}
			data.SetSGE(remote.SGE(0, 8))
			b.PostRecv(data)
			send := ibverbx.SendWR{WRID: messages, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
			send.SetSGE(local.SGE(0, 8))
			a.PostSend(send)
			for len(d.got[0]) <= messages { // only the sender polls
				d.got[0] = append(d.got[0], a.Poll()...)
				d.now += int64(20 * time.Microsecond)
				d.links[0].Step()
			}
			d.kill(0, lane)
			for a.QP.Stats().Lanes[lane].State != "gone" {
				a.Poll()
			}
			enginetest.Must(t, a.QP.Close())
			_, err := b.CQ.Poll(nil) // reads the control messages and no CQ
			enginetest.Must(t, err)
			d.until("all receives have ended and the failure", func() bool { return len(d.got[1]) == messages+1 && b.QP.Err() != nil })
			for i := range d.got[1] {
				if err := d.got[1][i].Err(); err != nil {
					t.Errorf("lane %d: message %d: %v, want success", lane, i, err)
				}
			}
		}
	})
}
