package reliable_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestSRQOfSeveralThreads: QPs of one SRQ complete on two pairs of CQs, each polled by a separate goroutine,
// which reposts the receives. Every message arrives once, in its QP's order.
func TestSRQOfSeveralThreads(t *testing.T) {
	const pairs, each, receives, size = 4, 300, 8, 200
	link := softnic.NewMemoryLink(nil)
	a, b := newSide(t, link, reliable.Config{Paths: 2}, size), newSide(t, link, reliable.Config{Paths: 2}, receives*size)
	srq, err := b.pd.CreateSRQ(verbs.SRQConfig{MaxWR: receives})
	must(t, err)
	t.Cleanup(func() { must(t, srq.Close()) })
	post := func(id uint64) error {
		wr := verbs.RecvWR{WRID: id}
		wr.SetSGE(b.sge(int(id)*size, size))
		_, err := srq.PostRecv([]verbs.RecvWR{wr})
		return err
	}
	for i := range uint64(receives) {
		must(t, post(i))
	}
	newCQ := func(s *side) verbs.CQ {
		cq, err := s.ctx.CreateCQ(verbs.CQConfig{Depth: 1024})
		must(t, err)
		t.Cleanup(func() { must(t, cq.Close()) })
		return cq
	}
	var wg sync.WaitGroup
	engines := map[any]bool{}
	for range 2 {
		from, to, back := newCQ(a), newCQ(b), newCQ(b)
		var qa, qb []verbs.QP
		for range pairs / 2 {
			q, err := a.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: from, RecvCQ: from, MaxSendWR: 16})
			must(t, err)
			t.Cleanup(func() { must(t, q.Close()) })
			r, err := b.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: back, RecvCQ: to, MaxSendWR: 16, SRQ: srq})
			must(t, err)
			t.Cleanup(func() { must(t, r.Close()) })
			join(t, q, r)
			qa, qb = append(qa, q), append(qb, r)
			engines[reliable.EngineOf(r)] = true
		}
		wg.Go(func() { sendFrom(t, a, from, qa, each, size) })
		wg.Go(func() { receiveInto(t, to, len(qb)*each, post) })
	}
	wg.Wait()
	if len(engines) != 1 {
		t.Errorf("the QPs of an SRQ are in %d engines, want one", len(engines))
	}
}

// sendFrom sends numbered messages on QPs round-robin, until all have completed.
func sendFrom(t *testing.T, a *side, cq verbs.CQ, qps []verbs.QP, each, size int) {
	start, done := time.Now(), 0
	for sent := 0; done < each*len(qps); {
		if sent < each*len(qps) {
			wr := verbs.SendWR{Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: uint32(sent / len(qps))}
			wr.SetSGE(a.sge(0, size))
			n, _ := qps[sent%len(qps)].PostSend([]verbs.SendWR{wr})
			sent += n
		}
		var wcs [16]verbs.WC
		n, err := cq.Poll(wcs[:])
		for _, wc := range wcs[:n] {
			if err == nil {
				err = wc.Err()
			}
		}
		if n == 0 {
			runtime.Gosched() // lets the receivers run
		}
		if done += n; err != nil || time.Since(start) > patience {
			t.Errorf("%d of %d requests have ended: %v", done, each*len(qps), err)
			return
		}
	}
}

// receiveInto receives n messages from a CQ and reposts their receives.
func receiveInto(t *testing.T, cq verbs.CQ, n int, post func(uint64) error) {
	start, next := time.Now(), map[uint32]uint32{}
	for got := 0; got < n; {
		var wcs [16]verbs.WC
		k, err := cq.Poll(wcs[:])
		for _, wc := range wcs[:k] {
			if wc.Status != verbs.StatusSuccess || wc.Imm != next[wc.QPN] {
				t.Errorf("message %d of QP %d, %v, want %d", wc.Imm, wc.QPN, wc.Status, next[wc.QPN])
				return
			}
			next[wc.QPN]++
			if err == nil {
				err = post(wc.WRID)
			}
		}
		if k == 0 {
			runtime.Gosched()
		}
		if got += k; err != nil || time.Since(start) > patience {
			t.Errorf("%d of %d messages have arrived: %v", got, n, err)
			return
		}
	}
}
