package model_test

import (
	"encoding/binary"

	"ibverbx"
	"ibverbx/verbs"
)

// poll checks a side's completions.
func (s *modelSide) poll(wcs []ibverbx.WC) int {
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.QP != s.qp:
			s.t.Fatalf("completion %s belongs to another VirtualQP", describeWC(wc))
		case wc.WRID < firstNote:
			s.sent(wc)
		case wc.WRID < firstInbox:
			s.received(wc, notes, int(wc.WRID-firstNote))
		default:
			s.received(wc, inbox, int(wc.WRID-firstInbox))
		}
	}
	if s.injected && s.seen() && s.qp.Err() == nil {
		s.t.Fatal("a request failed and was polled, and Err = nil")
	}
	return len(wcs)
}

// sent checks the completion of a request. It and the unsignaled requests before it are done, and their
// buffers are free.
func (s *modelSide) sent(wc *ibverbx.WC) {
	if wc.WRID >= uint64(len(s.requests)) || int(wc.WRID) < s.reported {
		s.t.Fatalf("completion %s out of turn: %d requests are reported and %d posted", describeWC(wc), s.reported, len(s.requests))
	}
	for _, r := range s.requests[s.reported : wc.WRID+1] {
		status := verbs.StatusSuccess
		if r.index == int(wc.WRID) {
			status = wc.Status
		} else if r.wr.Flags&verbs.SendSignaled != 0 {
			s.t.Fatalf("request %d is reported before request %d", wc.WRID, r.index)
		}
		s.finish(r, status)
	}
	r := s.requests[wc.WRID]
	if wc.Status == verbs.StatusSuccess && (r.wr.Flags&verbs.SendSignaled == 0 || wc.Opcode != r.wr.Opcode.WC() || int(wc.ByteLen) != r.length) {
		s.t.Fatalf("request %d (%s, %s, %d bytes): completion %s", r.index, r.wr.Opcode, r.wr.Flags, r.length, describeWC(wc))
	}
	s.reported = int(wc.WRID) + 1
}

// finish checks a completed request and returns its buffer to the program.
func (s *modelSide) finish(r *modelRequest, status verbs.Status) {
	s.statuses[r.index] = status
	if status == verbs.StatusSuccess {
		s.checkResult(r)
	}
	s.scribble(r)
}

// checkResult checks the effect of a successful request: written data is at the peer, read data is local.
func (s *modelSide) checkResult(r *modelRequest) {
	var word [8]byte
	switch {
	case r.wr.Opcode <= verbs.OpRDMAWriteWithImm:
		s.peer.checkWritten(r, "was reported")
	case r.wr.Opcode == verbs.OpRDMARead:
		s.localBytes(r, func(off int, b *byte) {
			if want := modelByte(r.ordinal, off); *b != want {
				s.t.Fatalf("byte %d that request %d (fence %v) has read is %d, want %d", off, r.index, r.wr.Flags&verbs.SendFence != 0, *b, want)
			}
		})
	case r.wr.Opcode >= verbs.OpAtomicCmpAndSwp:
		s.localBytes(r, func(off int, b *byte) { word[off] = *b })
		if got := binary.NativeEndian.Uint64(word[:]); got != uint64(r.ordinal) {
			s.t.Fatalf("%s of request %d found %d, want %d", r.wr.Opcode, r.index, got, r.ordinal)
		}
	}
}

// checkWritten checks that the bytes of a WRITE of the peer are in this side's memory.
func (s *modelSide) checkWritten(r *modelRequest, when string) {
	for off, b := range s.memory.Bytes()[sideTarget+r.index*modelSlot:][:r.length] {
		if want := modelByte(r.index, off); b != want {
			s.t.Fatalf("request %d %s, and byte %d of it is %d at its target, want %d", r.index, when, off, b, want)
		}
	}
}

// received checks a completed receive.
func (s *modelSide) received(wc *ibverbx.WC, kind, k int) {
	if k != s.ended[kind] || k >= s.posted[kind] {
		s.t.Fatalf("completion %s of kind %d out of turn, want receive %d of %d", describeWC(wc), kind, s.ended[kind], s.posted[kind])
	}
	s.ended[kind]++
	if wc.Status != verbs.StatusSuccess {
		if !s.injected && !s.cutOff {
			s.t.Fatalf("receive %d of kind %d: %v without a failure", k, kind, wc.Err())
		}
		return
	}
	if s.delivered[kind] != k {
		s.t.Fatalf("receive %d of kind %d has succeeded behind one that failed", k, kind)
	}
	s.delivered[kind]++
	from := s.peer.notified
	if kind == inbox {
		from = s.peer.sends
	}
	if k >= len(from) {
		s.t.Fatalf("message %d of kind %d was received, the peer has posted %d", k, kind, len(from))
	}
	r := from[k]
	if lost := s.peer.culprit; lost >= 0 && r.index >= lost {
		s.t.Fatalf("request %d was reported although request %d was lost", r.index, lost)
	}
	s.checkNews(wc, r)
	for ; s.checked <= r.index; s.checked++ {
		s.checkThere(s.peer.requests[s.checked], r)
	}
}

