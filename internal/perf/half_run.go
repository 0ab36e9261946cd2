package perf

import (
	"errors"
	"fmt"
	"time"

	"ibverbx"
)

// run measures the row and returns what both ends found.
func (h *half) run() (mine, theirs *over, err error) {
	if err := h.say(&note{Kind: noteStart}); err != nil {
		return nil, nil, err
	}
	if err := h.until(func() bool { return h.started }); err != nil {
		return nil, nil, err
	}
	mine = &over{Lanes: []Lane{}}
	switch {
	case h.cfg.Mode == Latency && h.cfg.op().received() && h.side == 1:
		err = h.echo()
	case h.out == nil:
	case h.cfg.Mode == Latency:
		err = h.latency(mine)
	default:
		err = h.bandwidth(mine)
	}
	if err != nil {
		return nil, nil, err
	}
	var sent int64
	if h.out != nil {
		sent = h.out.sent
		if err := h.until(func() bool { return h.out.inFlight == 0 }); err != nil {
			return nil, nil, err
		}
	}
	mine.Lanes = h.carried()
	mine.Interrupted = h.interrupted()
	if err := h.part(sent, mine); err != nil {
		return nil, nil, err
	}
	return mine, h.theirs, nil
}

// part ends the row: neither end goes before the other needs it no more.
func (h *half) part(sent int64, mine *over) error {
	if err := h.say(&note{Kind: noteDone, N: sent}); err != nil {
		return err
	}
	err := h.until(func() bool {
		return h.peerDone && h.pending == nil && (h.in == nil || h.in.recvs == 0 || h.in.received >= h.peerSent)
	})
	if err != nil {
		return err
	}
	h.parted = true // what it said now would be taken for a word of the next row
	if err := h.say(&note{Kind: noteOver, Over: mine}); err != nil {
		return err
	}
	for h.theirs == nil {
		if err := h.turn(); errors.Is(err, ibverbx.ErrPeerGone) {
			return h.lastWords()
		} else if err != nil {
			return err
		}
	}
	return nil
}

// lastWords waits for what a partner said before it closed its VirtualQP: the news of that
// can be the first to arrive.
func (h *half) lastWords() error {
	limit := time.NewTimer(lastWordsAfter)
	defer limit.Stop()
	for h.theirs == nil {
		select {
		case n := <-h.notes.ch:
			if err := h.heard(&n); err != nil {
				return err
			}
		case <-limit.C:
			return fmt.Errorf("%w, and has not said what it found", ibverbx.ErrPeerGone)
		}
	}
	return nil
}

// because adds to the news that the partner's VirtualQP is gone what the partner says of it: a
// partner that gives up closes its VirtualQP, and then the connection with the reason.
func (h *half) because(err error) error {
	if !errors.Is(err, ibverbx.ErrPeerGone) {
		return err
	}
	limit := time.NewTimer(reasonAfter)
	defer limit.Stop()
	for {
		select {
		case n := <-h.notes.ch:
			if n.err != nil {
				return fmt.Errorf("%w (%w)", n.err, err)
			}
		case <-limit.C:
			return err
		}
	}
}

// interrupted reports whether the user has had enough.
func (h *half) interrupted() bool { return h.stop.Err() != nil }

// bandwidth sends what the row asks for.
func (h *half) bandwidth(mine *over) error {
	b := bandwidth{atLeast: remotePeakSpan}
	if !h.cfg.Check {
		warm := int64(h.window) * int64(h.chain)
		if n := int64(h.cfg.Iterations); n > 0 {
			warm = min((n+int64(h.chain)-1)/int64(h.chain), int64(h.window)) * int64(h.chain)
		}
		if err := h.burst(&bandwidth{}, warm, warmUp); err != nil {
			return err
		}
	}
	h.mark()
	var err error
	if h.cfg.Check {
		err = h.checkedBursts(&b)
	} else if h.cfg.Iterations > 0 {
		err = h.burst(&b, int64(h.cfg.Iterations), 0)
	} else {
		err = h.burst(&b, endless, h.cfg.Duration)
	}
	mine.Messages, mine.Elapsed, mine.Peak = b.done, b.elapsed, b.peak
	return err
}

// burst sends n messages, or as many as it can if d is above zero, waits until all are
// complete, and adds them to b. Nothing in its loop allocates but a word to the partner once a
// second.
func (h *half) burst(b *bandwidth, n int64, d time.Duration) error {
	f := h.out
	f.start(n)
	start, done := h.now(), f.completed
	last := start
	for {
		if err := h.turn(); err != nil {
			return err
		}
		now := h.now()
		if moved := f.completed - done; moved > 0 {
			done, last = f.completed, now
			b.add(b.elapsed+now-start, moved)
		}
		if f.idle() {
			break
		}
		if d > 0 && now-start >= d || h.interrupted() {
			f.stop()
		}
		if h.round&0x3fff == 0 {
			h.progress(max(fraction(b.done, int64(h.cfg.Iterations)), fraction(int64(now-start), int64(h.cfg.Duration))))
		}
	}
	b.elapsed += last - start
	return nil
}

