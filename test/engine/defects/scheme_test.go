package defects_test

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestDefectG1NotifiedThoughFailed: the original's Spray notified the receiver of a message with a failed
// fragment. Here one rail's key is wrong, so the message arrives only in part: the sender gets the error, and
// the receiver is never notified.
func TestDefectG1NotifiedThoughFailed(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		for rail := range 2 {
			a, b := enginetest.NewPair(t, enginetest.MemoryLinks(2), ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 100})
			local, remote := a.Region(1000), b.Region(1000)
			b.PostRecv(ibverbx.RecvWR{WRID: 1})
			bad := remote.Remote()
			bad.RKeys[rail] ^= 0x10000
			wr := ibverbx.SendWR{WRID: 5, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: bad}
			wr.SetSGE(local.SGE(0, 1000))
			a.PostSend(wr)
			var sent, delivered []ibverbx.WC
			for range 2000 {
				sent, delivered = append(sent, a.Poll()...), append(delivered, b.Poll()...)
			}
			wantIDs(t, sent, 5)
			if sent[0].Status != verbs.StatusRemAccessErr {
				t.Errorf("bad key on rail %d: the request ended with %v, want %v", rail, sent[0].Status, verbs.StatusRemAccessErr)
			}
			for _, wc := range delivered {
				if wc.Status != verbs.StatusWRFlushErr {
					t.Errorf("bad key on rail %d: the receive ended with %v, want nothing or %v", rail, wc.Status, verbs.StatusWRFlushErr)
				}
			}
		}
	})
}

// TestDefectG1NoNewsBehindFailure: at lane level, a failed fragment stops any further record or notification
// of its message from being posted.
func TestDefectG1NoNewsBehindFailure(t *testing.T) {
	x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 2, Scheme: ibverbx.Spray, FragmentSize: 100})
	x.PostSend(x.Request(0, verbs.OpRDMAWriteWithImm, 200), x.Request(1, verbs.OpRDMAWriteWithImm, 200))
	x.NIC.QPs()[0].Fail(verbs.StatusRemAccessErr)
	wantIDs(t, x.Settle(), 0, 1)
	for _, q := range x.NIC.QPs() {
		for i := range q.Taken {
			if q.Taken[i].Opcode == verbs.OpRDMAWriteWithImm {
				t.Error("a notification was posted although a fragment failed")
			}
		}
	}
}

// TestDefectG2PeerGivesNumberToPlainRequest: a C++ peer numbers plain requests. Once every lane has delivered
// a later number, the missing one cannot arrive, and the receiver fails with an error that names the cause.
// It does not fail earlier, while a lane may still deliver the number.
func TestDefectG2PeerGivesNumberToPlainRequest(t *testing.T) {
	type arrival struct {
		lane int
		n    uint32
	}
	for name, c := range map[string]struct {
		arrivals  []arrival // the last one fails the VirtualQP if fails is set
		delivered int
		fails     bool
	}{
		"one plain WRITE":                  {[]arrival{{0, 0}, {2, 2}, {0, 3}, {1, 4}}, 1, true},
		"a lane is quiet":                  {[]arrival{{0, 0}, {2, 2}, {0, 3}, {2, 4}, {0, 5}}, 1, false},
		"the lanes are ahead of number 0":  {[]arrival{{1, 1}, {2, 3}, {0, 0}, {0, 4}, {1, 5}}, 2, true},
		"number 0 comes last":              {[]arrival{{0, 1}, {0, 2}, {1, 0}}, 3, false},
		"number 0":                         {[]arrival{{1, 1}, {2, 2}, {0, 3}}, 0, true},
		"late on the last lane":            {[]arrival{{1, 1}, {2, 2}, {1, 4}, {2, 5}, {0, 0}, {0, 3}, {0, 6}}, 7, false},
		"a gap closes and the next is one": {[]arrival{{1, 1}, {2, 3}, {1, 4}, {0, 0}, {2, 5}, {0, 6}}, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 3, Scheme: ibverbx.DQPLB, CxxPeer: true})
			for i := range 8 {
				x.PostRecv(ibverbx.RecvWR{WRID: uint64(i)})
			}
			delivered := 0
			for i, a := range c.arrivals {
				if x.QP.Err() != nil {
					t.Fatalf("Err before arrival %d = %v", i, x.QP.Err())
				}
				wc := verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: enginetest.DQPLBImm(a.n, true)}
				if !x.NIC.QPs()[a.lane].Receive(wc) {
					t.Fatalf("no receive is posted for number %d", a.n)
				}
				for _, wc := range x.SettleWith(func() {}) {
					if wc.Err() == nil {
						delivered++
					}
				}
			}
			if err := x.QP.Err(); delivered != c.delivered || (err != nil) != c.fails || (c.fails && !strings.Contains(err.Error(), "every lane has delivered a later one")) {
				t.Errorf("%d messages and Err = %v; want %d, and an error: %v", delivered, err, c.delivered, c.fails)
			}
		})
	}
}

