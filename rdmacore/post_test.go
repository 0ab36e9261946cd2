//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"encoding/binary"
	"errors"
	"syscall"
	"testing"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// bigEndian returns v in big-endian memory order, as read by a driver in host order.
func bigEndian(v uint32) uint32 {
	return binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, v))
}

// Every field of a request reaches the driver.
func TestPostSendFields(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	r.state.record = 1
	sges := []verbs.SGE{{Addr: 0x1111, Length: 1, LKey: 0xa1}, {Addr: 0x2222, Length: 2, LKey: 0xa2}, {Addr: 0x3333, Length: 3, LKey: 0xa3}, {Addr: 0x4444, Length: 2, LKey: 0xa4}}
	for _, op := range []verbs.Opcode{
		verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMARead, verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd,
	} {
		wr := verbs.SendWR{
			WRID: 0x1122334455667788, Opcode: op, Flags: verbs.SendFence | verbs.SendSolicited, Imm: 0x01020304,
			RemoteAddr: 0xaabbccddeeff0011, RKey: 0xbeefcafe, CompareAdd: 0x1234567812345678, Swap: 0x8765432187654321,
		}
		wr.SetSGE(sges...)
		before := r.state.posted
		if n, err := r.qp.PostSend([]verbs.SendWR{wr}); n != 1 || err != nil {
			t.Fatalf("PostSend of %v = %d, %v, want 1, nil", op, n, err)
		}
		got := r.state.seen[before%8]
		want := seen{
			wrID: wr.WRID, opcode: uint32(op), flags: uint32(wr.Flags), imm: bigEndian(wr.Imm), numSGE: 4,
			remoteAddr: wr.RemoteAddr, rkey: wr.RKey, sge: [4]verbs.SGE(sges),
		}
		if op >= verbs.OpAtomicCmpAndSwp {
			want.compareAdd, want.swap = wr.CompareAdd, wr.Swap
		}
		if got != want {
			t.Errorf("the driver got %+v for %v, want %+v", got, op, want)
		}
	}
}

func TestPostRecvFields(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	srq, err := r.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 16, MaxSGE: 4})
	ok(t, err, "CreateSRQ")
	r.state.record = 1
	wr := verbs.RecvWR{WRID: 0x99}
	wr.SetSGE(verbs.SGE{Addr: 1, Length: 2, LKey: 3}, verbs.SGE{Addr: 4, Length: 5, LKey: 6})
	for name, q := range map[string]interface {
		PostRecv(wrs []verbs.RecvWR) (int, error)
	}{"QP": r.qp, "SRQ": srq} {
		at := r.state.received % 8
		if n, err := q.PostRecv([]verbs.RecvWR{wr}); n != 1 || err != nil {
			t.Fatalf("PostRecv on a %s = %d, %v, want 1, nil", name, n, err)
		}
		want := seen{wrID: 0x99, numSGE: 2, sge: [4]verbs.SGE{{Addr: 1, Length: 2, LKey: 3}, {Addr: 4, Length: 5, LKey: 6}}}
		if got := r.state.seen[at]; got != want {
			t.Errorf("the driver of a %s got %+v, want %+v", name, got, want)
		}
	}
}

// A chain needs one call into C and one doorbell, a poll one call.
func TestOneCrossing(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	for _, n := range []int{1, 4, 16, 64, 256} {
		wrs := make([]verbs.SendWR, n)
		for i := range wrs {
			wrs[i] = verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
		}
		crossings, doorbells := rdmacore.Crossings(r.qp), r.state.doorbells
		if got, err := r.qp.PostSend(wrs); got != n || err != nil {
			t.Fatalf("PostSend of %d = %d, %v, want all", n, got, err)
		}
		if c, d := rdmacore.Crossings(r.qp)-crossings, r.state.doorbells-doorbells; c != 1 || d != 1 {
			t.Errorf("a chain of %d took %d crossings and %d doorbells, want 1 and 1", n, c, d)
		}
		crossings, polls := rdmacore.Crossings(r.cq), r.state.polls
		if got, err := r.cq.Poll(make([]verbs.WC, 256)); got != n || err != nil {
			t.Fatalf("Poll = %d, %v, want %d, nil", got, err, n)
		}
		if c, p := rdmacore.Crossings(r.cq)-crossings, r.state.polls-polls; c != 1 || p != 1 {
			t.Errorf("a poll of %d took %d crossings and %d calls, want 1 and 1", n, c, p)
		}
	}
	// So does a longer chain, which is passed to the driver in batches.
	crossings, posted := rdmacore.Crossings(r.qp), r.state.posted
	n, err := r.qp.PostSend(make([]verbs.SendWR, 600))
	if n != 600 || err != nil || r.state.posted-posted != 600 || rdmacore.Crossings(r.qp)-crossings != 1 {
		t.Errorf("PostSend of 600 = %d, %v with %d taken in %d crossings, want all in one", n, err, r.state.posted-posted, rdmacore.Crossings(r.qp)-crossings)
	}
}

