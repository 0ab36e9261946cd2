//go:build linux

package softnic_test

import (
	"bytes"
	"context"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// shmTurn is the number of bytes a QP moves before it yields to others.
const shmTurn = 1 << 20

// turnPair returns two sides, on a ShmLink or on UDPLinks, with long shared memory. x has a second QP,
// connected to one of y, with the same CQ.
func turnPair(t *testing.T, near bool) (x, y *shmSide, second verbs.QP) {
	t.Helper()
	noRaces(t)
	const size = 16 * shmTurn
	if near {
		x, y = newShmSide(t, nearLink(t, true), size), newShmSide(t, nearLink(t, true), size)
		x.connect(y.card())
		y.connect(x.card())
	} else {
		x, y = shmPair(t, size)
	}
	var qps [2]verbs.QP
	for i, s := range []*shmSide{x, y} {
		var err error
		qps[i], err = s.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, MaxSendWR: 8, MaxRecvWR: 8, SendCQ: s.cq, RecvCQ: s.cq})
		must(t, err)
	}
	connect(t, qps[0], qps[1])
	x.awaitPublished()
	for i := range x.mem.Bytes() {
		x.mem.Bytes()[i] = byte(i>>10 + i)
	}
	return x, y, qps[0]
}

// bothWays runs a test over a ShmLink and between neighbors.
func bothWays(t *testing.T, test func(t *testing.T, x, y *shmSide, second verbs.QP)) {
	t.Helper()
	for name, near := range map[string]bool{"shm": false, "neighbors": true} {
		t.Run(name, func(t *testing.T) {
			x, y, second := turnPair(t, near)
			test(t, x, y, second)
		})
	}
}

// TestShmTurns: a long WRITE or READ does not block other QPs on the NIC: it is executed in slices, and they
// run in between. It completes whether the program polls or sleeps.
func TestShmTurns(t *testing.T) {
	bothWays(t, func(t *testing.T, x, y *shmSide, second verbs.QP) {
		for i, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpRDMAWrite} {
			was := x.nic.Stats().Direct
			long, short := x.request(op, x.mem.Len()), x.request(verbs.OpRDMAWrite, 64<<10)
			must(t, softnic.PostTurn([]verbs.QP{x.qp, second}, []verbs.SendWR{long, short}))
			var order []uint32
			for len(order) < 2 {
				for _, wc := range x.next(context.Background(), i == 2) {
					if wc.Status != verbs.StatusSuccess {
						t.Fatalf("%v: the status is %v", op, wc.Status)
					}
					order = append(order, wc.QPN)
				}
			}
			if order[0] != second.Num() {
				t.Errorf("%v: the long request has completed before the short one", op)
			}
			if n := x.nic.Stats().Direct - was; n != 2 {
				t.Errorf("%v: %d requests were direct, want 2", op, n)
			}
			if !bytes.Equal(x.mem.Bytes(), y.mem.Bytes()) {
				t.Errorf("%v: the memory of the two sides differs", op)
			}
		}
	})
}

// TestShmTurnTakenBack: a request whose grant is revoked in the middle is carried entirely by packets, and
// the request behind it is intact.
func TestShmTurnTakenBack(t *testing.T) {
	bothWays(t, func(t *testing.T, x, y *shmSide, _ verbs.QP) {
		must(t, softnic.PostTurn([]verbs.QP{x.qp}, []verbs.SendWR{x.request(verbs.OpRDMAWrite, x.mem.Len())}))
		y.nic.Observe(func(softnic.MemoryAccess) {})
		x.await(1)
		if !bytes.Equal(x.mem.Bytes(), y.mem.Bytes()) {
			t.Error("the memory of the two sides differs")
		}
		y.nic.Observe(nil)
		clear(y.mem.Bytes())
		x.send([]verbs.SendWR{x.request(verbs.OpRDMAWrite, x.mem.Len())})
		x.await(1)
		if !bytes.Equal(x.mem.Bytes(), y.mem.Bytes()) {
			t.Error("after the next request: the memory of the two sides differs")
		}
	})
}

// drained moves a side's QP to SQD and waits until it is drained.
func drained(t *testing.T, x *shmSide) {
	t.Helper()
	must(t, x.qp.Modify(verbs.QPAttr{State: verbs.StateSQD, SQDNotify: true}, verbs.AttrState|verbs.AttrSQDNotify))
	for over := false; !over; {
		var e [1]verbs.Event
		n, err := x.ctx.Events(e[:])
		must(t, err)
		over = n == 1 && e[0].Type == verbs.EventSQDrained
	}
}

// TestShmTurnDrain: a QP in SQD is drained only after the request in progress completes.
func TestShmTurnDrain(t *testing.T) {
	bothWays(t, func(t *testing.T, x, y *shmSide, _ verbs.QP) {
		long := x.request(verbs.OpRDMAWrite, x.mem.Len())
		must(t, softnic.PostTurn([]verbs.QP{x.qp, x.qp}, []verbs.SendWR{long, long}))
		drained(t, x)
		done := len(x.poll()) // the second may have started, but not completed in part
		if done == 0 {
			t.Fatal("the QP is drained, and the request that has begun is not complete")
		}
		if !bytes.Equal(x.mem.Bytes(), y.mem.Bytes()) {
			t.Error("the memory of the two sides differs")
		}
		must(t, x.qp.Modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.AttrState))
		x.await(2 - done)
	})
}

// TestShmTurnDrainPackets: the same if the request must finish with packets: one for an immediate, or all of
// it because the grant was revoked.
func TestShmTurnDrainPackets(t *testing.T) {
	bothWays(t, func(t *testing.T, x, y *shmSide, _ verbs.QP) {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWriteWithImm, verbs.OpRDMAWrite} {
			postRecv(t, y.qp, []verbs.RecvWR{{}})
			clear(y.mem.Bytes())
			must(t, softnic.PostTurn([]verbs.QP{x.qp}, []verbs.SendWR{x.request(op, x.mem.Len())}))
			if op == verbs.OpRDMAWrite {
				y.nic.Observe(func(softnic.MemoryAccess) {})
			}
			drained(t, x)
			if n := len(x.poll()); n != 1 {
				t.Errorf("%v: the QP is drained, and %d requests are complete, want 1", op, n)
			}
			if !bytes.Equal(x.mem.Bytes(), y.mem.Bytes()) {
				t.Errorf("%v: the memory of the two sides differs", op)
			}
			must(t, x.qp.Modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.AttrState))
		}
	})
}
