package defects_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestDefectT1ErrorOpcodeUndefined: the original routed failed completions by opcode, which NICs leave
// undefined. It lost requests and reported internal IDs. Here only wr_id, status, QP and vendor error of a
// failed completion are used: each request is reported once, in order, under the user's ID.
func TestDefectT1ErrorOpcodeUndefined(t *testing.T) {
	opcodes := []verbs.WCOpcode{verbs.WCSend, verbs.WCRDMAWrite, verbs.WCRDMARead, verbs.WCFetchAdd, verbs.WCRecv, verbs.WCRecvRDMAWithImm, 0x7f}
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		for _, opcode := range opcodes {
			t.Run(opcode.String(), func(t *testing.T) {
				x := newFaulty(t, ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 100}, newFaultNIC())
				x.PostRecv(ibverbx.RecvWR{WRID: 900})
				var ids []uint64
				for i := range uint64(6) {
					op := verbs.OpRDMAWrite
					if i%2 == 1 {
						op = verbs.OpRDMAWriteWithImm
					}
					ids = append(ids, 100+i)
					x.PostSend(x.Request(100+i, op, 400))
				}
				x.NIC.QPs()[1].Fail(verbs.StatusRemAccessErr)
				wcs := x.SettleWith(func() { x.fault.garble(opcode) })
				recvs := slices.DeleteFunc(slices.Clone(wcs), func(wc ibverbx.WC) bool { return wc.WRID != 900 })
				sends := slices.DeleteFunc(wcs, func(wc ibverbx.WC) bool { return wc.WRID == 900 })
				wantIDs(t, sends, ids...)
				wantIDs(t, recvs, 900)
				if sends[0].Status != verbs.StatusRemAccessErr || recvs[0].Status != verbs.StatusWRFlushErr {
					t.Errorf("the failed request ended with %v, the receive with %v", sends[0].Status, recvs[0].Status)
				}
				for _, wc := range sends[1:] {
					if wc.Status == verbs.StatusSuccess {
						t.Errorf("request %d, which has a fragment on the failed lane, was reported a success", wc.WRID)
					}
				}
			})
		}
	})
}

// TestDefectT2DeadLaneStaysInUse: the original kept posting fragments to a QP in the error state. A failed
// lane gets no further requests, and posted requests still complete.
func TestDefectT2DeadLaneStaysInUse(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 4, Scheme: scheme})
		x.PostSend(x.Request(0, verbs.OpRDMAWrite, 100))
		dead := x.NIC.QPs()[0]
		if len(dead.Posted()) != 1 {
			t.Fatalf("%d requests are on the first lane, want 1", len(dead.Posted()))
		}
		dead.Fail(verbs.StatusRetryExcErr)
		wantIDs(t, x.Settle(), 0)
		had := len(dead.Taken)
		for i := range 40 {
			x.PostSend(x.Request(uint64(i), verbs.OpRDMAWriteWithImm, 100))
		}
		wantIDs(t, x.Settle(), upTo(40)...)
		if len(dead.Taken) != had {
			t.Errorf("%d requests were handed to the dead lane", len(dead.Taken)-had)
		}
	})
}

// wantCovered checks that each byte of a request at the start of the region was posted to lanes exactly once.
func wantCovered(t *testing.T, x *enginetest.ScriptedQP, length uint64) {
	t.Helper()
	type piece struct{ from, n uint64 }
	var pieces []piece
	for _, q := range x.NIC.QPs() {
		for i := range q.Taken {
			if wr := &q.Taken[i]; !enginetest.IsNotification(wr) {
				pieces = append(pieces, piece{wr.RemoteAddr - x.Region.Remote().Addr, wr.Length()})
			}
		}
	}
	slices.SortFunc(pieces, func(a, b piece) int { return int(int64(a.from - b.from)) })
	at := uint64(0)
	for _, p := range pieces {
		if p.from != at {
			t.Fatalf("a fragment begins at byte %d, want %d", p.from, at)
		}
		at += p.n
	}
	if at != length {
		t.Fatalf("the fragments have %d bytes together, want %d", at, length)
	}
}

// TestDefectT3PermanentRefusal: a NIC that refuses permanently fails the VirtualQP. Each request is reported
// once, as failed, including later ones.
func TestDefectT3PermanentRefusal(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		for position := range 5 {
			x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 2, Scheme: scheme, FragmentSize: 100})
			cause := errors.New("the device is gone")
			x.NIC.QPs()[0].RefuseAt(position, cause)
			x.PostSend(x.Request(0, verbs.OpRDMAWriteWithImm, 1000))
			if !errors.Is(x.QP.Err(), cause) {
				t.Errorf("refused at %d: Err = %v, want %v", position, x.QP.Err(), cause)
			}
			for i := range 20 {
				x.PostSend(x.Request(uint64(i+1), verbs.OpRDMAWriteWithImm, 1000))
			}
			wcs := x.Settle()
			wantIDs(t, wcs, upTo(21)...)
			for _, wc := range wcs {
				if wc.Status == verbs.StatusSuccess {
					t.Errorf("refused at %d: request %d was reported a success", position, wc.WRID)
				}
			}
		}
	})
}

