package softnic_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestDuplicateAtomicExecutedOnce: every packet arrives twice and responses are lost. A sum of ones still
// equals the number of requests.
func TestDuplicateAtomicExecutedOnce(t *testing.T) {
	w := newWorld(t, softnic.FaultConfig{Seed: 3, Impairment: softnic.Impairment{Duplicate: 1}})
	r := newRig(t, w.link)
	must(t, w.link.Impair(r.b, r.a, softnic.Impairment{Loss: 0.2}))
	result, resultMR := memory(t, r.pa, 8)
	sum, sumMR := memory(t, r.pb, 8)
	clear(sum.Bytes())
	cqA := newCQ(t, r.ca, 128)
	qa, _ := r.pair(verbs.RC, cqA, newCQ(t, r.cb, 4), 128)
	wrs := make([]verbs.SendWR, 100)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.SendSignaled, CompareAdd: 1, RemoteAddr: sum.Addr(), RKey: sumMR.RKey()}
		wrs[i].SetSGE(verbs.SGE{Addr: result.Addr(), Length: 8, LKey: resultMR.LKey()})
	}
	if n, err := qa.PostSend(wrs); n != len(wrs) || err != nil {
		t.Fatal(n, err)
	}
	w.settle(t)
	for i, wc := range poll(t, cqA) {
		if wc.Status != verbs.StatusSuccess {
			t.Fatalf("atomic %d: %v", i, wc.Err())
		}
	}
	if got := binary.NativeEndian.Uint64(sum.Bytes()); got != uint64(len(wrs)) {
		t.Errorf("sum = %d after %d additions of 1", got, len(wrs))
	}
	if got := binary.NativeEndian.Uint64(result.Bytes()); got != uint64(len(wrs)-1) {
		t.Errorf("the last addition returned %d, want %d", got, len(wrs)-1)
	}
	if r.b.Stats().Duplicates == 0 {
		t.Error("no duplicate reached the responder: the test shows nothing")
	}
}

// TestPSNWraps sends across the end of the PSN space, with losses on both sides of it.
func TestPSNWraps(t *testing.T) {
	w := newWorld(t, softnic.FaultConfig{Seed: 5, Impairment: softnic.Impairment{Loss: 0.05, Reorder: 0.1}})
	r := newRig(t, w.link)
	const n = 64 * kib
	src, srcMR := memory(t, r.pa, n)
	dst, dstMR := memory(t, r.pb, n)
	cqA, cqB := newCQ(t, r.ca, 64), newCQ(t, r.cb, 64)
	cfg := verbs.QPConfig{Type: verbs.RC, MaxSendWR: 64}
	cfg.SendCQ, cfg.RecvCQ = cqA, cqA
	qa, err := r.pa.CreateQP(cfg)
	must(t, err)
	cfg.SendCQ, cfg.RecvCQ = cqB, cqB
	qb, err := r.pb.CreateQP(cfg)
	must(t, err)
	ea, err := qa.Endpoint()
	must(t, err)
	eb, err := qb.Endpoint()
	must(t, err)
	ea.PSN, eb.PSN, ea.MTU = 0xffffff-100, 0xffffff-3, verbs.MTU256
	must(t, verbs.ConnectWith(qa, verbs.ConnectAttr(ea, eb, 1, 1)))
	must(t, verbs.ConnectWith(qb, verbs.ConnectAttr(eb, ea, 1, 1)))
	for round := range 8 {
		for i := range src.Bytes() {
			src.Bytes()[i] = byte(i*3 + round)
		}
		wr := writeWR(srcMR, dstMR, n)
		if round%2 == 1 {
			wr.Opcode = verbs.OpRDMARead
		}
		if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
			t.Fatal(err)
		}
		w.settle(t)
		if got := poll(t, cqA); len(got) != 1 || got[0].Status != verbs.StatusSuccess {
			t.Fatalf("round %d: completions = %+v", round, got)
		}
		if !bytes.Equal(src.Bytes(), dst.Bytes()) {
			t.Fatalf("round %d: memory differs at %d", round, firstDifference(src.Bytes(), dst.Bytes()))
		}
	}
}

