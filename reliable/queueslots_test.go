package reliable_test

import (
	"errors"
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestSlotsAreFreedWhenPolled fills the queues of a QP in the error state, which fails every request
// immediately. A request keeps its slot until its completion is polled, as on a NIC: a CQ as deep as its QPs'
// queues must never overrun, however often a program posts without polling.
func TestSlotsAreFreedWhenPolled(t *testing.T) {
	a, _ := newPair(t, softnic.NewMemoryLink(nil), reliable.Config{Paths: 2}, 4096)
	must(t, a.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState))
	const depth = 64 // of both queues
	for round := range 3 {
		for i := range depth {
			n, err := a.qp.PostSend([]verbs.SendWR{{WRID: uint64(i), Opcode: verbs.OpSend}}) // not signaled: it fails
			if n != 1 || err != nil {
				t.Fatalf("round %d: PostSend number %d = %d, %v, want 1, nil", round, i, n, err)
			}
			n, err = a.qp.PostRecv([]verbs.RecvWR{{WRID: uint64(i)}})
			if n != 1 || err != nil {
				t.Fatalf("round %d: PostRecv number %d = %d, %v, want 1, nil", round, i, n, err)
			}
		}
		if n, err := a.qp.PostSend(make([]verbs.SendWR, 1)); n != 0 || !errors.Is(err, verbs.ErrQueueFull) {
			t.Fatalf("round %d: PostSend to a queue of %d unpolled requests = %d, %v, want 0, ErrQueueFull", round, depth, n, err)
		}
		if n, err := a.qp.PostRecv(make([]verbs.RecvWR, 1)); n != 0 || !errors.Is(err, verbs.ErrQueueFull) {
			t.Fatalf("round %d: PostRecv to a queue of %d unpolled receives = %d, %v, want 0, ErrQueueFull", round, depth, n, err)
		}
		wcs := make([]verbs.WC, 3*depth)
		if n, err := a.cq.Poll(wcs); n != 2*depth || err != nil {
			t.Fatalf("round %d: Poll = %d, %v, want %d, nil", round, n, err, 2*depth)
		}
	}
}

// TestUnsignaledRequestsKeepTheirSlots posts unsignaled requests. The completion of the next signaled request
// frees their slots.
func TestUnsignaledRequestsKeepTheirSlots(t *testing.T) {
	a, b := newPair(t, softnic.NewMemoryLink(nil), reliable.Config{Paths: 2}, 4096)
	const depth = 64 // of the send queue
	write := verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	write.SetSGE(a.sge(0, 8))
	wrs := make([]verbs.SendWR, depth+1)
	for i := range wrs {
		wrs[i] = write
	}
	wrs[depth-1].Flags = verbs.SendSignaled
	for round := range 3 {
		if n, err := a.qp.PostSend(wrs); n != depth || !errors.Is(err, verbs.ErrQueueFull) {
			t.Fatalf("round %d: PostSend of %d requests = %d, %v, want %d, ErrQueueFull", round, len(wrs), n, err, depth)
		}
		if wc := a.wait(t, 1)[0]; wc.Status != verbs.StatusSuccess {
			t.Fatalf("round %d: %v, want success", round, wc.Status)
		}
	}
}