// TestDefectT4StaleErrno: the original reported a refused receive with a stale errno. PostRecv returns the
// NIC's error, and accepts the next receive normally.
func TestDefectT4StaleErrno(t *testing.T) {
	for _, lanes := range []int{1, 3} {
		t.Run(fmt.Sprintf("lanes=%d", lanes), func(t *testing.T) {
			x := newFaulty(t, ibverbx.Config{Lanes: lanes}, newFaultNIC())
			cause := errors.New("no memory for a receive")
			recv := ibverbx.RecvWR{WRID: 1}
			recv.SetSGE(x.Region.SGE(0, 64))
			x.fault.refuseReceives(0, cause)
			if n, err := x.QP.PostRecv([]ibverbx.RecvWR{recv}); n != 0 || !errors.Is(err, cause) {
				t.Fatalf("PostRecv = %d, %v; want 0, %v", n, err, cause)
			}
			x.fault.refuseReceives(1<<30, nil)
			recv.WRID = 2
			x.PostRecv(recv)
			message := x.NIC.QPs()[len(x.NIC.QPs())-1]
			if lanes > 1 {
				message = x.NIC.QPs()[lanes]
			}
			if !message.Receive(verbs.WC{Opcode: verbs.WCRecv, ByteLen: 64}) {
				t.Fatal("no receive is posted")
			}
			wantIDs(t, x.Settle(), 2)
		})
	}
}

// TestDefectT5SignedSizes: the original counted bytes in signed 32 bits. A request of 3 GiB was posted whole,
// and one of 4 GiB - 1 completed after the first fragment. Here such requests are fragmented like all others
// and complete after the last fragment.
func TestDefectT5SignedSizes(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		for _, length := range []uint64{1<<31 - 1, 1 << 31, 3 << 30, 1<<32 - 1} {
			nic := newFaultNIC()
			nic.length = 1 << 33
			x := newFaulty(t, ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 1 << 20, LaneDepth: 4096, NotifyDepth: 4096}, nic)
			wr := ibverbx.SendWR{WRID: 5, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: x.Region.Remote()}
			half := uint32(length / 2)
			wr.SetSGE(x.Region.SGE(0, half), x.Region.SGE(uint64(half), uint32(length-uint64(half))))
			x.PostSend(wr)
			// Complete every lane except the last, so that the request remains outstanding.
			for range 3000 {
				for _, q := range x.NIC.QPs()[1:] {
					q.Complete(len(q.Posted()))
				}
				if n, err := x.CQ.Poll(make([]ibverbx.WC, 4)); n != 0 || err != nil {
					t.Fatalf("%d bytes: Poll = %d, %v before all has completed", length, n, err)
				}
			}
			wcs := x.Settle()
			wantIDs(t, wcs, 5)
			if err := wcs[0].Err(); err != nil || uint64(wcs[0].ByteLen) != length {
				t.Errorf("completion of %d bytes, %v; want %d", wcs[0].ByteLen, err, length)
			}
			wantCovered(t, x.ScriptedQP, length)
		}
	})
}

// TestDefectT6SendNotifyErrorSwallowed: the original dropped the error when a notification
// that had waited could not be posted. The VirtualQP fails and the request with it.
func TestDefectT6SendNotifyErrorSwallowed(t *testing.T) {
	x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 2, Scheme: ibverbx.Spray, LaneDepth: 1})
	notify := x.NIC.QPs()[3]
	x.PostSend(x.Request(0, verbs.OpRDMAWriteWithImm, 10), x.Request(1, verbs.OpRDMAWriteWithImm, 10), x.Request(2, verbs.OpRDMAWriteWithImm, 10))
	for range 10 { // one notification is in flight and fills its lane, the rest waits
		for _, q := range x.NIC.QPs()[:2] {
			q.Complete(len(q.Posted()))
		}
		if n, err := x.CQ.Poll(make([]ibverbx.WC, 4)); n != 0 || err != nil {
			t.Fatalf("Poll = %d, %v; want nothing", n, err)
		}
	}
	cause := errors.New("the device is gone")
	notify.RefuseAt(0, cause)
	wcs := x.Settle()
	wantIDs(t, wcs, 0, 1, 2)
	if !errors.Is(x.QP.Err(), cause) {
		t.Errorf("Err = %v, want %v", x.QP.Err(), cause)
	}
	if wcs[0].Err() != nil || wcs[1].Err() == nil || wcs[2].Err() == nil {
		t.Errorf("the requests ended with %v, %v, %v; want success for the first only", wcs[0].Status, wcs[1].Status, wcs[2].Status)
	}
}

// TestDefectT7RecvNotifyErrorSwallowed: the original dropped the error when a receive could
// not be posted again, and the next sender waited forever. The VirtualQP fails, and the
// user's receives end.
func TestDefectT7RecvNotifyErrorSwallowed(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		x := newFaulty(t, ibverbx.Config{Lanes: 2, Scheme: scheme, NotifyDepth: 2}, newFaultNIC())
		x.PostRecv(ibverbx.RecvWR{WRID: 0}, ibverbx.RecvWR{WRID: 1}, ibverbx.RecvWR{WRID: 2}, ibverbx.RecvWR{WRID: 3}, ibverbx.RecvWR{WRID: 4}, ibverbx.RecvWR{WRID: 5})
		cause := errors.New("no memory for a receive")
		x.fault.refuseReceives(0, cause)
		var delivered []ibverbx.WC
		for i := range uint32(4) {
			x.notify(t, scheme, i)
			delivered = append(delivered, x.Settle()...)
			if x.QP.Err() != nil {
				break
			}
		}
		if !errors.Is(x.QP.Err(), cause) {
			t.Fatalf("Err = %v, want %v", x.QP.Err(), cause)
		}
		delivered = append(delivered, x.Settle()...)
		wantIDs(t, delivered, upTo(6)...)
		if last := delivered[5]; last.Status != verbs.StatusWRFlushErr {
			t.Errorf("the last receive ended with %v, want %v", last.Status, verbs.StatusWRFlushErr)
		}
	})
}