// TestUCDropsBrokenMessages: a message with a lost packet is dropped entirely, later ones arrive, and its
// receive serves the next.
func TestUCDropsBrokenMessages(t *testing.T) {
	w := newWorld(t, softnic.FaultConfig{Seed: 11, Impairment: softnic.Impairment{Loss: 0.1}})
	r := newRig(t, w.link)
	const messages, size = 200, 3 * 4096
	src, srcMR := memory(t, r.pa, size)
	inbox, inboxMR := memory(t, r.pb, messages*size)
	cqA, cqB := newCQ(t, r.ca, 256), newCQ(t, r.cb, 256)
	qa, qb := r.pair(verbs.UC, cqA, cqB, 256)
	recvs := make([]verbs.RecvWR, messages)
	for i := range recvs {
		recvs[i].WRID = uint64(i)
		recvs[i].SetSGE(verbs.SGE{Addr: inbox.Addr() + uint64(i*size), Length: size, LKey: inboxMR.LKey()})
	}
	postRecv(t, qb, recvs)
	for i := range messages {
		for k := range src.Bytes() {
			src.Bytes()[k] = byte(i + k)
		}
		wr := verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpSendWithImm, Imm: uint32(i), Flags: verbs.SendSignaled}
		wr.SetSGE(verbs.SGE{Addr: src.Addr(), Length: size, LKey: srcMR.LKey()})
		if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
			t.Fatal(err)
		}
		w.settle(t)
	}
	if got := len(poll(t, cqA)); got != messages {
		t.Errorf("%d send completions, want %d: UC sends complete whatever happens to them", got, messages)
	}
	received := poll(t, cqB)
	last := -1
	for k, wc := range received {
		i := int(wc.Imm)
		if wc.Status != verbs.StatusSuccess || wc.WRID != uint64(k) || wc.ByteLen != size || i <= last {
			t.Fatalf("receive %d = %+v after message %d", k, wc, last)
		}
		last = i
		for off, b := range inbox.Bytes()[k*size:][:size] {
			if b != byte(i+off) {
				t.Fatalf("message %d is damaged at byte %d", i, off)
			}
		}
	}
	lost := w.link.Stats(r.a, r.b).Lost
	if n := messages - len(received); n == 0 || len(received) == 0 || uint64(n) > lost {
		t.Errorf("%d messages received of %d with %d packets lost", len(received), messages, lost)
	}
}

// TestReadWithoutDepth: a READ or atomic on a QP whose max_rd_atomic is 0 can never be sent. It fails with
// LOC_QP_OP_ERR, after the requests before it, and moves the QP to ERR.
func TestReadWithoutDepth(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd} {
		t.Run(op.String(), func(t *testing.T) {
			r := newRig(t, softnic.NewMemoryLink(nil))
			_, src := memory(t, r.pa, 64)
			_, dst := memory(t, r.pb, 64)
			cqA, cqB := newCQ(t, r.ca, 8), newCQ(t, r.cb, 8)
			qa, err := r.pa.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cqA, RecvCQ: cqA, MaxSendWR: 4})
			must(t, err)
			qb, err := r.pb.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cqB, RecvCQ: cqB, MaxSendWR: 4})
			must(t, err)
			ea, err := qa.Endpoint()
			must(t, err)
			eb, err := qb.Endpoint()
			must(t, err)
			eb.MaxDestRdAtomic = 0
			must(t, qa.Connect(eb))
			must(t, qb.Connect(ea))
			bad := writeWR(src, dst, 8)
			bad.Opcode = op
			if n, err := qa.PostSend([]verbs.SendWR{writeWR(src, dst, 8), bad, writeWR(src, dst, 8)}); n != 3 || err != nil {
				t.Fatal(n, err)
			}
			want := []verbs.Status{verbs.StatusSuccess, verbs.StatusLocQPOpErr, verbs.StatusWRFlushErr}
			wcs := poll(t, cqA)
			if len(wcs) != len(want) {
				t.Fatalf("%d completions, want %d", len(wcs), len(want))
			}
			for i, wc := range wcs {
				if wc.Status != want[i] {
					t.Errorf("completion %d = %v, want %v", i, wc.Status, want[i])
				}
			}
			if got := qa.State(); got != verbs.StateErr {
				t.Errorf("state = %v, want %v", got, verbs.StateErr)
			}
		})
	}
}
