package perf

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"ibverbx"
)

const (
	// noteRounds is how many rounds pass between two looks at the partner's notes.
	noteRounds = 64
	// passiveSleep is how long a half sleeps that only lends its memory.
	passiveSleep = 2 * time.Millisecond
	// quietSleep is how long a half sleeps that waits for a note.
	quietSleep = 200 * time.Microsecond
	// progressEvery is how often a half tells the partner that it is alive.
	progressEvery = time.Second
	// newsAfter is how long a half waits for any note of its partner.
	newsAfter = 90 * time.Second
	// lastWordsAfter is how long the result of a partner may take that has closed its VirtualQP.
	lastWordsAfter = 10 * time.Second
	// reasonAfter is how long the reason of a partner may take that has closed its VirtualQP.
	reasonAfter = 3 * time.Second
)

// talk is the exchange of notes between the halves of a row in two processes. A goroutine reads
// the partner's notes; all else is done by the goroutine of the row.
type talk struct {
	ctx     context.Context // ends when nothing may be sent any more
	partner Partner
	link    *Link
	notes   chan heard
	ended   chan struct{} // closed when the goroutine has ended
	timer   *time.Timer
	every   time.Duration // between two notes that this half is alive
	spoke   time.Duration // when it last sent one
	news    time.Duration // when the partner last sent anything

	waiting  bool     // this half has nothing to do before the partner sends a note
	parted   bool     // this half has sent its last note of the row
	started  bool     // the partner has posted its receives
	peerDone bool     // the partner will send no more messages
	peerSent int64    // messages that the partner has sent; valid if peerDone
	pending  *note    // a compare that waits until the messages have arrived
	asked    *note    // what this half has asked for, nil if nothing is open
	answer   *note    // the answer to asked
	theirs   *outcome // what the partner found, nil until its last note
}

// heard is a note of the partner, or the reason why no more will come.
type heard struct {
	note
	err error
}

// open starts the goroutine, which ends with the partner's last note of the row, or by close.
func (t *talk) open() (stop func() error) {
	ctx, cancel := context.WithCancel(t.ctx)
	go t.listen(ctx)
	return func() error {
		cancel()
		<-t.ended
		return nil
	}
}

func (t *talk) listen(ctx context.Context) {
	defer close(t.ended)
	for {
		var h heard
		b, err := t.partner.Recv(ctx)
		if err == nil {
			err = decodeNote(b, &h.note)
		}
		if err == nil {
			err = h.check()
		}
		h.err = err
		select {
		case t.notes <- h: // also if ctx has ended: the row must hear of it
		default:
			select {
			case t.notes <- h:
			case <-ctx.Done():
				return
			}
		}
		if h.err != nil || h.Kind == noteOver {
			return
		}
	}
}

func (t *talk) say(n *note) error { return say(t.ctx, t.partner, n) }

// passive reports whether no completion ever arrives at this half.
func (r *row) passive() bool { return r.own().out == nil && r.own().in.recvs == 0 }

// turn does one round and rests if it found nothing.
func (r *row) turn() error {
	if err := r.step(); err != nil || r.moved {
		return err
	}
	return r.rest()
}

// attend takes a note if there is one, tells the partner now and then that this half is alive,
// and notices if the partner is not.
func (r *row) attend() error {
	if err := r.listen(); err != nil {
		return err
	}
	now, t := r.now(), r.talk
	r.tell(now, r.pace.done)
	if now-t.spoke >= t.every && !t.parted {
		t.spoke = now
		if err := t.say(&note{Kind: noteProgress}); err != nil {
			return err
		}
	}
	if now-t.news > newsAfter {
		return fmt.Errorf("the partner has sent nothing about the test for %v", newsAfter)
	}
	return r.drain.over(now, r.cancelled.Load())
}

// listen takes one note, if there is one, and does what was asked for when it can.
func (r *row) listen() error {
	t := r.talk
	select {
	case n := <-t.notes:
		if err := r.heard(&n); err != nil {
			return err
		}
	default:
	}
	in := r.own().in
	if p := t.pending; p != nil && (in.recvs == 0 || in.received >= p.First+p.N) {
		t.pending = nil
		return t.say(&note{Kind: noteAnswer, Text: brief(errorText(r.compare(p)))})
	}
	return nil
}

// compare compares messages that the partner has sent here.
func (r *row) compare(n *note) error {
	f, end := r.own().in, n.First+n.N
	if f.op == Atomic {
		return f.compareCounter(f.target.message(0, 0), 0, end, uint64(end))
	}
	if err := f.compare(0, n.First, end); err != nil {
		return fmt.Errorf("at the other end: %w", err)
	}
	return nil
}

// rest follows a round that found nothing. A half that waits for the partner sleeps until a note
// arrives or a short time has passed: spinning would keep Go's scheduler from polling the network,
// and notes would take ten milliseconds. The CQs are armed before, so that a NIC in software works
// meanwhile.
func (r *row) rest() error {
	if err := r.listen(); err != nil {
		return err
	}
	t := r.talk
	if !t.waiting && !r.passive() {
		runtime.Gosched()
		return nil
	}
	r.own().arm()
	t.timer.Reset(quietSleep)
	if r.passive() {
		t.timer.Reset(passiveSleep)
	}
	select {
	case n := <-t.notes:
		return r.heard(&n)
	case <-t.timer.C:
		return nil
	}
}

