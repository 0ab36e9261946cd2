package defects_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestDefectG12UnknownQPAborts: a completion for an unregistered QP aborted the original. Here it is counted
// and reported as an error, and the completions around it are unaffected.
func TestDefectG12UnknownQPAborts(t *testing.T) {
	x := newFaulty(t, ibverbx.Config{Lanes: 2}, newFaultNIC())
	for i := range 4 {
		x.PostSend(x.Request(uint64(i), verbs.OpRDMAWrite, 10))
	}
	for _, q := range x.NIC.QPs() {
		x.fault.cqs[0].Push(verbs.WC{WRID: 1 << 60, QPN: 0xabcdef})
		q.Complete(len(q.Posted()))
		x.fault.cqs[0].Push(verbs.WC{WRID: 3, QPN: 0xabcdee, Status: verbs.StatusWRFlushErr})
	}
	var all []ibverbx.WC
	var reported error
	for range 20 {
		wcs := make([]ibverbx.WC, 3)
		n, err := x.CQ.Poll(wcs)
		if all = append(all, wcs[:n]...); err != nil {
			reported = err
		}
	}
	wantIDs(t, all, upTo(4)...)
	if !errors.Is(reported, verbs.ErrNotFound) || !strings.Contains(reported.Error(), "abcde") {
		t.Errorf("Poll reported %v, want %v with the number of the QP", reported, verbs.ErrNotFound)
	}
	if got := x.CQ.Stats().Unknown; got != 6 {
		t.Errorf("%d unknown completions were counted, want 6", got)
	}
	if x.QP.Err() != nil {
		t.Errorf("Err = %v, want none", x.QP.Err())
	}
}

// TestDefectG16HalfPostedReceives: when the original could not post all initial receives, it kept the posted
// ones and later posted all of them again. Here NewQP fails, releases everything, and the next VirtualQP is
// complete.
func TestDefectG16HalfPostedReceives(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		cfg := ibverbx.Config{Lanes: 2, Scheme: scheme, LaneDepth: 8, NotifyDepth: 8, RecvDepth: 8}
		for after := range 8 {
			nic := newFaultNIC()
			rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nic})
			enginetest.Must(t, err)
			cq, err := rails.NewCQ(ibverbx.CQConfig{Depth: 64}) // for exactly one
			enginetest.Must(t, err)
			cause := errors.New("no memory for a receive")
			nic.refuseReceives(after, cause)
			if _, err := cq.NewQP(cfg); !errors.Is(err, cause) {
				t.Fatalf("NewQP with %d receives = %v, want %v", after, err, cause)
			}
			made := nic.QPs()
			for i, q := range made {
				if !q.Closed() {
					t.Errorf("%d receives: QP %d was left open", after, i)
				}
			}
			if nic.regions != 0 {
				t.Errorf("%d receives: %d regions were left registered", after, nic.regions)
			}
			nic.refuseReceives(1<<30, nil)
			q, err := cq.NewQP(cfg)
			enginetest.Must(t, err)
			for i, l := range nic.QPs()[len(made):] {
				if n := len(l.Waiting()); n != 0 && n != 8 {
					t.Errorf("%d receives: lane %d of the next VirtualQP has %d, want 8", after, i, n)
				}
			}
			enginetest.Must(t, q.Close())
		}
	})
}

// TestDefectG19VendorErrorLost: the original dropped the vendor error and did not identify the failed QP.
// Here the completion carries the vendor error, and Err names it, the lane and the NIC.
func TestDefectG19VendorErrorLost(t *testing.T) {
	for _, lanes := range []int{1, 3} {
		x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: lanes})
		x.PostSend(x.Request(4, verbs.OpRDMAWrite, 10))
		x.NIC.QPs()[0].Fail(verbs.StatusRemOpErr)
		wcs := x.Settle()
		wantIDs(t, wcs, 4)
		if wc := &wcs[0]; wc.Status != verbs.StatusRemOpErr || wc.VendorErr != 0xbad || wc.QP != x.QP || !strings.Contains(wc.Err().Error(), "0xbad") {
			t.Errorf("completion = %+v, %v; want %v with vendor error 0xbad", wc, wc.Err(), verbs.StatusRemOpErr)
		}
		if err := x.QP.Err(); err == nil || !strings.Contains(err.Error(), "lane 0") || !strings.Contains(err.Error(), "null0") {
			t.Errorf("Err = %v, want the lane and the NIC", err)
		}
	}
}

// TestDefectG20DuplicateNumbers: the original's DQPLB accepted a duplicate number, or one from far ahead, and
// notified the receiver when the numbers wrapped. Here the VirtualQP fails and names the number.
func TestDefectG20DuplicateNumbers(t *testing.T) {
	for name, numbers := range map[string][]uint32{
		"twice, waiting":     {1, 1},
		"twice, consumed":    {0, 0},
		"outside the window": {1 << 20},
		"one before":         {0, 1<<24 - 2},
		"no number":          {1<<24 - 1},
	} {
		t.Run(name, func(t *testing.T) {
			x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 2, Scheme: ibverbx.DQPLB})
			x.PostRecv(ibverbx.RecvWR{WRID: 0}, ibverbx.RecvWR{WRID: 1})
			for i, n := range numbers {
				wc := verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: enginetest.DQPLBImm(n, true)}
				if !x.NIC.QPs()[i%2].Receive(wc) {
					t.Fatalf("no receive is posted for number %d", n)
				}
			}
			wcs := x.Settle()
			if err := x.QP.Err(); err == nil || !strings.Contains(err.Error(), fmt.Sprint(numbers[len(numbers)-1])) {
				t.Errorf("Err = %v, want one that names number %d", err, numbers[len(numbers)-1])
			}
			wantIDs(t, wcs, 0, 1)
			if wcs[1].Status != verbs.StatusWRFlushErr {
				t.Errorf("the receive that no message has ended with %v, want %v", wcs[1].Status, verbs.StatusWRFlushErr)
			}
		})
	}
}

// TestDefectG21HandlesLeak: the original's objects leaked their resources when another was moved into them.
// Close releases everything, even if it is called twice or with work in flight.
func TestDefectG21HandlesLeak(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		nic := newFaultNIC()
		rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nic})
		enginetest.Must(t, err)
		cfg := ibverbx.Config{Lanes: 2, Scheme: scheme, LaneDepth: 8, NotifyDepth: 8, RecvDepth: 8}
		cq, err := rails.NewCQ(ibverbx.CQConfig{Depth: 64}) // for exactly one
		enginetest.Must(t, err)
		for range 3 {
			q, err := cq.NewQP(cfg)
			enginetest.Must(t, err)
			card, err := q.Card()
			enginetest.Must(t, err)
			enginetest.Must(t, q.Connect(card))
			for _, l := range nic.QPs() {
				l.Hold()
			}
			if n, err := q.PostSend([]ibverbx.SendWR{{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled}}); n != 1 || err != nil {
				t.Fatalf("PostSend = %d, %v; want 1", n, err)
			}
			enginetest.Must(t, q.Close())
			enginetest.Must(t, q.Close())
			for i, l := range nic.QPs() {
				if !l.Closed() {
					t.Errorf("QP %d was left open", i)
				}
			}
			if nic.regions != 0 {
				t.Errorf("%d regions were left registered", nic.regions)
			}
			if n, err := cq.Poll(make([]ibverbx.WC, 4)); n != 0 || err != nil {
				t.Errorf("Poll = %d, %v; want nothing of a closed VirtualQP", n, err)
			}
		}
	})
}