// checkedBursts sends in bursts that fit the buffers, and has every message compared. The
// partner compares one burst while the next is under way: a burst is half of what there are
// places for.
func (h *half) checkedBursts(b *bandwidth) error {
	left, start := int64(h.cfg.Iterations), h.now()
	if left == 0 {
		left = endless
	}
	half := int64(h.chain) * int64(max(1, h.window/2))
	for left > 0 && !h.interrupted() {
		part := min(left, half)
		before := h.out.sent
		if h.asked != nil && before+part > h.asked.First+int64(h.depth()) {
			if err := h.answered(); err != nil {
				return err
			}
		}
		if err := h.prepare(part); err != nil {
			return err
		}
		if err := h.burst(b, part, 0); err != nil {
			return err
		}
		// An interrupted burst is shorter.
		if err := h.verify(h.out.sent - before); err != nil {
			return err
		}
		left -= part
		spent := h.now() - start
		h.progress(max(fraction(b.done, int64(h.cfg.Iterations)), fraction(int64(spent), int64(h.cfg.Duration))))
		if d := h.cfg.Duration; d > 0 && spent >= d {
			break
		}
	}
	return h.answered()
}

// latency measures one message at a time.
func (h *half) latency(mine *over) error {
	one, scale := h.roundTrip, 1.0
	if h.cfg.op().received() {
		one, scale = h.pingPong, 0.5
	}
	s := newSamples()
	limit, total := int64(h.cfg.Iterations), h.cfg.Duration
	begin := h.now()
	for count := int64(-latencyWarmUp); (limit == 0 || count < limit) && !h.interrupted(); count++ {
		if h.cfg.Check {
			if err := h.prepare(1); err != nil {
				return err
			}
		}
		start := h.now()
		if err := one(); err != nil {
			return err
		}
		end := h.now()
		if h.cfg.Check && !h.cfg.op().received() {
			if err := errors.Join(h.verify(1), h.answered()); err != nil {
				return err
			}
		}
		if count < 0 {
			if count == -1 {
				h.mark()
			}
			begin = h.now()
			continue
		}
		if s.add(end - start) {
			s.flush()
		}
		if total > 0 && end-begin >= total {
			break
		}
		if count&0x3ff == 0 {
			h.progress(max(fraction(count, limit), fraction(int64(end-begin), int64(total))))
			if err := h.speak(); err != nil {
				return err
			}
		}
	}
	if s.flush(); s.count > 0 {
		r := s.result(h.size, scale)
		mine.Latency, mine.Messages = r.LatencyResult, r.Iterations
	}
	return nil
}

// roundTrip posts one request and waits for its completion.
func (h *half) roundTrip() error {
	f := h.out
	q := &f.queues[0]
	at := q.next
	if q.next++; q.next == len(q.chains) {
		q.next = 0
	}
	if _, err := q.qp.PostSend(q.chains[at]); err != nil {
		return h.failure(err)
	}
	q.sent++
	q.inFlight++
	f.sent++
	f.inFlight++
	before := f.completed
	return h.await(&f.completed, before)
}

// pingPong sends a message and waits for the one that answers it.
func (h *half) pingPong() error {
	before := h.in.received
	if err := h.ping(); err != nil {
		return err
	}
	if err := h.await(&h.in.received, before); err != nil {
		return err
	}
	return h.compareLast()
}

// echo answers every message until the partner says that it has sent its last.
func (h *half) echo() error {
	h.mark()
	answered := int64(0)
	for {
		for h.in.received == answered && (!h.peerDone || h.in.received < h.peerSent) {
			if err := h.turn(); err != nil {
				return err
			}
		}
		if h.in.received == answered {
			return nil
		}
		answered++
		if err := h.compareLast(); err != nil {
			return err
		}
		if h.cfg.Check {
			if err := h.prepare(1); err != nil {
				return err
			}
		}
		if err := h.ping(); err != nil {
			return err
		}
	}
}

// compareLast compares, with Check, the message that came last.
func (h *half) compareLast() error {
	if !h.cfg.Check {
		return nil
	}
	if h.in.received == 0 {
		return errors.New("no message to compare")
	}
	return h.in.verifyMessage(0, h.in.received-1)
}

// ping posts the next request of a chain on its own, and asks for a completion with the
// last of the chain.
func (h *half) ping() error {
	f := h.out
	q := &f.queues[0]
	at := int(q.sent % pingChain)
	if _, err := q.qp.PostSend(q.chains[q.next][at : at+1]); err != nil {
		return h.failure(err)
	}
	q.sent++
	f.sent++
	if at < pingChain-1 {
		return nil
	}
	if q.next++; q.next == len(q.chains) {
		q.next = 0
	}
	q.inFlight++
	f.inFlight++
	if q.inFlight < pingWindow {
		return nil
	}
	return h.await(&f.completed, f.completed)
}

// await goes on until a counter has moved.
func (h *half) await(counter *int64, before int64) error {
	for *counter == before {
		if err := h.turn(); err != nil {
			return err
		}
	}
	return nil
}