// TestDefectG3RefusedPostLosesNumber: in the original's DQPLB a refused fragment lost its number, and the
// receiver waited for it forever. Whichever fragment is refused, the numbers on the wire are contiguous and
// unique.
func TestDefectG3RefusedPostLosesNumber(t *testing.T) {
	const fragments = 12
	for lane := range 2 {
		for position := range fragments/2 + 1 {
			x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 2, Scheme: ibverbx.DQPLB, FragmentSize: 100})
			x.NIC.QPs()[lane].RefuseAt(position, verbs.ErrQueueFull)
			x.PostSend(x.Request(1, verbs.OpRDMAWriteWithImm, 100*fragments/2), x.Request(2, verbs.OpRDMAWriteWithImm, 100*fragments/2))
			wantIDs(t, x.Settle(), 1, 2)
			var got []uint32
			for _, q := range x.NIC.QPs() {
				for i := range q.Taken {
					n, last := enginetest.DQPLBNumber(q.Taken[i].Imm)
					if got = append(got, n); last != (n%(fragments/2) == fragments/2-1) {
						t.Errorf("number %d is that of a last fragment: %t", n, last)
					}
				}
			}
			slices.Sort(got)
			for i, n := range got {
				if len(got) != fragments || n != uint32(i) {
					t.Fatalf("lane %d refused at %d: the numbers on the wire are %d, want 0 to %d", lane, position, got, fragments-1)
				}
			}
		}
	}
}

// TestDefectG6UnlimitedDepthPostsNoReceives: with a depth of -1 the original's DQPLB did not post any
// receive. Such a depth is rejected, and by default the engine's receives are posted before the peer is
// known.
func TestDefectG6UnlimitedDepthPostsNoReceives(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 2, Scheme: scheme})
		if _, err := x.CQ.NewQP(ibverbx.Config{Lanes: 2, Scheme: scheme, NotifyDepth: -1}); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("NewQP with a depth of -1 = %v, want %v", err, verbs.ErrInvalid)
		}
		notified := x.NIC.QPs()[:2]
		if scheme == ibverbx.Spray {
			notified = x.NIC.QPs()[3:4]
		}
		for i, q := range notified {
			if len(q.Waiting()) == 0 {
				t.Errorf("lane %d of %d that brings news has no receive posted", i, len(notified))
			}
		}
	})
}

