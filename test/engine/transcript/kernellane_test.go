package transcript_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"unsafe"

	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// kernelLane is an engine QP on a kernel device. It holds sends until the transcript completes them; receives
// are posted to the device directly.
type kernelLane struct {
	verbs.QP
	k       *kernelStage
	peer    verbs.QP
	taken   []verbs.SendWR
	inline  [][]byte // of each of taken, nil unless inline
	done    int      // of taken
	chains  []int
	waiting []verbs.RecvWR
	broken  bool // in ERR
	// pending is a message that the peer keeps retrying, because no receive is posted.
	pending *verbs.WC
	// refusal is the error for the next chain at position refuseAt-1; 0 disables it.
	refuseAt int
	refusal  error
}

func (p *kernelPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	k := p.k
	cfg.SendCQ, cfg.RecvCQ = k.cq.CQ, k.cq.recvs
	cfg.SignalAll = true // the engine does not see completions it did not request
	qp, err := p.PD.CreateQP(cfg)
	if err != nil {
		return nil, err
	}
	peer, err := k.peerPD.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: k.sent, RecvCQ: k.got, MaxSendWR: 64, MaxRecvWR: 256})
	enginetest.Must(k.tb, err)
	l := &kernelLane{QP: qp, k: k, peer: peer}
	k.lanes = append(k.lanes, l)
	return l, nil
}

// Connect connects the lane to its peer, regardless of the endpoint argument, with longer timeouts than usual
// because the machine may be slow.
func (l *kernelLane) Connect(verbs.Endpoint) error {
	mine, err := l.Endpoint()
	enginetest.Must(l.k.tb, err)
	theirs, err := l.peer.Endpoint()
	enginetest.Must(l.k.tb, err)
	connect := func(qp verbs.QP, ctx verbs.Context, local, remote verbs.Endpoint) error {
		for index := 0; ; index++ {
			row, err := ctx.QueryGID(1, index)
			if errors.Is(err, verbs.ErrNotFound) && index < 16 {
				continue
			}
			enginetest.Must(l.k.tb, err)
			if row.GID == local.GID {
				attr := verbs.ConnectAttr(local, remote, 1, index)
				attr.Timeout = 17 // 0.5 s, seven times
				return verbs.ConnectWith(qp, attr)
			}
		}
	}
	if err := connect(l.peer, l.k.peer, theirs, mine); err != nil {
		return err
	}
	return connect(l.QP, l.k.Context, mine, theirs)
}

func (l *kernelLane) Posted() []verbs.SendWR      { return l.taken[l.done:] }
func (l *kernelLane) Chains() []int               { return l.chains }
func (l *kernelLane) Request(i int) *verbs.SendWR { return &l.taken[i] }
func (l *kernelLane) Inline(i int) []byte         { return l.inline[i] }
func (l *kernelLane) Waiting() []verbs.RecvWR     { return l.waiting }

// RefuseAt simulates a full or broken device; the request does not reach the device.
func (l *kernelLane) RefuseAt(k int, err error) { l.refuseAt, l.refusal = k+1, err }

func (l *kernelLane) PostSend(wrs []verbs.SendWR) (int, error) {
	var refusal error
	if at := l.refuseAt - 1; at >= 0 && at < len(wrs) {
		wrs, refusal, l.refuseAt = wrs[:at], l.refusal, 0
	}
	if len(wrs) == 0 {
		return 0, refusal
	}
	l.chains = append(l.chains, len(wrs))
	for i := range wrs {
		var b []byte
		if wrs[i].Flags&verbs.SendInline != 0 {
			b = gather(wrs[i].SGE[:wrs[i].NumSGE])
		}
		l.inline = append(l.inline, b)
	}
	l.taken = append(l.taken, wrs...)
	if l.broken {
		l.flush()
	}
	return len(wrs), refusal
}

func (l *kernelLane) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if l.broken { // Soft-RoCE lacks CapFlushOnPost
		for i := range wrs {
			l.addCompletions(verbs.WC{WRID: wrs[i].WRID, Status: verbs.StatusWRFlushErr, QPN: l.Num()})
		}
		return len(wrs), nil
	}
	n, err := l.QP.PostRecv(wrs)
	l.waiting = append(l.waiting, wrs[:n]...)
	return n, err
}