// heard takes a note of the partner, or the error that ended its notes. A note out of turn ends
// the row.
func (r *row) heard(h *heard) error {
	if h.err != nil {
		return h.err
	}
	t, n := r.talk, &h.note
	t.news = r.now()
	switch n.Kind {
	case noteStart:
		t.started = true
	case noteProgress:
	case noteFill, noteCompare:
		in := r.own().in
		if in == nil || !r.cfg.Check || t.pending != nil || n.N > int64(r.plan.depth()) || (n.Kind == noteFill) != (r.cfg.Op == Read && n.N > 0) {
			return fmt.Errorf("the partner asks for %s of %d messages, which makes no sense here", n.Kind, n.N)
		}
		if n.Kind == noteFill {
			return t.say(&note{Kind: noteAnswer, Text: brief(errorText(in.fill(0, n.First, n.First+n.N)))})
		}
		t.pending = n
	case noteAnswer:
		t.answer = n
	case noteDone:
		t.peerDone, t.peerSent = true, n.N
		if n.Stop && r.side == 1 {
			r.cancelled.Store(true)
		}
	case noteOver:
		t.theirs = n.Over
	}
	return nil
}

// until goes on until a condition holds that the partner has to meet.
func (r *row) until(ok func() bool) error {
	r.talk.waiting = true
	defer func() { r.talk.waiting = false }()
	for !ok() {
		if err := r.turn(); err != nil {
			return err
		}
	}
	return nil
}

// ask has the partner fill or compare messages and waits for its answer.
func (r *row) ask(kind noteKind, first, n int64) error {
	if err := r.request(kind, first, n); err != nil {
		return err
	}
	return r.answered()
}

// request asks the partner to fill or compare messages, and does not wait.
func (r *row) request(kind noteKind, first, n int64) error {
	t := r.talk
	t.answer, t.asked = nil, &note{Kind: kind, First: first, N: n}
	return t.say(t.asked)
}

// answered waits for the answer to what was requested, if anything was.
func (r *row) answered() error {
	t := r.talk
	if t == nil || t.asked == nil {
		return nil
	}
	if err := r.until(func() bool { return t.answer != nil }); err != nil {
		return err
	}
	t.asked = nil
	if t.answer.Text != "" {
		return fmt.Errorf("the partner found %q", t.answer.Text)
	}
	return nil
}

// freed waits until the partner has compared the messages whose places those up to end take.
func (r *row) freed(end int64) error {
	if r.talk == nil || r.talk.asked == nil || end <= r.talk.asked.First+int64(r.plan.depth()) {
		return nil
	}
	return r.answered()
}

// meet waits until both halves have posted their receives.
func (r *row) meet() error {
	if err := r.talk.say(&note{Kind: noteStart}); err != nil {
		return err
	}
	return r.until(func() bool { return r.talk.started })
}

// part ends the row when both halves are done, and takes what the partner found.
func (r *row) part(found *[2]*outcome) error {
	t, h, mine := r.talk, r.own(), found[r.side]
	var sent int64
	if h.out != nil {
		sent = h.out.sent
		if err := r.until(func() bool { return h.out.inFlight == 0 }); err != nil {
			return err
		}
	}
	r.count(found)
	mine.Interrupted = r.cancelled.Load()
	if len(mine.Vitals.Lanes) > maxVitals {
		mine.Vitals.Lanes = []Health{}
	}
	if err := t.say(&note{Kind: noteDone, N: sent, Stop: mine.Interrupted}); err != nil {
		return err
	}
	err := r.until(func() bool {
		return t.peerDone && t.pending == nil && (h.in == nil || h.in.recvs == 0 || h.in.received >= t.peerSent)
	})
	if err != nil {
		return err
	}
	t.parted = true // a later note would be taken for one of the next row
	if err := t.say(&note{Kind: noteOver, Over: mine}); err != nil {
		return err
	}
	for t.theirs == nil {
		if err := r.turn(); errors.Is(err, ibverbx.ErrPeerGone) {
			err = r.lastWords()
			found[1-r.side] = t.theirs
			return err
		} else if err != nil {
			return err
		}
	}
	found[1-r.side] = t.theirs
	return nil
}

// lastWords waits for the result of a partner that has closed its VirtualQP: the close can be
// noticed before the result arrives.
func (r *row) lastWords() (err error) {
	t := r.talk
	t.drain(lastWordsAfter, func(h *heard) bool {
		err = r.heard(h)
		return err != nil || t.theirs != nil
	})
	if err == nil && t.theirs == nil {
		err = fmt.Errorf("%w, and has not reported what it found", ibverbx.ErrPeerGone)
	}
	return err
}

// because adds the partner's reason to the error that its VirtualQP is gone. A partner that gives
// up closes its VirtualQP, and then the connection with the reason.
func (t *talk) because(err error) error {
	if errors.Is(err, ibverbx.ErrPeerGone) {
		t.drain(reasonAfter, func(h *heard) bool {
			if h.err != nil {
				err = fmt.Errorf("%w (%w)", h.err, err)
			}
			return h.err != nil
		})
	}
	return err
}

// drain takes notes until one is the last, for at most the given time.
func (t *talk) drain(limit time.Duration, last func(*heard) bool) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case n := <-t.notes:
			if last(&n) {
				return
			}
		case <-timer.C:
			return
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
