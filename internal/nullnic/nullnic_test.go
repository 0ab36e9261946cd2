package nullnic_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// station is one NIC with a CQ, a held QP and a region.
type station struct {
	nic    *nullnic.NIC
	pd     verbs.PD
	cq     *nullnic.CQ
	qp     *nullnic.QP
	memory *verbs.Memory
	mr     verbs.MR
}

func newStation(t *testing.T, nic *nullnic.NIC, cfg verbs.QPConfig) *station {
	t.Helper()
	s := &station{nic: nic}
	s.pd, _ = nic.AllocPD()
	cq, err := nic.CreateCQ(verbs.CQConfig{Depth: 64})
	if err != nil {
		t.Fatalf("CreateCQ: %v", err)
	}
	s.cq = cq.(*nullnic.CQ)
	cfg.Type, cfg.SendCQ, cfg.RecvCQ = verbs.RC, cq, cq
	q, err := s.pd.CreateQP(cfg)
	if err != nil {
		t.Fatalf("CreateQP: %v", err)
	}
	s.qp = q.(*nullnic.QP)
	if s.memory, err = verbs.AllocMemory(4096, nil); err != nil {
		t.Fatalf("AllocMemory: %v", err)
	}
	if s.mr, err = s.pd.RegisterMemory(s.memory, verbs.AccessAll); err != nil {
		t.Fatalf("RegisterMemory: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.mr.Close(), s.memory.Free()); err != nil {
			t.Errorf("closing the region: %v", err)
		}
	})
	s.qp.Hold()
	return s
}

// pair returns two stations whose QPs are connected.
func pair(t *testing.T) (a, b *station) {
	t.Helper()
	na, nb := nullnic.New("a", 0x11), nullnic.New("b", 0x11)
	nullnic.Join(na, nb)
	cfg := verbs.QPConfig{MaxSendWR: 4, MaxRecvWR: 4}
	a, b = newStation(t, na, cfg), newStation(t, nb, cfg)
	connect(t, a, b)
	connect(t, b, a)
	return a, b
}

func connect(t *testing.T, from, to *station) {
	t.Helper()
	end, err := to.qp.Endpoint()
	if err != nil {
		t.Fatalf("Endpoint: %v", err)
	}
	if err := from.qp.Connect(end); err != nil {
		t.Fatalf("Connect: %v", err)
	}
}

func (s *station) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: s.mr.Addr() + uint64(off), Length: uint32(n), LKey: s.mr.LKey()}
}

// request is a send of n bytes at offset 0 to offset 100 of the other side.
func (s *station) request(op verbs.Opcode, n int, to *station) verbs.SendWR {
	wr := verbs.SendWR{WRID: 7, Opcode: op, Flags: verbs.SendSignaled, Imm: 99, RemoteAddr: to.mr.Addr() + 100, RKey: to.mr.RKey()}
	wr.SetSGE(s.sge(0, n))
	return wr
}

func (s *station) post(t *testing.T, wrs ...verbs.SendWR) {
	t.Helper()
	if n, err := s.qp.PostSend(wrs); n != len(wrs) || err != nil {
		t.Fatalf("PostSend = %d, %v; want %d, nil", n, err, len(wrs))
	}
}

func (s *station) carry(t *testing.T) {
	t.Helper()
	if status, done := s.qp.Carry(); status != verbs.StatusSuccess || !done {
		t.Fatalf("Carry = %v, %v; want success, true", status, done)
	}
}

func (s *station) poll(t *testing.T) []verbs.WC {
	t.Helper()
	wcs := make([]verbs.WC, 64)
	n, err := s.cq.Poll(wcs)
	if err != nil {
		t.Fatalf("Poll: %v", err)
	}
	return wcs[:n]
}

// TestCarry: each opcode takes effect at the other side when it is carried, not before. Complete
// writes its completion.
func TestCarry(t *testing.T) {
	for _, op := range []verbs.Opcode{
		verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpSendWithImm,
		verbs.OpRDMARead, verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd,
	} {
		t.Run(op.String(), func(t *testing.T) {
			a, b := pair(t)
			copy(a.memory.Bytes(), "ABCDEFGH")
			binary.NativeEndian.PutUint64(b.memory.Bytes()[104:], 40) // the atomics' word
			copy(b.memory.Bytes()[100:], "READ")
			recv := verbs.RecvWR{WRID: 5}
			recv.SetSGE(b.sge(200, 3), b.sge(300, 8))
			if n, err := b.qp.PostRecv([]verbs.RecvWR{recv}); n != 1 {
				t.Fatalf("PostRecv = %d, %v; want 1", n, err)
			}
			wr := a.request(op, 8, b)
			if wr.Opcode >= verbs.OpAtomicCmpAndSwp {
				wr.RemoteAddr += 4
				wr.CompareAdd, wr.Swap = 40, 2
			}
			before := bytes.Clone(b.memory.Bytes())
			a.post(t, wr)
			if !bytes.Equal(before, b.memory.Bytes()) || b.cq.Len() > 0 {
				t.Fatal("something arrived before it was carried")
			}
			a.carry(t)
			checkCarried(t, op, a, b)
			if got := a.poll(t); len(got) != 0 {
				t.Fatalf("%d completions before Complete, want 0", len(got))
			}
			a.qp.Complete(1)
			if got := a.poll(t); len(got) != 1 || got[0].WRID != 7 || got[0].Opcode != op.WC() {
				t.Errorf("completions = %+v, want one of wr_id 7, %s", got, op.WC())
			}
		})
	}
}

