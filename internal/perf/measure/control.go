package measure

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"ibverbx"
	"ibverbx/peer"
)

const (
	// controlRounds is the number of rounds between two checks for control messages.
	controlRounds = 64
	// passiveSleep is the sleep of a side that only grants access to its memory.
	passiveSleep = 2 * time.Millisecond
	// quietSleep is the sleep of a side waiting for a message.
	quietSleep = 200 * time.Microsecond
	// restAfter is the number of empty rounds before a receiving side sleeps. A sleep after each empty
	// round limited notified messages of 8 bytes over shared memory to 0.5 M/s.
	restAfter = 1000
	// resultTimeout limits the wait for the result of a remote side after all data has arrived.
	resultTimeout = 30 * time.Second
	// reasonTimeout limits the wait for the reason of a remote side that has closed its VirtualQP.
	reasonTimeout = 3 * time.Second
)

// control exchanges the control messages of a run with the remote side. One goroutine reads
// messages; the run's goroutine does everything else.
type control struct {
	ctx      context.Context // done when sending is no longer allowed
	peer     Peer
	run      *SizeRun
	messages chan received
	timer    *time.Timer

	blocked    bool            // this side can only continue after a message
	quiet      int             // empty rounds since the last completion
	rests      int             // empty rounds in all
	started    bool            // the remote side has posted its receives
	remoteDone bool            // the remote side has finished sending data
	remoteSent int64           // data messages it has sent; valid if remoteDone
	pending    *controlMessage // a requested comparison whose data has not arrived
	asked      *controlMessage // this side's outstanding request
	answer     *controlMessage // the response to the request in asked
	theirs     *Outcome        // nil until the remote side's last message
}

// received is a message from the remote side, or the error that stopped the receive loop.
type received struct {
	controlMessage
	err error
}

// startControl starts the control messages of a run. They stop when the run is closed or ctx is done.
func (r *SizeRun) startControl(ctx context.Context, to Peer) {
	c := &control{ctx: ctx, peer: to, run: r, messages: make(chan received, 64), timer: time.NewTimer(time.Hour)}
	r.control = c
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.read(ctx)
	}()
	r.closers.Add(func() error {
		cancel()
		<-ended
		return nil
	})
}

// read receives messages until the last one of the run, an error, or until ctx is done.
func (c *control) read(ctx context.Context) {
	for {
		var m received
		if m.err = recvMessage(ctx, c.peer, &m.controlMessage); m.err == nil {
			m.err = m.check()
		}
		select {
		case c.messages <- m: // even if ctx is done: the run must see the error
		default:
			select {
			case c.messages <- m:
			case <-ctx.Done():
				return
			}
		}
		if m.err != nil || m.Kind == kindOver {
			return
		}
	}
}

func (c *control) send(m *controlMessage) error { return sendMessage(c.ctx, c.peer, m) }

// attend handles a received message, if any, and reports progress. It fails if a cancelled run has
// not drained in time. A dead remote side is an error of Peer.Recv.
func (c *control) attend() error {
	if err := c.poll(); err != nil {
		return err
	}
	now := c.run.now()
	c.run.reportProgress(now, c.run.pace.done)
	return c.run.drain.over(now, c.run.cancelled.Load())
}

// poll handles at most one message, and a pending comparison whose data has arrived.
func (c *control) poll() error {
	select {
	case m := <-c.messages:
		if err := c.handle(&m); err != nil {
			return err
		}
	default:
	}
	if p := c.pending; p != nil && c.arrived(p.First+p.N) {
		c.pending = nil
		return c.send(&controlMessage{Kind: kindAnswer, Text: brief(c.run.own().in.compareRequested(p.First, p.First+p.N))})
	}
	return nil
}

// turn runs a round, and rests if it was empty.
func (c *control) turn() error {
	if err := c.run.step(); err != nil {
		return err
	}
	if c.run.moved {
		c.quiet = 0
		return nil
	}
	c.quiet++
	return c.rest()
}

// rest follows a round without completions. Only one in pollsPerYield looks for messages and yields to other goroutines, because that
// takes longer than a poll. Over UDP each does: a poll is a system call there, and many in a row keep the sender from the socket. A
// waiting side without data sleeps until a message arrives or a short time has passed: spinning would keep Go's scheduler from polling
// the network and delay messages by ten milliseconds.
func (c *control) rest() error {
	own := c.run.own()
	passive := own.out == nil && own.in.recvs == 0 // this side never sees a completion
	awake := !passive && (!c.blocked || c.quiet < restAfter)
	if c.rests++; awake && c.run.session.Link != peer.LinkUDP && c.rests%pollsPerYield != 0 {
		return nil
	}
	if err := c.poll(); err != nil {
		return err
	}
	if awake {
		runtime.Gosched()
		return nil
	}
	for rail := range own.rails { // software NICs keep working while this side sleeps
		if cq, err := own.cq.CQ(rail); err == nil {
			_ = cq.Arm(false) // the next poll reports an error
		}
	}
	c.timer.Reset(quietSleep)
	if passive {
		c.timer.Reset(passiveSleep)
	}
	select {
	case m := <-c.messages:
		return c.handle(&m)
	case <-c.timer.C:
		return nil
	}
}