// Whatever errno a driver returns for a full queue, the error is an unwrapped ErrQueueFull, and n
// counts the accepted requests, within the first batch of a chain and beyond.
func TestQueueFull(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	srq, err := r.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 16})
	ok(t, err, "CreateSRQ")
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.EAGAIN, syscall.ENOSPC} {
		r.state.failWith(verbPost, errno)
		for _, room := range []int{0, 1, 5, 255} {
			r.state.room = uint64(room)
			n, err := r.qp.PostSend(make([]verbs.SendWR, 300))
			if n != room || err != verbs.ErrQueueFull { //nolint:errorlint // it is not wrapped
				t.Errorf("PostSend with room for %d and %v = %d, %v, want %d, ErrQueueFull", room, errno, n, err, room)
			}
			n, err = r.qp.PostRecv(make([]verbs.RecvWR, 300))
			if n != room || err != verbs.ErrQueueFull { //nolint:errorlint // it is not wrapped
				t.Errorf("PostRecv with room for %d and %v = %d, %v, want %d, ErrQueueFull", room, errno, n, err, room)
			}
			n, err = srq.PostRecv(make([]verbs.RecvWR, 300))
			if n != room || err != verbs.ErrQueueFull { //nolint:errorlint // it is not wrapped
				t.Errorf("SRQ.PostRecv with room for %d and %v = %d, %v, want %d, ErrQueueFull", room, errno, n, err, room)
			}
		}
	}
	r.state.failWith(verbPost, syscall.EINVAL)
	r.state.room = 2
	n, err := r.qp.PostSend(make([]verbs.SendWR, 3))
	var op *verbs.OpError
	if n != 2 || !errors.As(err, &op) || op.QPN != r.qp.Num() || !errors.Is(err, verbs.ErrInvalid) || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("PostSend that the driver refuses = %d, %v, want 2 and an *OpError with ErrInvalid and EINVAL", n, err)
	}
}

// An invalid request is rejected before the driver sees it, with an error that names the mistake.
// Earlier requests are posted.
func TestPostRefusals(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	long := verbs.SGE{Length: 1 << 30} // the maximum message length of the stand-in
	tests := []struct {
		name string
		wr   verbs.SendWR
		word string
	}{
		{"unknown opcode", verbs.SendWR{Opcode: 7}, "opcode"},
		{"elements", verbs.SendWR{Opcode: verbs.OpSend, NumSGE: 5}, "5 SGEs"},
		{"flags", verbs.SendWR{Opcode: verbs.OpSend, Flags: 1 << 5}, "flags"},
		{"length", verbs.SendWR{Opcode: verbs.OpSend, NumSGE: 2, SGE: [4]verbs.SGE{long, {Length: 1}}}, "1073741825 bytes"},
		{"length of one element", verbs.SendWR{Opcode: verbs.OpRDMAWrite, NumSGE: 1, SGE: [4]verbs.SGE{{Length: 1<<30 + 1}}}, "1073741825 bytes"},
		{"inline READ", verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.SendInline}, "INLINE"},
		{"inline bytes", verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline, NumSGE: 1, SGE: [4]verbs.SGE{{Length: 65}}}, "65 inline bytes, the QP allows 64"},
		{"atomic of 4 bytes", verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, NumSGE: 1, SGE: [4]verbs.SGE{{Length: 4}}}, "8 bytes, not 4"},
	}
	good := verbs.SendWR{Opcode: verbs.OpSend}
	for _, tt := range tests {
		posted := r.state.posted
		n, err := r.qp.PostSend([]verbs.SendWR{good, good, tt.wr, good})
		if n != 2 || r.state.posted-posted != 2 {
			t.Errorf("PostSend with bad %s as third = %d, the driver got %d, want 2", tt.name, n, r.state.posted-posted)
		}
		wants(t, "PostSend with bad "+tt.name, err, verbs.ErrInvalid, tt.word, "send 2 of the chain")
	}
	n, err := r.qp.PostRecv([]verbs.RecvWR{{}, {NumSGE: 5}})
	if n != 1 {
		t.Errorf("PostRecv with a bad second receive = %d, want 1", n)
	}
	wants(t, "PostRecv with 5 elements", err, verbs.ErrInvalid, "receive 1 of the chain", "5 SGEs")
}

