package traffic_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestReceivesNotPolledAreKept: completed but unpolled receives are never lost, however many complete
// together.
func TestReceivesNotPolledAreKept(t *testing.T) {
	x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 2, RecvDepth: 2})
	lane, message := x.NIC.QPs()[0], x.NIC.QPs()[2]
	msg := uint32(0)
	arrive := func(n int) { // n messages, consumed from the CQ and not reported
		for range n {
			b := binary.LittleEndian.AppendUint32(nil, msg)
			b = binary.LittleEndian.AppendUint32(b, 1)
			b = append(b, make([]byte, 8)...)
			lane.Deliver(verbs.WC{Opcode: verbs.WCRecv, ByteLen: 16}, b)
			msg++
		}
		wcs := make([]verbs.WC, 16)
		cq, err := x.CQ.CQ(0)
		enginetest.Must(t, err)
		k, _ := cq.Poll(wcs)
		if _, err := x.CQ.ProcessCompletions(0, wcs[:k], nil); err != nil {
			t.Fatal(err)
		}
	}
	posted := 0
	post := func(data bool) {
		wr := ibverbx.RecvWR{WRID: uint64(posted)}
		if data {
			wr.SetSGE(x.Region.SGE(0, 64))
		}
		x.PostRecv(wr)
		posted++
	}
	post(false)
	post(false)
	arrive(1)
	post(false)
	post(true)
	post(true)
	message.Deliver(verbs.WC{Opcode: verbs.WCRecv, ByteLen: 1}, []byte{1})
	message.Deliver(verbs.WC{Opcode: verbs.WCRecv, ByteLen: 1}, []byte{1})
	arrive(2)
	dst := make([]ibverbx.WC, 16)
	n, err := x.CQ.Poll(dst)
	got := map[uint64]int{}
	for _, wc := range dst[:n] {
		got[wc.WRID]++
	}
	if n != posted || len(got) != posted {
		t.Errorf("Poll = %d completions of %v, %v; want one for each of %d receives", n, got, err, posted)
	}
}

// TestUnknownOpcodes: an unknown opcode is refused, whatever its low bits are.
func TestUnknownOpcodes(t *testing.T) {
	x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 2})
	for op := 7; op < 256; op++ {
		if n, err := x.QP.PostSend([]ibverbx.SendWR{x.Request(1, verbs.Opcode(op), 8)}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("PostSend of opcode %d = %d, %v; want 0, %v", op, n, err, verbs.ErrInvalid)
		}
	}
}

// TestDirectStats: Stats counts requests that pass through a single lane.
func TestDirectStats(t *testing.T) {
	a, b := enginetest.NewPair(t, enginetest.MemoryLinks(1), ibverbx.Config{Lanes: 1})
	local, remote := a.Region(1000), b.Region(1000)
	for range 3 {
		wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
		wr.SetSGE(local.SGE(0, 1000))
		a.PostSend(wr)
	}
	a.Wait(3)
	if s := a.QP.Stats(); s.Posted != 3 || s.Completed != 3 || s.Bytes != 3000 || s.Fragments != 3 || s.HighWater != 3 {
		t.Errorf("Stats = %+v", s)
	}
}