func checkCarried(t *testing.T, op verbs.Opcode, a, b *station) {
	t.Helper()
	want := map[verbs.Opcode]string{verbs.OpRDMAWrite: "ABCDEFGH", verbs.OpRDMAWriteWithImm: "ABCDEFGH"}[op]
	if got := string(b.memory.Bytes()[100:108]); want != "" && got != want {
		t.Errorf("written bytes = %q, want %q", got, want)
	}
	word := binary.NativeEndian.Uint64(b.memory.Bytes()[104:])
	old := binary.NativeEndian.Uint64(a.memory.Bytes())
	got := b.poll(t)
	switch op {
	case verbs.OpRDMARead:
		if s := string(a.memory.Bytes()[:4]); s != "READ" {
			t.Errorf("read bytes = %q, want READ", s)
		}
	case verbs.OpAtomicCmpAndSwp:
		if word != 2 || old != 40 {
			t.Errorf("the word is %d and was %d, want 2 and 40", word, old)
		}
	case verbs.OpAtomicFetchAndAdd:
		if word != 80 || old != 40 {
			t.Errorf("the word is %d and was %d, want 80 and 40", word, old)
		}
	case verbs.OpSend, verbs.OpSendWithImm:
		if s := string(b.memory.Bytes()[200:203]) + string(b.memory.Bytes()[300:305]); s != "ABCDEFGH" {
			t.Errorf("received bytes = %q, want ABCDEFGH", s)
		}
		if len(got) != 1 || got[0].Opcode != verbs.WCRecv || got[0].ByteLen != 8 || got[0].WRID != 5 {
			t.Errorf("receives = %+v, want one of 8 bytes, wr_id 5", got)
		}
	case verbs.OpRDMAWriteWithImm:
		if len(got) != 1 || got[0].Opcode != verbs.WCRecvRDMAWithImm || got[0].Imm != 99 || got[0].Flags != verbs.WCWithImm {
			t.Errorf("receives = %+v, want one with the immediate 99", got)
		}
	case verbs.OpRDMAWrite:
		if len(got) != 0 {
			t.Errorf("receives = %+v, want none", got)
		}
	}
}

// TestNotReady: a send waits for a receive. An unresponsive QP and keys of another NIC are
// failures.
func TestNotReady(t *testing.T) {
	a, b := pair(t)
	a.post(t, a.request(verbs.OpSend, 8, b))
	if status, done := a.qp.Carry(); done {
		t.Fatalf("Carry without a receive = %v, true; want false", status)
	}
	a.qp.Fail(verbs.StatusRNRRetryExcErr)

	for name, change := range map[string]func(a, b *station, wr *verbs.SendWR) verbs.Status{
		"key of the wrong NIC": func(a, _ *station, wr *verbs.SendWR) verbs.Status {
			wr.RKey = a.mr.RKey()
			return verbs.StatusRemAccessErr
		},
		"outside the region": func(_, _ *station, wr *verbs.SendWR) verbs.Status {
			wr.RemoteAddr += 4096 - 100 - 7
			return verbs.StatusRemAccessErr
		},
		"local key of the wrong NIC": func(_, b *station, wr *verbs.SendWR) verbs.Status {
			wr.SGE[0].LKey = b.mr.LKey()
			return verbs.StatusLocProtErr
		},
		"peer in ERR": func(_, b *station, _ *verbs.SendWR) verbs.Status {
			b.qp.Fail(verbs.StatusSuccess)
			return verbs.StatusRetryExcErr
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			wr := a.request(verbs.OpRDMAWrite, 8, b)
			want := change(a, b, &wr)
			a.post(t, wr)
			if status, done := a.qp.Carry(); status != want || !done {
				t.Errorf("Carry = %v, %v; want %v, true", status, done, want)
			}
		})
	}
}