// handle processes a message or a receive error. An unexpected message fails the run.
func (c *control) handle(r *received) error {
	if r.err != nil {
		return r.err
	}
	m := &r.controlMessage
	switch m.Kind {
	case kindStart:
		c.started = true
	case kindFill, kindCompare:
		if c.pending != nil || !c.run.accepts(m.Kind == kindFill, m.N) {
			return fmt.Errorf("unexpected request from the remote side: %s of %d messages", m.Kind, m.N)
		}
		if m.Kind == kindFill {
			return c.send(&controlMessage{Kind: kindAnswer, Text: brief(c.run.own().in.fill(0, m.First, m.First+m.N))})
		}
		c.pending = m
	case kindAnswer:
		c.answer = m
	case kindDone:
		c.remoteDone, c.remoteSent = true, m.N
		if m.Stop && c.run.side == 1 {
			c.run.cancelled.Store(true)
		}
	case kindOver:
		c.theirs = m.Over
	}
	return nil
}

// accepts reports whether the remote side may request to fill or compare n messages here.
func (r *SizeRun) accepts(fill bool, n int64) bool {
	return r.own().in != nil && r.cfg.Check && n <= int64(r.plan.depth()) && fill == (r.cfg.Op == Read && n > 0)
}

// arrived reports whether the remote side's first n messages have arrived. It is true if this side
// does not count receives.
func (c *control) arrived(n int64) bool {
	in := c.run.own().in
	return in == nil || in.recvs == 0 || in.received >= n
}

// wait runs rounds until ok returns true.
func (c *control) wait(ok func() bool) error {
	c.blocked = true
	defer func() { c.blocked = false }()
	for !ok() {
		if err := c.turn(); err != nil {
			return err
		}
	}
	return nil
}

// start reports that this side has posted its receives, and waits for the remote side to do so.
func (c *control) start() error {
	if err := c.send(&controlMessage{Kind: kindStart}); err != nil {
		return err
	}
	return c.wait(func() bool { return c.started })
}

// request asks the remote side to fill or compare n messages from first on. It does not wait for
// the response.
func (c *control) request(kind messageKind, first, n int64) error {
	c.answer, c.asked = nil, &controlMessage{Kind: kind, First: first, N: n}
	return c.send(c.asked)
}

// answered waits for the response to the outstanding request, if any. c is nil if both sides are in this process.
func (c *control) answered() error {
	if c == nil || c.asked == nil {
		return nil
	}
	if err := c.wait(func() bool { return c.answer != nil }); err != nil {
		return err
	}
	c.asked = nil
	if c.answer.Text != "" {
		return fmt.Errorf("the partner found %q", c.answer.Text)
	}
	return nil
}

// freed waits until the remote side has compared the messages in the slots that messages up to end
// will reuse.
func (c *control) freed(end int64) error {
	if c == nil || c.asked == nil || end <= c.asked.First+int64(c.run.plan.depth()) {
		return nil
	}
	return c.answered()
}

// finish waits until both sides are done, then adds the remote side's result.
func (c *control) finish(found *[2]*Outcome) error {
	r, sent := c.run, int64(0)
	mine := found[r.side]
	if out := r.own().out; out != nil {
		sent = out.sent
		if err := c.wait(func() bool { return out.inFlight == 0 }); err != nil {
			return err
		}
	}
	r.count(found)
	mine.Interrupted = r.cancelled.Load()
	for i := range mine.Lanes {
		if len(mine.Lanes) > maxHealthLanes {
			mine.Lanes[i].Health = nil
		}
	}
	err := c.exchange(sent, mine)
	if c.theirs != nil {
		found[1-r.side] = c.theirs
	}
	return err
}

// exchange announces that this side has finished sending, waits for the remote side's messages, and
// exchanges results.
func (c *control) exchange(sent int64, mine *Outcome) error {
	if err := c.send(&controlMessage{Kind: kindDone, N: sent, Stop: mine.Interrupted}); err != nil {
		return err
	}
	if err := c.wait(func() bool { return c.remoteDone && c.pending == nil && c.arrived(c.remoteSent) }); err != nil {
		return err
	}
	if err := c.send(&controlMessage{Kind: kindOver, Over: mine}); err != nil {
		return err
	}
	if c.theirs != nil {
		return nil
	}
	// All data has arrived, and the remote side may have closed its VirtualQP.
	var err error
	c.drain(resultTimeout, func(m *received) bool {
		err = c.handle(m)
		return err != nil || c.theirs != nil
	})
	if err == nil && c.theirs == nil {
		err = fmt.Errorf("the remote side has not reported its result for %v", resultTimeout)
	}
	return err
}

// explain adds the remote side's reason to the error of a VirtualQP that the remote side has
// closed. To give up, a side closes its VirtualQP, and then the connection with the reason.
func (c *control) explain(err error) error {
	if c != nil && errors.Is(err, ibverbx.ErrPeerGone) {
		c.drain(reasonTimeout, func(m *received) bool {
			if m.err != nil {
				err = fmt.Errorf("%w (%w)", m.err, err)
			}
			return m.err != nil
		})
	}
	return err
}

// drain passes messages to last until it returns true, for at most limit.
func (c *control) drain(limit time.Duration, last func(*received) bool) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case m := <-c.messages:
			if last(&m) {
				return
			}
		case <-timer.C:
			return
		}
	}
}