// A post in an invalid state never reaches the driver, which would keep it for later.
func TestPostStates(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	qp := r.newQP(t, verbs.QPConfig{Type: verbs.RC})
	posted, received := r.state.posted, r.state.received
	refused := func(state string, recvToo bool) {
		t.Helper()
		n, err := qp.PostSend(make([]verbs.SendWR, 2))
		if n != 0 || !errors.Is(err, verbs.ErrState) {
			t.Errorf("PostSend in %s = %d, %v, want 0, ErrState", state, n, err)
		}
		if n, err := qp.PostRecv(make([]verbs.RecvWR, 1)); recvToo && (n != 0 || !errors.Is(err, verbs.ErrState)) {
			t.Errorf("PostRecv in %s = %d, %v, want 0, ErrState", state, n, err)
		}
	}
	refused("RESET", true)
	ok(t, verbs.InitQP(qp, 1), "InitQP")
	refused("INIT", false)
	if r.state.posted != posted || r.state.received != received+1 {
		t.Errorf("the driver got %d sends and %d receives, want 0 and the one of INIT", r.state.posted-posted, r.state.received-received)
	}
	ok(t, connect(qp), "Connect")
	ok(t, qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState), "Modify to ERR")
	if n, err := qp.PostSend(make([]verbs.SendWR, 2)); n != 2 || err != nil {
		t.Errorf("PostSend in ERR = %d, %v, want 2, nil", n, err)
	}
	ok(t, qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState), "Modify to RESET")
	refused("RESET after ERR", true)
}

// Datagrams reach the driver with the library's handle instead of the caller's. A closed, foreign
// or forged handle is rejected and never dereferenced.
func TestDatagrams(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.UD)
	r.state.record = 1
	ep, err := r.qp.Endpoint()
	ok(t, err, "Endpoint")
	ah, err := r.pd.CreateAH(verbs.AHAttr{DGID: ep.GID, TrafficClass: 77})
	ok(t, err, "CreateAH")
	wr := verbs.SendWR{Opcode: verbs.OpSend, AH: ah.Handle(), RemoteQPN: 0x123, RemoteQKey: 0x456}
	at := r.state.posted % 8
	if n, err := r.qp.PostSend([]verbs.SendWR{wr}); n != 1 || err != nil {
		t.Fatalf("PostSend = %d, %v, want 1, nil", n, err)
	}
	if got := r.state.seen[at]; got.ah != 77 || got.qpn != 0x123 || got.remote != 0x456 {
		t.Errorf("the driver got AH %d, QP %#x, Q_Key %#x, want 77, 0x123, 0x456", got.ah, got.qpn, got.remote)
	}
	if wr.AH != ah.Handle() {
		t.Error("PostSend changed the caller's request, want it untouched")
	}
	many := make([]verbs.SendWR, 200) // more than one batch
	for i := range many {
		many[i] = wr
	}
	if n, err := r.qp.PostSend(many); n != 200 || err != nil {
		t.Errorf("PostSend of 200 datagrams = %d, %v, want all", n, err)
	}
	pd, err := r.ctx.AllocPD()
	ok(t, err, "AllocPD")
	foreign, err := pd.CreateAH(verbs.AHAttr{DGID: ep.GID})
	ok(t, err, "CreateAH")
	ok(t, ah.Close(), "Close of the AH")
	for name, h := range map[string]verbs.AHHandle{"none": 0, "closed": ah.Handle(), "other PD": foreign.Handle(), "made up": 0xdeadbeef} {
		bad := wr
		bad.AH = h
		n, err := r.qp.PostSend([]verbs.SendWR{bad})
		if n != 0 {
			t.Errorf("PostSend with AH %s = %d, want 0", name, n)
		}
		wants(t, "PostSend with AH "+name, err, verbs.ErrInvalid, "address handle")
	}
	bad := wr
	bad.AH = foreign.Handle()
	bad.SetSGE(verbs.SGE{Length: 1025}) // the MTU of the stand-in is 1024
	if n, err := r.qp.PostSend([]verbs.SendWR{bad}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("PostSend of a datagram above the MTU = %d, %v, want 0, ErrInvalid", n, err)
	}
}

// Posting and polling do not allocate.
func TestNoAllocations(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	wrs, recvs, wcs := make([]verbs.SendWR, 16), make([]verbs.RecvWR, 16), make([]verbs.WC, 16)
	for i := range wrs {
		wrs[i].Flags = verbs.SendSignaled
	}
	if n := testing.AllocsPerRun(100, func() {
		_, _ = r.qp.PostSend(wrs)
		_, _ = r.qp.PostRecv(recvs)
		_, _ = r.cq.Poll(wcs)
	}); n != 0 {
		t.Errorf("a post and a poll allocate %v times, want 0", n)
	}
	r.state.failWith(verbPost, syscall.ENOMEM)
	r.state.room = 0
	if n := testing.AllocsPerRun(100, func() { _, _ = r.qp.PostSend(wrs) }); n != 0 {
		t.Errorf("a post to a full queue allocates %v times, want 0", n)
	}
}
