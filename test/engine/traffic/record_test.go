package traffic_test

import (
	"bytes"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestSmallMessagesShareARecord posts 64 notified requests of 8 bytes in one chain. They form a run on one
// lane, covered by a single Tally record. So 65 physical requests are posted, and every message arrives with
// its immediate, length and data.
func TestSmallMessagesShareARecord(t *testing.T) {
	const messages, size = 64, 8
	a, b := enginetest.NewPair(t, enginetest.MemoryLinks(2), ibverbx.Config{Lanes: 4})
	src, dst := a.Region(messages*size), b.Region(messages*size)
	enginetest.Fill(src.Bytes(), 7)
	var wrs []ibverbx.SendWR
	for i := range messages {
		wr := ibverbx.SendWR{
			WRID: uint64(i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled,
			Remote: dst.Remote(), RemoteOffset: uint64(i * size), Imm: uint32(1000 + i),
		}
		wr.SetSGE(src.SGE(uint64(i*size), size))
		wrs = append(wrs, wr)
		b.PostRecv(ibverbx.RecvWR{WRID: uint64(i)})
	}
	a.PostSend(wrs...)
	for i, wc := range b.Wait(messages) {
		if wc.WRID != uint64(i) || wc.Imm != uint32(1000+i) || wc.ByteLen != size {
			t.Fatalf("message %d: ID %d, immediate %d, %d bytes", i, wc.WRID, wc.Imm, wc.ByteLen)
		}
	}
	a.Wait(messages)
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Error("the bytes differ")
	}
	var requests uint64
	for _, l := range a.QP.Stats().Lanes {
		requests += l.Fragments
	}
	if requests != 65 {
		t.Errorf("%d physical requests, want 64 and a record", requests)
	}
}