func (l *kernelLane) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := l.QP.Modify(attr, mask); err != nil || attr.State != verbs.StateErr {
		return err
	}
	l.broken = true
	l.flush()
	return nil
}

func (l *kernelLane) Close() error {
	l.closePeer()
	return l.QP.Close()
}

func (l *kernelLane) addCompletions(wcs ...verbs.WC) { l.k.cq.ready = append(l.k.cq.ready, wcs...) }

// start hands the oldest n sends to the device, in one chain. With badKey the first names a
// key that the peer does not have.
func (l *kernelLane) start(n int, badKey bool) (wrs []verbs.SendWR) {
	tb := l.k.tb
	for i := range n {
		wr := l.taken[l.done+i]
		if b := l.inline[l.done+i]; len(b) > 0 { // the buffer may have changed since
			wr.SetSGE(verbs.SGE{Addr: uint64(uintptr(unsafe.Pointer(&b[0]))), Length: uint32(len(b))})
		}
		switch wr.Opcode {
		case verbs.OpSend, verbs.OpSendWithImm:
		default:
			if wr.Length() == 0 && wr.RKey == 0 { // a notification has an empty target
				break
			}
			r, off := l.k.remote(&wr)
			wr.RemoteAddr, wr.RKey = r.peer.Addr()+off, r.peer.RKey()
		}
		wrs = append(wrs, wr)
	}
	if badKey {
		wrs[0].RKey ^= 0x5500
	}
	if k, err := l.QP.PostSend(wrs); k != n || err != nil {
		tb.Fatalf("the device took %d of %d requests, %v, want all", k, n, err)
	}
	return wrs
}

func takesReceive(op verbs.Opcode) bool {
	return op == verbs.OpSend || op == verbs.OpSendWithImm || op == verbs.OpRDMAWriteWithImm
}

// expect posts the peer's receives for the oldest n sends, and returns their buffers.
func (l *kernelLane) expect(n int) (places [][]byte) {
	for i := range n {
		wr := &l.taken[l.done+i]
		if !takesReceive(wr.Opcode) {
			continue
		}
		b, e := l.k.room(int(max(wr.Length(), 1)))
		var recv verbs.RecvWR
		recv.SetSGE(e)
		if k, err := l.peer.PostRecv([]verbs.RecvWR{recv}); k != 1 || err != nil {
			l.k.tb.Fatalf("PostRecv of the peer = %d, %v, want 1, nil", k, err)
		}
		places = append(places, b)
	}
	return places
}

// Complete executes the oldest n sends for real, and compares the received data.
func (l *kernelLane) Complete(n int) {
	if n == 0 {
		return
	}
	tb := l.k.tb
	places := l.expect(n)
	before := l.atomicsBefore(n)
	wrs := l.start(n, false)
	wcs := l.k.waitCompletions(l.k.cq.CQ, l.Num(), n, "completions of sends")
	arrived := l.k.waitCompletions(l.k.got, l.peer.Num(), len(places), "receives of the peer")
	for i, wc := range wcs {
		wr := &l.taken[l.done+i]
		if wc.WRID != wr.WRID || wc.Status != verbs.StatusSuccess || wc.Opcode != wr.Opcode.WC() {
			tb.Fatalf("request %d of %d ended with %+v, want success of %s", i, n, wc, wr.Opcode)
		}
		var received *verbs.WC
		var place []byte
		if takesReceive(wr.Opcode) {
			received, place = &arrived[0], places[0]
			arrived, places = arrived[1:], places[1:]
		}
		l.compare(&wrs[i], l.inline[l.done+i], received, place, before[i])
		if wr.Flags&verbs.SendSignaled != 0 {
			l.addCompletions(wc)
		}
	}
	l.done += n
}

// atomicsBefore returns the current values of the words that the oldest n sends will change.
func (l *kernelLane) atomicsBefore(n int) []uint64 {
	words := make([]uint64, n)
	for i := range words {
		if wr := &l.taken[l.done+i]; wr.Opcode >= verbs.OpAtomicCmpAndSwp {
			r, off := l.k.remote(wr)
			words[i] = binary.NativeEndian.Uint64(r.memory.Bytes()[off:])
		}
	}
	return words
}

