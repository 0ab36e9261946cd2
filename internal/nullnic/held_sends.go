package nullnic

import "ibverbx/verbs"

// queue is the send queue of a held QP: accepted and incomplete sends, oldest first.
type queue struct {
	posted []verbs.SendWR
	inline [][]byte // inline bytes of each element of posted; nil if it is not inline
	taken  [][]byte // inline bytes of each element of QP.Taken
	// carried is the number of posted sends that the peer has executed.
	carried int
	// silent counts completed requests without a completion. The next completion that is
	// polled frees their slots too.
	silent int
	// repeat makes READs fetch their bytes again when they complete.
	repeat bool
	// late holds requests that were in flight when the QP went to ERR.
	late []lateSend
	// chains holds the lengths of the accepted chains.
	chains []int
}

// lateSend is a request whose packets may still arrive after its flush. It has a copy of its
// bytes, because a NIC does not read a buffer after the completion.
type lateSend struct {
	wr    verbs.SendWR
	bytes []byte
}

// Hold makes the QP keep sends until Complete or Fail. A held send queue has the depth of QPConfig.
// A slot becomes free when its completion, or a later one, is polled.
func (q *QP) Hold() { q.held = true }

// RepeatReads makes READs fetch their bytes again when they complete, like a READ whose response
// was lost. RC does not order a READ before the WRITEs behind it.
func (q *QP) RepeatReads() { q.queue.repeat = true }

// Posted returns the outstanding sends of a held QP, oldest first.
func (q *QP) Posted() []verbs.SendWR { return q.queue.posted }

// Carried returns the number of Posted sends that the peer has executed.
func (q *QP) Carried() int { return q.queue.carried }

// Chains returns the lengths of the chains accepted by a held QP, one for each doorbell.
func (q *QP) Chains() []int { return q.queue.chains }

// Inline returns the bytes of Taken[i] at the time of its post, nil if it is not inline.
func (q *QP) Inline(i int) []byte { return q.queue.taken[i] }

// hold accepts the first take requests of a chain, until the queue is full.
func (q *QP) hold(wrs []verbs.SendWR, take int, err error) (int, error) {
	s := &q.queue
	if room := q.cfg.MaxSendWR - q.occupied; q.cfg.MaxSendWR > 0 && room < take {
		take, err = max(room, 0), verbs.ErrQueueFull
		q.Overruns++
	}
	if take == 0 {
		return 0, err
	}
	q.Doorbells++
	s.chains = append(s.chains, take)
	for i := range wrs[:take] {
		var b []byte
		if wrs[i].Flags&verbs.SendInline != 0 {
			b = inlineBytes(&wrs[i])
		}
		s.inline = append(s.inline, b)
		s.taken = append(s.taken, b)
	}
	s.posted = append(s.posted, wrs[:take]...)
	q.Taken = append(q.Taken, wrs[:take]...)
	q.occupied += take
	if q.state == verbs.StateErr {
		q.flush()
	}
	return take, err
}

// Complete completes the oldest n sends successfully, with a completion for each signaled one.
func (q *QP) Complete(n int) {
	for i := range n {
		wr := &q.queue.posted[i]
		if q.queue.repeat && wr.Opcode == verbs.OpRDMARead && i < q.queue.carried {
			q.execute(wr, nil)
		}
		if wr.Flags&verbs.SendSignaled != 0 || q.cfg.SignalAll {
			q.end(wr, verbs.StatusSuccess)
		} else {
			q.queue.silent++
		}
	}
	q.drop(n)
}

// Fail fails the oldest send with a status and flushes everything behind it. If the peer has
// executed the send, only its acknowledgement was lost.
func (q *QP) Fail(status verbs.Status) {
	if len(q.queue.posted) > 0 {
		q.end(&q.queue.posted[0], status)
		q.drop(1)
	}
	q.flush()
}

func (q *QP) flushSends() {
	for i := range q.queue.posted {
		q.end(&q.queue.posted[i], verbs.StatusWRFlushErr)
	}
	q.drop(len(q.queue.posted))
}

// end writes the completion of a held send.
func (q *QP) end(wr *verbs.SendWR, status verbs.Status) {
	q.sends.freeing(q, q.queue.silent+1)
	q.queue.silent = 0
	q.complete(wr, status)
}

// drop removes the oldest n sends from the queue.
func (q *QP) drop(n int) {
	s := &q.queue
	s.posted = append(s.posted[:0], s.posted[n:]...)
	s.inline = append(s.inline[:0], s.inline[n:]...)
	s.carried = max(s.carried-n, 0)
}