// TestCarryOneByOne: requests are carried one at a time, in order, and Carried counts them.
func TestCarryOneByOne(t *testing.T) {
	a, b := pair(t)
	second := a.request(verbs.OpRDMAWrite, 4, b)
	second.RemoteAddr += 100
	a.post(t, a.request(verbs.OpRDMAWrite, 4, b), second)
	copy(a.memory.Bytes(), "abcd")
	a.carry(t)
	if got := string(b.memory.Bytes()[100:104]) + string(b.memory.Bytes()[200:204]); got != "abcd\x00\x00\x00\x00" || a.qp.Carried() != 1 {
		t.Errorf("after one Carry the memory is %q and %d are carried, want the first of two", got, a.qp.Carried())
	}
	a.carry(t)
	a.qp.Complete(1)
	if got := string(b.memory.Bytes()[200:204]); got != "abcd" || a.qp.Carried() != 1 {
		t.Errorf("after the second Carry and one Complete the memory is %q and %d are carried, want abcd and 1", got, a.qp.Carried())
	}
	if _, done := a.qp.Carry(); done {
		t.Error("Carry carried a third request of two")
	}
}

// TestInlineIsTakenAtPost: a carried inline request has the bytes of its post.
func TestInlineIsTakenAtPost(t *testing.T) {
	a, b := pair(t)
	copy(a.memory.Bytes(), "then")
	wr := a.request(verbs.OpRDMAWrite, 4, b)
	wr.Flags |= verbs.SendInline
	a.post(t, wr)
	copy(a.memory.Bytes(), "now!")
	a.carry(t)
	if got := string(b.memory.Bytes()[100:104]); got != "then" || string(a.qp.Inline(0)) != "then" {
		t.Errorf("carried %q and kept %q, want \"then\"", got, a.qp.Inline(0))
	}
}

// TestLate: requests in flight when a QP went to ERR may still arrive, in order, with their
// original bytes. Requests behind a failed one do not.
func TestLate(t *testing.T) {
	a, b := pair(t)
	copy(a.memory.Bytes(), "late")
	a.post(t, a.request(verbs.OpRDMAWrite, 4, b))
	if err := a.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState); err != nil {
		t.Fatalf("Modify: %v", err)
	}
	if got := a.poll(t); len(got) != 1 || got[0].Status != verbs.StatusWRFlushErr {
		t.Fatalf("completions = %+v, want one flushed", got)
	}
	copy(a.memory.Bytes(), "gone")
	if !a.qp.CarryLate() || string(b.memory.Bytes()[100:104]) != "late" {
		t.Errorf("memory = %q, want late", b.memory.Bytes()[100:104])
	}
	if a.qp.CarryLate() {
		t.Error("CarryLate carried more than there was")
	}

	a, b = pair(t)
	a.post(t, a.request(verbs.OpRDMAWrite, 4, b), a.request(verbs.OpRDMAWrite, 4, b))
	a.qp.Fail(verbs.StatusRemAccessErr)
	if a.qp.CarryLate() {
		t.Error("a send behind the one that failed was carried")
	}
}

// TestSlots: a slot of the send queue is free once its completion, or a later one, has been
// polled, not before.
func TestSlots(t *testing.T) {
	a, b := pair(t)
	quiet, loud := a.request(verbs.OpRDMAWrite, 4, b), a.request(verbs.OpRDMAWrite, 4, b)
	quiet.Flags = 0
	a.post(t, quiet, quiet, quiet, loud)
	full := func(want bool) {
		t.Helper()
		if n, err := a.qp.PostSend([]verbs.SendWR{loud}); (n == 0) != want || (want && !errors.Is(err, verbs.ErrQueueFull)) {
			t.Fatalf("PostSend = %d, %v; want full: %v", n, err, want)
		}
	}
	full(true)
	a.qp.Complete(3)
	full(true) // not completed yet
	a.qp.Complete(1)
	full(true) // not polled yet
	if got := a.poll(t); len(got) != 1 {
		t.Fatalf("%d completions, want 1", len(got))
	}
	for range 4 {
		full(false) // all four are free
	}
	full(true)
	if got := a.qp.Chains(); len(got) != 5 || got[0] != 4 || got[1] != 1 {
		t.Errorf("chains = %v, want [4 1 1 1 1]", got)
	}
}