// compare checks the effect of a request. told is the completion of the peer's receive, place its buffer, and
// before the word that an atomic has changed.
func (l *kernelLane) compare(wr *verbs.SendWR, inline []byte, received *verbs.WC, place []byte, before uint64) {
	tb := l.k.tb
	local := inline
	if inline == nil {
		local = gather(wr.SGE[:wr.NumSGE])
	}
	switch wr.Opcode {
	case verbs.OpSend, verbs.OpSendWithImm:
		if received.Opcode != verbs.WCRecv || int(received.ByteLen) != len(local) || !bytes.Equal(place[:len(local)], local) {
			tb.Errorf("a SEND of %x arrived as %x with %+v", local, place, received)
		}
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead:
		if remote := bytesAt(wr.RemoteAddr, uint32(len(local))); len(local) > 0 && !bytes.Equal(local, remote) {
			tb.Errorf("%s of %d bytes: here and there they differ", wr.Opcode, len(local))
		}
		if received != nil && (received.Opcode != verbs.WCRecvRDMAWithImm || int(received.ByteLen) != len(local)) {
			tb.Errorf("the peer received %+v for %s with %d bytes", received, wr.Opcode, len(local))
		}
	default:
		after := before + wr.CompareAdd
		if wr.Opcode == verbs.OpAtomicCmpAndSwp {
			if after = before; before == wr.CompareAdd {
				after = wr.Swap
			}
		}
		was, is := binary.NativeEndian.Uint64(local), binary.NativeEndian.Uint64(bytesAt(wr.RemoteAddr, 8))
		if was != before || is != after {
			tb.Errorf("%s: the old value is %d and the new one %d, want %d and %d", wr.Opcode, was, is, before, after)
		}
	}
	imm := wr.Opcode == verbs.OpSendWithImm || wr.Opcode == verbs.OpRDMAWriteWithImm
	if received != nil && (imm != (received.Flags&verbs.WCWithImm != 0) || imm && received.Imm != wr.Imm) {
		tb.Errorf("the peer received %+v, want the immediate %#x: %v", received, wr.Imm, imm)
	}
}

// Fail makes the oldest send fail for real: its key is invalid, or its peer is dead.
func (l *kernelLane) Fail(status verbs.Status) {
	n := len(l.Posted())
	switch status {
	case verbs.StatusRemAccessErr:
		l.expect(n)
	case verbs.StatusRetryExcErr:
		l.closePeer()
	default:
		l.k.tb.Fatalf("fail with %q: want a status that can be provoked", status)
	}
	l.start(n, status == verbs.StatusRemAccessErr)
	l.broken = true
	l.reportSends(l.k.waitCompletions(l.k.cq.CQ, l.Num(), n, "completions of sends that fail"), status)
	l.flush()
	l.closePeer()
}

// closePeer closes the peer, with the completions that are left of it.
func (l *kernelLane) closePeer() {
	if l.peer != nil {
		enginetest.Must(l.k.tb, l.peer.Close())
		l.peer = nil
	}
}

// reportSends reports sends to the engine: the first failed with a status, and the others were flushed.
func (l *kernelLane) reportSends(wcs []verbs.WC, first verbs.Status) {
	for i, wc := range wcs {
		want := verbs.StatusWRFlushErr
		if i == 0 {
			want = first
		}
		if wc.Status != want || wc.WRID != l.taken[l.done+i].WRID {
			l.k.tb.Errorf("send %d ended with %q, want %q", i, wc.Status, want)
		}
	}
	l.done += len(wcs)
	l.addCompletions(wcs...)
}

// flush collects the device's flushed completions of a lane in ERR. Held sends are posted first, and the
// device flushes them too.
func (l *kernelLane) flush() {
	if n := len(l.Posted()); n > 0 {
		l.start(n, false)
		l.reportSends(l.k.waitCompletions(l.k.cq.CQ, l.Num(), n, "completions of flushed sends"), verbs.StatusWRFlushErr)
	}
	for i, wc := range l.k.waitCompletions(l.k.cq.recvs, l.Num(), len(l.waiting), "completions of flushed receives") {
		if wc.Status != verbs.StatusWRFlushErr || wc.WRID != l.waiting[i].WRID {
			l.k.tb.Errorf("receive %d ended with %q, want %q", i, wc.Status, verbs.StatusWRFlushErr)
		}
		l.addCompletions(wc)
	}
	l.waiting = nil
}