// checkNews checks a receive completion against the peer's request.
func (s *modelSide) checkNews(wc *ibverbx.WC, r *modelRequest) {
	flags, opcode := schemeCarries(s.cfg.Scheme), verbs.WCRecvRDMAWithImm
	if !r.notified {
		flags, opcode = ibverbx.WCHasLength, verbs.WCRecv
		if r.wr.Opcode == verbs.OpSendWithImm {
			flags |= ibverbx.WCHasImm
		}
	}
	if wc.Flags != flags || wc.Opcode != opcode || flags&ibverbx.WCHasImm != 0 && wc.Imm != r.wr.Imm || flags&ibverbx.WCHasLength != 0 && int(wc.ByteLen) != r.length {
		s.t.Fatalf("completion %s with the flags %d and the immediate %d, want %s of request %d: flags %d, immediate %d, %d bytes",
			describeWC(wc), wc.Flags, wc.Imm, opcode, r.index, flags, r.wr.Imm, r.length)
	}
}

// checkThere checks that a peer's request has arrived, because this side was notified of news, which was
// posted after it.
func (s *modelSide) checkThere(r, news *modelRequest) {
	when := "was posted before request " + news.wr.Opcode.String() + ", which was reported,"
	switch {
	case r.wr.Opcode <= verbs.OpRDMAWriteWithImm:
		s.checkWritten(r, when)
	case r.wr.Opcode == verbs.OpAtomicFetchAndAdd:
		if got := binary.NativeEndian.Uint64(s.memory.Bytes()[sideWords:]); got <= uint64(r.ordinal) {
			s.t.Fatalf("request %d %s and %d additions were made, want %d at least", r.index, when, got, r.ordinal+1)
		}
	case r.wr.Opcode == verbs.OpSend || r.wr.Opcode == verbs.OpSendWithImm:
		if r.ordinal >= s.posted[inbox] {
			s.t.Fatalf("request %d %s and no receive was posted for it", r.index, when)
		}
		for off, b := range s.memory.Bytes()[sideInbox+r.ordinal*modelSlot:][:r.length] {
			if want := modelByte(r.index, off); b != want {
				s.t.Fatalf("request %d %s and byte %d of its receive is %d, want %d", r.index, when, off, b, want)
			}
		}
	}
}

// verify checks a side's whole run.
func (s *modelSide) verify() {
	failed := s.qp.Err() != nil
	if failed != (s.injected || s.cutOff) {
		s.t.Fatalf("Err = %v; something was made to fail: %v, the peer did not answer: %v", s.qp.Err(), s.injected, s.cutOff)
	}
	succeeded := 0 // requests that did, with all before them
	for _, r := range s.requests {
		status, known := s.statuses[r.index]
		if !known {
			if r.wr.Flags&verbs.SendSignaled != 0 {
				s.t.Fatalf("request %d (%s) was never reported", r.index, r.wr.Opcode)
			}
			s.finish(r, verbs.StatusSuccess) // it completed silently
		}
		s.verifyStatus(r, status, failed)
		if succeeded == r.index && status == verbs.StatusSuccess {
			succeeded++
		}
	}
	for _, r := range s.requests {
		s.localBytes(r, func(off int, b *byte) {
			if *b != 255 {
				s.t.Fatalf("byte %d of the buffer of request %d (%s) was written after its completion", off, r.index, r.wr.Opcode)
			}
		})
	}
	for _, r := range s.requests[:succeeded] {
		if r.notified && r.ordinal >= s.peer.delivered[notes] {
			s.t.Fatalf("request %d has succeeded, and the peer (Err = %v) got %d messages, want %d", r.index, s.peer.qp.Err(), s.peer.delivered[notes], r.ordinal+1)
		}
	}
	if failed && s.ended != s.posted {
		s.t.Fatalf("%v receives were posted and %v have ended after a failure", s.posted, s.ended)
	}
}

// verifyStatus checks the status of a request.
func (s *modelSide) verifyStatus(r *modelRequest, status verbs.Status, failed bool) {
	// Another fragment of the same request may have found the peer silent, on another rail. The
	// order of failures in two queues is unknown.
	silent := s.cutOff && status == verbs.StatusRetryExcErr
	switch {
	case r.index == s.culprit && status != s.status && !silent:
		s.t.Fatalf("request %d was made to fail with %s and ended with %s", r.index, s.status, status)
	case status == verbs.StatusSuccess || failed && status == verbs.StatusWRFlushErr:
	case s.injected && status == s.status || silent:
	default:
		s.t.Fatalf("request %d (%s): %s; something was made to fail: %v, the peer did not answer: %v", r.index, r.wr.Opcode, status, s.injected, s.cutOff)
	}
}
