package traffic_test

import (
	"bytes"
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// flood is a sender of more messages than its peer has receives for.
type flood struct {
	w                    *wires
	a, b                 *enginetest.Host
	local, remote        *ibverbx.Region
	completed, delivered int
	// lockstep posts receive n+1 only after message n was reported to both sides.
	lockstep bool
}

const floodMessages, floodSlot = 300, 64

// floodConfig returns a config and the maximum number of messages that can arrive without user receives:
// RecvDepth in the engine plus its receives on the lanes.
func floodConfig(scheme ibverbx.Scheme) (cfg ibverbx.Config, held int) {
	cfg = ibverbx.Config{Lanes: 3, Scheme: scheme, RecvDepth: 8, NotifyDepth: 4, SendDepth: 512}
	return cfg, cfg.RecvDepth + (cfg.Lanes+1)*cfg.NotifyDepth
}

// newFlood posts all messages in advance.
func newFlood(t *testing.T, cfg ibverbx.Config, opcode verbs.Opcode) *flood {
	t.Helper()
	f := &flood{w: newStill(2)}
	f.a, f.b = enginetest.NewPair(t, f.w.links, cfg)
	f.local, f.remote = f.a.Region(floodMessages*floodSlot), f.b.Region(floodMessages*floodSlot)
	var wrs []ibverbx.SendWR
	for i := range floodMessages {
		enginetest.Stamp(f.local.Bytes()[i*floodSlot:][:floodSlot], 0, i)
		wr := ibverbx.SendWR{WRID: uint64(i), Opcode: opcode, Flags: verbs.SendSignaled, Imm: uint32(i) * 7, Remote: f.remote.Remote(), RemoteOffset: uint64(i * floodSlot)}
		wr.SetSGE(f.local.SGE(uint64(i*floodSlot), floodSlot))
		wrs = append(wrs, wr)
	}
	f.a.PostSend(wrs...)
	return f
}

// step polls both sides and advances time. It returns the receiver's completions.
func (f *flood) step(t *testing.T) []ibverbx.WC {
	t.Helper()
	f.completed += pollOnce(t, f.a, f.completed)
	wcs := f.b.Poll()
	if len(wcs) == 0 {
		f.w.step()
	}
	return wcs
}

// stall lets a long time pass without receives. The receiver must respond with RNR and must not be notified,
// only a bounded number of messages may complete, and neither side may fail.
func (f *flood) stall(t *testing.T, held int) {
	t.Helper()
	for range 2000 {
		if wcs := f.step(t); len(wcs) > 0 {
			t.Fatalf("delivered %+v without a receive", wcs[0])
		}
	}
	if f.completed > held {
		t.Errorf("%d messages completed without a receive, want at most %d", f.completed, held)
	}
	var rnr uint64
	for _, nic := range f.b.NICs {
		rnr += nic.Stats().RNRNAKsSent
	}
	if rnr == 0 {
		t.Error("the receiver answered no message with RNR")
	}
	if f.a.QP.Err() != nil || f.b.QP.Err() != nil {
		t.Errorf("Err = %v and %v, want none", f.a.QP.Err(), f.b.QP.Err())
	}
}

// drain posts receives, a few at a time, until every message has been notified.
func (f *flood) drain(t *testing.T, recv func(nth int) ibverbx.RecvWR, check func(wc ibverbx.WC, nth int)) {
	t.Helper()
	p := stallGuard{limit: steps}
	for posted := 0; f.delivered < floodMessages || f.completed < floodMessages; {
		due := f.delivered + 3
		if f.lockstep {
			due = min(f.delivered, f.completed) + 1
		}
		for posted < min(due, floodMessages) {
			n, err := f.b.QP.PostRecv([]ibverbx.RecvWR{recv(posted)})
			if n != 1 || err != nil {
				t.Fatalf("PostRecv %d = %d, %v; want 1", posted, n, err)
			}
			posted++
		}
		wcs := f.step(t)
		for _, wc := range wcs {
			check(wc, f.delivered)
			if got := f.remote.Bytes()[f.delivered*floodSlot:][:floodSlot]; !bytes.Equal(got, enginetest.Stamped(floodSlot, 0, f.delivered)) {
				t.Fatalf("message %d was delivered before its bytes", f.delivered)
			}
			f.delivered++
		}
		if err := p.step(len(wcs) > 0); err != nil {
			t.Fatalf("%v: %d delivered, %d completed of %d; %v, %v", err, f.delivered, f.completed, floodMessages, f.a.QP.Err(), f.b.QP.Err())
		}
	}
}

// TestReceivesRunOut: RNR throttles a peer that sends more than there are receives for, after a bounded
// number of messages. When receives are posted, every message is notified once and in order, for notified
// WRITEs and for SENDs.
func TestReceivesRunOut(t *testing.T) {
	for _, scheme := range enginetest.Schemes {
		t.Run(scheme.String()+"/notified", func(t *testing.T) {
			cfg, held := floodConfig(scheme)
			f := newFlood(t, cfg, verbs.OpRDMAWriteWithImm)
			f.stall(t, held)
			f.drain(t, func(nth int) ibverbx.RecvWR { return ibverbx.RecvWR{WRID: uint64(nth)} },
				func(wc ibverbx.WC, nth int) { checkNotification(t, scheme, wc, nth, nth, floodSlot) })
		})
		t.Run(scheme.String()+"/sent", func(t *testing.T) {
			cfg, _ := floodConfig(scheme)
			f := newFlood(t, cfg, verbs.OpSendWithImm)
			f.stall(t, 0)
			f.drainSent(t)
		})
	}
}

// drainSent is drain for SENDs.
func (f *flood) drainSent(t *testing.T) {
	t.Helper()
	f.drain(t, func(nth int) ibverbx.RecvWR {
		wr := ibverbx.RecvWR{WRID: uint64(nth)}
		wr.SetSGE(f.remote.SGE(uint64(nth*floodSlot), floodSlot))
		return wr
	}, func(wc ibverbx.WC, nth int) {
		if err := wc.Err(); err != nil || wc.WRID != uint64(nth) || wc.Imm != uint32(nth)*7 || wc.ByteLen != floodSlot {
			t.Fatalf("receive = %+v, %v; want receive %d of %d bytes", wc, err, nth, floodSlot)
		}
	})
}

// TestReceivesOneByOne: the sender posts many requests together. The receiver posts each receive only after
// the sender's preceding request has completed. A completion must not be deferred until a later request
// completes: that would deadlock both sides.
func TestReceivesOneByOne(t *testing.T) {
	for _, scheme := range enginetest.Schemes {
		cfg, _ := floodConfig(scheme)
		for _, depth := range []int{1, 5} { // less than a chain of messages without a completion could have
			cfg.RecvDepth, cfg.NotifyDepth = depth, 1
			t.Run(fmt.Sprintf("%s/notified/depth=%d", scheme, depth), func(t *testing.T) {
				f := newFlood(t, cfg, verbs.OpRDMAWriteWithImm)
				f.lockstep = true
				f.drain(t, func(nth int) ibverbx.RecvWR { return ibverbx.RecvWR{WRID: uint64(nth)} },
					func(wc ibverbx.WC, nth int) { checkNotification(t, scheme, wc, nth, nth, floodSlot) })
			})
		}
		cfg.RecvDepth = 1
		t.Run(scheme.String()+"/sent", func(t *testing.T) {
			f := newFlood(t, cfg, verbs.OpSendWithImm)
			f.lockstep = true
			f.drainSent(t)
		})
	}
}

// TestSprayNotificationsCompleteOneByOne: a C++ peer posts one receive, so that its NIC acknowledges the
// first of three notifications. The first request is complete.
func TestSprayNotificationsCompleteOneByOne(t *testing.T) {
	x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 2, Scheme: ibverbx.Spray, CxxPeer: true})
	x.PostSend(x.Request(1, verbs.OpRDMAWriteWithImm, 8), x.Request(2, verbs.OpRDMAWriteWithImm, 8), x.Request(3, verbs.OpRDMAWriteWithImm, 8))
	notify := x.NIC.QPs()[2]
	x.SettleWith(func() {
		for _, q := range x.NIC.QPs()[:2] {
			q.Complete(len(q.Posted()))
		}
	})
	for id := uint64(1); id <= 3; id++ {
		notify.Complete(1)
		if wcs := x.SettleWith(func() {}); len(wcs) != 1 || wcs[0].WRID != id || wcs[0].Err() != nil {
			t.Errorf("after %d acknowledged notifications: %+v; want request %d complete", id, wcs, id)
		}
	}
}
