package softnic_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// clocked returns a memory link and a fault link in virtual time, each with a function that runs it until no
// event is due.
func clocked(t *testing.T) map[string]struct {
	link softnic.Link
	run  func()
} {
	t.Helper()
	w := newWorld(t, softnic.FaultConfig{})
	var now int64
	link := softnic.NewMemoryLink(&softnic.MemoryConfig{Now: func() int64 { return now }})
	return map[string]struct {
		link softnic.Link
		run  func()
	}{
		"fault": {w.link, func() { w.settle(t) }},
		"memory": {link, func() {
			for range 1000 {
				next, pending := link.Step()
				if !pending {
					return
				}
				now = max(now, next)
			}
			t.Fatal("the link does not come to rest")
		}},
	}
}

// TestRNRRetryCount: RNRRetry is the exact number of retries after the first RNR NAK; with n the responder
// sends n+1 NAKs. A WRITE before the SEND, acknowledged by the first NAK, does not change that.
func TestRNRRetryCount(t *testing.T) {
	for _, lead := range []bool{false, true} {
		for _, retries := range []uint8{0, 1, 6} {
			for name, l := range clocked(t) {
				t.Run(fmt.Sprintf("%s retries=%d write=%v", name, retries, lead), func(t *testing.T) {
					naks, status := rnrCount(t, l.link, l.run, retries, lead)
					if naks != uint64(retries)+1 || status != verbs.StatusRNRRetryExcErr {
						t.Errorf("%d RNR NAKs, then %v; want %d, then %v", naks, status, retries+1, verbs.StatusRNRRetryExcErr)
					}
				})
			}
		}
	}
}

// rnrCount sends to a QP without receives until the sender fails.
func rnrCount(t *testing.T, link softnic.Link, run func(), retries uint8, lead bool) (naks uint64, status verbs.Status) {
	t.Helper()
	r := newRig(t, link)
	_, src := memory(t, r.pa, 64)
	_, dst := memory(t, r.pb, 64)
	cqA, cqB := newCQ(t, r.ca, 8), newCQ(t, r.cb, 8)
	qa, err := r.pa.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cqA, RecvCQ: cqA, MaxSendWR: 8})
	must(t, err)
	qb, err := r.pb.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cqB, RecvCQ: cqB, MaxRecvWR: 8})
	must(t, err)
	ea, err := qa.Endpoint()
	must(t, err)
	eb, err := qb.Endpoint()
	must(t, err)
	at := verbs.ConnectAttr(ea, eb, 1, 1)
	at.RNRRetry = retries
	must(t, verbs.ConnectWith(qa, at))
	must(t, qb.Connect(ea))
	var wrs []verbs.SendWR
	if lead {
		wrs = append(wrs, writeWR(src, dst, 8))
		wrs[0].Flags = 0
	}
	wrs = append(wrs, verbs.SendWR{WRID: 9, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
	if n, err := qa.PostSend(wrs); n != len(wrs) || err != nil {
		t.Fatalf("PostSend = %d, %v", n, err)
	}
	run()
	wcs := poll(t, cqA)
	if len(wcs) != 1 || wcs[0].WRID != 9 {
		t.Fatalf("completions = %+v, want that of the SEND", wcs)
	}
	return r.b.Stats().RNRNAKsSent, wcs[0].Status
}

// TestCloseLetsSendersGoOn: closing a NIC discards packets in flight to it. UD sends of another NIC
// that waited for space are then sent and complete.
func TestCloseLetsSendersGoOn(t *testing.T) {
	w := newWorld(t, softnic.FaultConfig{Queue: 4, Impairment: softnic.Impairment{Delay: time.Millisecond}})
	r := newRig(t, w.link)
	_, src := memory(t, r.pa, 64)
	cqA := newCQ(t, r.ca, 64)
	q, err := r.pa.CreateQP(verbs.QPConfig{Type: verbs.UD, SendCQ: cqA, RecvCQ: cqA, MaxSendWR: 16})
	must(t, err)
	must(t, q.Connect(verbs.Endpoint{}))
	gid, err := r.cb.QueryGID(1, 1)
	must(t, err)
	ah, err := r.pa.CreateAH(verbs.AHAttr{DGID: gid.GID, SGIDIndex: 1})
	must(t, err)
	wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, AH: ah.Handle(), RemoteQPN: 0x11, RemoteQKey: 1}
	wr.SetSGE(verbs.SGE{Addr: src.Addr(), Length: 64, LKey: src.LKey()})
	if n, err := q.PostSend(slices.Repeat([]verbs.SendWR{wr}, 8)); n != 8 || err != nil {
		t.Fatalf("PostSend = %d, %v", n, err)
	}
	before := len(poll(t, cqA))
	if before == 8 {
		t.Fatal("no send had to wait: the test shows nothing")
	}
	must(t, r.b.Close())
	w.settle(t)
	if got := before + len(poll(t, cqA)); got != 8 {
		t.Errorf("%d of 8 sends completed after the NIC that they go to was closed", got)
	}
}

// TestDeviceFatalIsNotCrowdedOut: EventDeviceFatal arrives even if the event queue has overflowed with unread
// events, and even if every QP raises its own event when the device fails.
func TestDeviceFatalIsNotCrowdedOut(t *testing.T) {
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprintf("queued before=%v", before), func(t *testing.T) {
			nic, ctx, pd := plug(t, softnic.NewMemoryLink(nil))
			cq := newCQ(t, ctx, 4)
			srq, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: 1})
			must(t, err)
			for range 4100 {
				q, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, SRQ: srq})
				must(t, err)
				must(t, verbs.InitQP(q, 1))
				if before {
					must(t, q.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState))
				}
			}
			nic.Fail()
			if nic.Stats().EventsLost == 0 {
				t.Fatal("no event was lost: the test shows nothing")
			}
			var events [64]verbs.Event
			for n := 1; n > 0; {
				n, _ = ctx.Events(events[:]) // an error once the queue is empty
				for _, e := range events[:n] {
					if e.Type == verbs.EventDeviceFatal {
						return
					}
				}
			}
			t.Error("EventDeviceFatal was lost")
		})
	}
}