// TestDefectG7ReceivesLeak: the original leaked eight bytes for every completed receive. Here fifty thousand
// of them do not leak.
func TestDefectG7ReceivesLeak(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		x := newFaulty(t, ibverbx.Config{Lanes: 2, Scheme: scheme}, newFaultNIC())
		recvs := []ibverbx.RecvWR{{}}
		var wcs [4]ibverbx.WC
		n := uint32(0)
		run := func(messages int) {
			for range messages {
				x.PostRecv(recvs...)
				x.notify(t, scheme, n)
				n++
				if k, err := x.CQ.Poll(wcs[:]); k != 1 || err != nil || wcs[0].Err() != nil {
					t.Fatalf("Poll = %d, %v, %v; want a success", k, err, wcs[0].Err())
				}
			}
		}
		run(1000)
		before := heapBytes()
		run(50_000)
		if after := heapBytes(); after > before+200_000 {
			t.Errorf("the heap grew from %d to %d bytes in 50,000 receives", before, after)
		}
	})
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestDefectG8OneNotifyInFlight: the original's Spray kept only one notification in flight, so each message
// cost a round trip. Here all notifications are posted as soon as their data has completed.
func TestDefectG8OneNotifyInFlight(t *testing.T) {
	const messages = 64
	x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 4, Scheme: ibverbx.Spray})
	for i := range messages {
		wr := x.Request(uint64(i), verbs.OpRDMAWriteWithImm, 10)
		wr.Imm = uint32(i)
		x.PostSend(wr)
	}
	for _, q := range x.NIC.QPs()[:4] {
		q.Complete(len(q.Posted()))
	}
	if n, err := x.CQ.Poll(make([]ibverbx.WC, messages)); n != 0 || err != nil {
		t.Fatalf("Poll = %d, %v; want nothing", n, err)
	}
	notify := x.NIC.QPs()[5]
	if len(notify.Posted()) != messages {
		t.Fatalf("%d notifications are under way, want %d", len(notify.Posted()), messages)
	}
	for i := range notify.Posted() {
		if got := notify.Posted()[i].Imm; got != uint32(i) {
			t.Fatalf("notification %d is that of message %d", i, got)
		}
	}
	wantIDs(t, x.Settle(), upTo(messages)...)
}

// TestDefectG9ErrorLosesCompletions: a poll error made the original drop the completions already polled. Here
// all completions from all rails are returned, then the error, once.
func TestDefectG9ErrorLosesCompletions(t *testing.T) {
	const requests = 40
	for _, lanes := range []int{1, 4} {
		for _, room := range []int{7, 64} {
			nics := []*faultNIC{newFaultNIC(), newFaultNIC()}
			x := newFaulty(t, ibverbx.Config{Lanes: lanes}, nics...)
			for i := range requests {
				x.PostSend(x.Request(uint64(i), verbs.OpRDMAWrite, 10))
			}
			for _, nic := range nics {
				for _, q := range nic.QPs() {
					q.Complete(len(q.Posted()))
				}
			}
			cause := errors.New("the bus has failed")
			nics[0].cqs[0].FailNext(cause)
			var all []ibverbx.WC
			var reported []error
			for range 50 {
				wcs := make([]ibverbx.WC, room)
				n, err := x.CQ.Poll(wcs)
				if all = append(all, wcs[:n]...); err != nil {
					reported = append(reported, err)
				}
			}
			wantIDs(t, all, upTo(requests)...)
			if len(reported) != 1 || !errors.Is(reported[0], cause) {
				t.Errorf("%d lanes, room for %d: Poll reported the errors %v, want %v once", lanes, room, reported, cause)
			}
		}
	}
}

// TestDefectG10NotifyNotRetried: the original never retried a notification refused by a full queue. Here it
// is retried until the NIC accepts it.
func TestDefectG10NotifyNotRetried(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		for refusals := range 6 {
			x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 2, Scheme: scheme})
			turn := 0
			refuse := func() {
				for _, q := range x.NIC.QPs() {
					if q.Complete(len(q.Posted())); turn < refusals {
						q.RefuseAt(0, verbs.ErrQueueFull)
					} else {
						q.RefuseAt(1<<20, nil)
					}
				}
				turn++
			}
			refuse()
			x.PostSend(x.Request(3, verbs.OpRDMAWriteWithImm, 0))
			wcs := x.SettleWith(refuse)
			wantIDs(t, wcs, 3)
			if err := wcs[0].Err(); err != nil {
				t.Fatalf("refused %d times: the request ended with %v, want success", refusals, err)
			}
		}
	})
}