// TestRefusals: a chain is refused from a position on, then others as a whole. Requests before
// it stay accepted. A held QP counts chains that did not fit.
func TestRefusals(t *testing.T) {
	a, b := pair(t)
	wr := a.request(verbs.OpRDMAWrite, 4, b)
	chain := []verbs.SendWR{wr, wr}
	a.qp.RefuseAt(1, verbs.ErrLimit)
	a.qp.RefuseMore(2)
	for i, want := range []int{1, 0, 0, 2} {
		n, err := a.qp.PostSend(chain)
		if n != want || (want < 2) != errors.Is(err, verbs.ErrLimit) {
			t.Errorf("post %d = %d, %v; want %d", i, n, err, want)
		}
	}
	a.qp.RefuseAt(0, verbs.ErrLimit)
	a.qp.RefuseAt(-1, nil)
	if n, err := a.qp.PostSend(chain); n != 1 || !errors.Is(err, verbs.ErrQueueFull) || a.qp.Overruns != 1 {
		t.Errorf("PostSend = %d, %v, %d overruns; want 1, %v, 1", n, err, a.qp.Overruns, verbs.ErrQueueFull)
	}
	if got := a.qp.Chains(); len(got) != 3 || len(a.qp.Posted()) != 4 || len(a.qp.Taken) != 4 {
		t.Errorf("chains %v with %d requests posted and %d taken, want three with 4", got, len(a.qp.Posted()), len(a.qp.Taken))
	}
}

// TestRepeatReads: a READ whose response is lost fetches its bytes again, including later writes.
func TestRepeatReads(t *testing.T) {
	for repeat, want := range map[bool]string{false: "then", true: "now!"} {
		a, b := pair(t)
		if repeat {
			a.qp.RepeatReads()
		}
		copy(b.memory.Bytes()[100:], "then")
		a.post(t, a.request(verbs.OpRDMARead, 4, b))
		a.carry(t)
		copy(b.memory.Bytes()[100:], "now!")
		a.qp.Complete(1)
		if got := string(a.memory.Bytes()[:4]); got != want {
			t.Errorf("with repetition %v a READ brought %q, want %q", repeat, got, want)
		}
	}
}

// TestFailedCompletions: failed completions have garbage in every invalid field.
func TestFailedCompletions(t *testing.T) {
	a, b := pair(t)
	if n, err := a.qp.PostRecv(make([]verbs.RecvWR, 2)); n != 2 {
		t.Fatalf("PostRecv = %d, %v; want 2", n, err)
	}
	a.post(t, a.request(verbs.OpRDMAWrite, 4, b), a.request(verbs.OpRDMAWrite, 4, b))
	a.qp.FailRecv(verbs.StatusLocLenErr)
	got := a.poll(t)
	if len(got) != 4 {
		t.Fatalf("%d completions, want 4", len(got))
	}
	for i, want := range []verbs.Status{verbs.StatusLocLenErr, verbs.StatusWRFlushErr, verbs.StatusWRFlushErr, verbs.StatusWRFlushErr} {
		if wc := got[i]; wc.Status != want || wc.Opcode != 0x7f || wc.Flags != 0xff || wc.ByteLen != 0xdeadbeef || wc.Imm != 0xdeadbeef {
			t.Errorf("completion %d = %+v, want %v and garbage", i, wc, want)
		}
	}
}

// TestSRQ: QPs consume receives of the SRQ. It raises its limit event once, and flushing a QP does
// not affect it.
func TestSRQ(t *testing.T) {
	nic := nullnic.New("a", 0x11)
	pd, _ := nic.AllocPD()
	srq, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: 3, Limit: 2})
	if err != nil {
		t.Fatalf("CreateSRQ: %v", err)
	}
	s := newStation(t, nic, verbs.QPConfig{SRQ: srq})
	if n, err := srq.PostRecv(make([]verbs.RecvWR, 4)); n != 3 || !errors.Is(err, verbs.ErrQueueFull) {
		t.Fatalf("PostRecv = %d, %v; want 3, full", n, err)
	}
	events := make([]verbs.Event, 4)
	for i, want := range []int{0, 1, 0} {
		if !s.qp.Receive(verbs.WC{}) {
			t.Fatalf("receive %d: none is posted", i)
		}
		if n, _ := nic.Events(events); n != want || (n == 1 && events[0].Type != verbs.EventSRQLimitReached) {
			t.Errorf("after receive %d: %d events, want %d", i, n, want)
		}
	}
	if s.qp.Receive(verbs.WC{}) {
		t.Error("a receive was taken from an empty SRQ")
	}
	if n, err := srq.PostRecv(make([]verbs.RecvWR, 1)); n != 1 {
		t.Fatalf("PostRecv = %d, %v; want 1", n, err)
	}
	if s.qp.Fail(verbs.StatusSuccess); len(s.qp.Waiting()) != 1 {
		t.Errorf("%d receives are left in the SRQ of a flushed QP, want 1", len(s.qp.Waiting()))
	}
	if n, err := s.qp.PostRecv(make([]verbs.RecvWR, 1)); n != 0 || err == nil {
		t.Errorf("PostRecv on a QP with an SRQ = %d, %v; want an error", n, err)
	}
}