// FailRecv makes the oldest receive fail for real with an oversized message. Soft-RoCE reports another status
// (docs/conformance.md), which is hidden from the engine.
func (l *kernelLane) FailRecv(status verbs.Status) {
	tb := l.k.tb
	if status != verbs.StatusLocLenErr {
		tb.Fatalf("fail recv with %q: want a status that can be provoked", status)
	}
	var wr verbs.SendWR
	_, e := l.k.room(int(l.waiting[0].Length()) + 64)
	wr.Opcode = verbs.OpSend
	wr.SetSGE(e)
	if k, err := l.peer.PostSend([]verbs.SendWR{wr}); k != 1 || err != nil {
		tb.Fatalf("PostSend of the peer = %d, %v, want 1, nil", k, err)
	}
	l.k.waitCompletions(l.k.sent, l.peer.Num(), 1, "the peer's message that is too long") // fails
	wc := l.k.waitCompletions(l.k.cq.recvs, l.Num(), 1, "the receive that is too short")[0]
	if !slices.Contains([]verbs.Status{verbs.StatusLocLenErr, verbs.StatusLocQPOpErr}, wc.Status) || wc.WRID != l.waiting[0].WRID {
		tb.Errorf("the receive ended with %q, want %q", wc.Status, status)
	}
	wc.Status = status
	l.addCompletions(wc)
	l.waiting, l.broken = l.waiting[1:], true
	l.flush()
}

// Deliver has the peer send a message. If no receive is posted, the peer keeps retrying until the transcript
// delivers it again.
func (l *kernelLane) Deliver(want verbs.WC, payload []byte) bool {
	tb := l.k.tb
	if l.pending == nil {
		l.send(&want, payload)
		l.pending = &want
	} else if *l.pending != want {
		tb.Fatalf("%+v waits on the lane, want %+v", *l.pending, want)
	}
	if len(l.waiting) == 0 {
		return false
	}
	l.pending = nil
	recv := l.waiting[0]
	l.waiting = l.waiting[1:]
	got := l.k.waitCompletions(l.k.cq.recvs, l.Num(), 1, "a receive")[0]
	sent := l.k.waitCompletions(l.k.sent, l.peer.Num(), 1, "the peer's send")[0]
	got.Flags &= verbs.WCWithImm // the GRH flag is irrelevant to the transcript
	want.WRID, want.QPN = recv.WRID, l.Num()
	if got != want || sent.Status != verbs.StatusSuccess {
		tb.Errorf("received %+v of %+v, want %+v of a success", got, sent, want)
	}
	if b := gather(recv.SGE[:recv.NumSGE]); len(payload) > 0 && !bytes.Equal(b[:len(payload)], payload) {
		tb.Errorf("received %x, want %x", b[:len(payload)], payload)
	}
	l.addCompletions(got)
	return true
}

// send posts the peer's message: a SEND with a payload, or a WRITE_WITH_IMM into memory that is never read.
func (l *kernelLane) send(want *verbs.WC, payload []byte) {
	b, e := l.k.room(int(max(want.ByteLen, 1)))
	e.Length = want.ByteLen
	copy(b, payload)
	wr := verbs.SendWR{Opcode: verbs.OpSend, Imm: want.Imm}
	switch {
	case want.Opcode == verbs.WCRecvRDMAWithImm:
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.OpRDMAWriteWithImm, l.k.landingMR.Addr(), l.k.landingMR.RKey()
	case want.Flags&verbs.WCWithImm != 0:
		wr.Opcode = verbs.OpSendWithImm
	}
	wr.Flags = verbs.SendSignaled
	wr.SetSGE(e)
	if k, err := l.peer.PostSend([]verbs.SendWR{wr}); k != 1 || err != nil {
		l.k.tb.Fatalf("PostSend of the peer = %d, %v, want 1, nil", k, err)
	}
}
