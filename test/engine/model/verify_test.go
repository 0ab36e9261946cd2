package model_test

import (
	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// verify checks a sender's whole run.
func (s *modelSender) verify() {
	failed := s.qp.Err() != nil
	if failed && s.injected == nil && !s.broken || s.injected != nil && !failed {
		s.t.Fatalf("Err = %v; a request was made to fail: %v, a NIC was broken: %v", s.qp.Err(), s.injected != nil, s.broken)
	}
	var culprit *sentRequest
	if s.injected != nil {
		culprit = s.owner(s.injected)
	}
	left, shown := s.done, false // shown: a failure was reported
	for _, r := range s.requests {
		if len(left) == 0 || left[0].WRID != uint64(r.index) {
			if r.wr.Flags&verbs.SendSignaled != 0 || !s.mayHaveEnded(r) {
				s.t.Fatalf("request %d (%s) was not reported in its turn; %d of %d bytes are complete", r.index, r.wr.Opcode, r.completed, r.length)
			}
			continue
		}
		s.verifyCompletion(r, &left[0], r == culprit, failed)
		if left[0].Status != verbs.StatusSuccess {
			shown = true
		} else if shown && r.notified {
			s.t.Fatalf("request %d was reported as a success behind a failure: its receiver is never notified", r.index)
		}
		left = left[1:]
	}
	if len(left) > 0 {
		s.t.Fatalf("%d completions too many or out of turn, the first of request %d", len(left), left[0].WRID)
	}
	for _, r := range s.notified {
		delivered := r.ordinal < s.decoder.delivered
		lost := culprit != nil && culprit.executed < culprit.length && culprit.wr.Opcode != verbs.OpRDMARead
		if delivered && lost && r.index >= culprit.index {
			s.t.Fatalf("request %d was delivered although request %d failed", r.index, culprit.index)
		}
		if !delivered && !failed {
			s.t.Fatalf("request %d was never delivered", r.index)
		}
	}
	if failed {
		return
	}
	for _, r := range s.requests {
		for off, there := range r.covered {
			if !there {
				s.t.Fatalf("byte %d of request %d was never handed over", off, r.index)
			}
		}
	}
}

// verifyCompletion checks a request's completion.
func (s *modelSender) verifyCompletion(r *sentRequest, wc *ibverbx.WC, culprit, failed bool) {
	switch {
	case wc.Status == verbs.StatusSuccess:
		if r.wr.Flags&verbs.SendSignaled == 0 {
			s.t.Fatalf("request %d is unsignaled and was reported: completion %s", r.index, describeWC(wc))
		}
		if culprit {
			s.t.Fatalf("request %d was made to fail with %v and was reported as a success", r.index, s.status)
		}
		if wc.Opcode != r.wr.Opcode.WC() || int(wc.ByteLen) != r.length {
			s.t.Fatalf("request %d: completion %s of %d bytes, want %s of %d", r.index, wc.Opcode, wc.ByteLen, r.wr.Opcode.WC(), r.length)
		}
	case !failed:
		s.t.Fatalf("request %d: %v without a failure", r.index, wc.Err())
	case s.allCompleted(r) && (r.wr.Opcode != verbs.OpRDMAWriteWithImm || wc.Status != verbs.StatusWRFlushErr):
		// A notified request behind one that failed is flushed: the receiver is not notified of it.
		s.t.Fatalf("request %d: %v although all of it has succeeded", r.index, wc.Err())
	case culprit:
		if wc.Status != s.status || wc.VendorErr != 0xbad {
			s.t.Fatalf("request %d: %v, want status %v and vendor error 0xbad", r.index, wc.Err(), s.status)
		}
	case wc.Status == s.status && r.notified && s.injected != nil && s.owner(s.injected) == nil:
		// A number of DQPLB failed behind one that was never sent: its message is unknown.
	case wc.Status != verbs.StatusWRFlushErr:
		s.t.Fatalf("request %d: %v, want it flushed", r.index, wc.Err())
	}
}

// pollSome polls up to room completions by a randomly chosen method.
func (e *modelEnd) pollSome(room int) []ibverbx.WC {
	dst := make([]ibverbx.WC, room)
	n, err := 0, error(nil)
	switch drawOf(e.t, "way to poll", 7) {
	case 0:
		if room > 0 {
			var there bool
			if dst[0], there, err = e.cq.PollOne(); there {
				n = 1
			}
		}
	case 1:
		rail := drawInt(e.t, "rail", 0, len(e.nics)-1)
		wcs := make([]verbs.WC, drawInt(e.t, "physical completions", 0, 5))
		cq, found := e.cq.CQ(rail)
		enginetest.Must(e.t, found)
		k, polled := cq.Poll(wcs)
		enginetest.Must(e.t, polled)
		n, err = e.cq.ProcessCompletions(rail, wcs[:k], dst)
	case 2:
		e.takeIn()
		return nil
	default:
		return e.pollAll(room)
	}
	if err != nil {
		e.t.Fatalf("Poll: %v", err)
	}
	return dst[:n]
}

// pollAll polls up to room completions from all rails.
func (e *modelEnd) pollAll(room int) []ibverbx.WC {
	dst := make([]ibverbx.WC, room)
	n, err := e.cq.Poll(dst)
	if err != nil {
		e.t.Fatalf("Poll: %v", err)
	}
	return dst[:n]
}

// takeIn passes all NIC completions to the VirtualQP without space to report any.
func (e *modelEnd) takeIn() {
	wcs := make([]verbs.WC, 1<<11)
	for rail := range e.nics {
		cq, err := e.cq.CQ(rail)
		enginetest.Must(e.t, err)
		k, err := cq.Poll(wcs)
		enginetest.Must(e.t, err)
		n, err := e.cq.ProcessCompletions(rail, wcs[:k], nil)
		if n != 0 || err != nil {
			e.t.Fatalf("ProcessCompletions without room = %d, %v; want 0, nil", n, err)
		}
	}
}
